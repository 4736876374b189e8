//! Cases of the stack and its frames.

use fgraph::hook::Global;
use fgraph::ret_stack::{DetachError, NEAR_WORDS, words_for};
use fgraph::{Callback, Context, Entry, Exit, Fgraph, RetStack};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fixture::{Fake, Rec, leak, patched};
use crate::host::{self, FGRAPH, Host};

#[test]
fn memory_for_nobody() {
    let task = Fake::new(64);
    let who: Vec<_> = (0..15).map(|_| Rec::<15>::which(|_| false)).collect();
    for refuses in who {
        task.fgraph.register(refuses).unwrap();
    }
    let quiet = Rec::<0>::new();
    task.fgraph.register(quiet).unwrap();
    task.nest(0, 3);
    assert_eq!(task.stack.high_water(), 3 * NEAR_WORDS);
    assert_eq!(quiet.fake(), "+0 +1 +2 -2 -1 -0");
}

#[test]
fn one_deep_chain_loses_everything_after_it() {
    let task = Fake::new(words_for(3, &[1]));
    let rec = Rec::<1>::new();
    let id = task.fgraph.register(rec).unwrap();
    task.nest(0, 10);
    assert_eq!(rec.fake(), "+0 +1 +2 -2 -1 -0");
    assert_eq!(task.stack.counters().overruns, 7);
    assert_eq!(task.fgraph.missed(id), 7);
    task.nest(0, 2);
    assert_eq!(rec.fake(), "+0 +1 -1 -0");
}

/// Calls, as an interrupt, functions on another stack from inside an entry and
/// an exit.
struct Interrupted {
    inner: Fake,
    depth: AtomicUsize,
}

// SAFETY: one thread uses it.
unsafe impl Sync for Interrupted {}

impl Interrupted {
    fn interrupt(&self) {
        if self.depth.fetch_add(1, Relaxed) == 0 {
            host::in_context(Context::Interrupt, || self.inner.nest(100, 103));
        }
        self.depth.fetch_sub(1, Relaxed);
    }
}

impl Callback for Interrupted {
    type Frame = [usize; 3];

    fn entry(&self, _: Entry<'_, [usize; 3]>) -> Option<[usize; 3]> {
        self.interrupt();
        Some([1, 2, 3])
    }

    fn exit(&self, _: Exit<'_, [usize; 3]>, data: [usize; 3]) {
        if data == [1, 2, 3] {
            self.interrupt();
        }
    }
}

#[test]
fn interrupt_overwrites_the_half_written_frame() {
    let task = Fake::new(256);
    let (before, after) = (Rec::<2>::new(), Rec::<1>::new());
    task.fgraph.register(before).unwrap();
    let interrupted = leak(Interrupted {
        inner: task.other_stack(),
        depth: AtomicUsize::new(0),
    });
    task.fgraph.register(interrupted).unwrap();
    task.fgraph.register(after).unwrap();
    task.nest(0, 2);
    let inner = "+100 +101 +102 -102 -101 -100";
    let expected = format!("+0 {inner} +1 {inner} {inner} -1 {inner} -0");
    assert_eq!(before.fake(), expected);
    let expected = format!("{inner} +0 {inner} +1 -1 {inner} -0 {inner}");
    assert_eq!(after.fake(), expected);
    assert_eq!(task.stack.counters(), Default::default());
    assert_eq!(task.stack.depth(), 0);
}

#[test]
fn full_by_data() {
    // Room for the frame, not for the data; then for one's data, not the
    // other's.
    for (words, first, second) in [
        (NEAR_WORDS, "", ""),
        (NEAR_WORDS + 2, "+0 -0", ""),
        (NEAR_WORDS + 4, "+0 -0", ""),
        (NEAR_WORDS + 6, "+0 -0", "+0 -0"),
    ] {
        let task = Fake::new(words);
        let (one, three, none) = (Rec::<1>::new(), Rec::<3>::new(), Rec::<0>::new());
        let ids = (
            task.fgraph.register(one).unwrap(),
            task.fgraph.register(three).unwrap(),
        );
        task.fgraph.register(none).unwrap();
        task.nest(0, 1);
        assert_eq!(one.fake(), first, "{words} words");
        assert_eq!(three.fake(), second, "{words} words");
        assert_eq!(none.fake(), "+0 -0", "{words} words");
        let missed = |events: &str| u32::from(events.is_empty());
        assert_eq!(task.fgraph.missed(ids.0), missed(first));
        assert_eq!(task.fgraph.missed(ids.1), missed(second));
    }
}

#[test]
fn deepest_frame_reaches_the_last_words() {
    const CANARY: usize = 0xdead_beef;
    for len in 0..40 {
        let all = Box::leak(vec![CANARY; len + 16].into_boxed_slice());
        let at = all.as_mut_ptr();
        // SAFETY: in bounds, and only the canaries are read beside it.
        let words = unsafe { core::slice::from_raw_parts_mut(at.add(8), len) };
        let task = Fake::new(8);
        let stack = leak(RetStack::new());
        stack
            .attach(words, task.slot(4000) as usize..task.slot(0) as usize + 8)
            .unwrap();
        host::replace_current(Some(stack));
        let (one, two, none) = (Rec::<1>::new(), Rec::<2>::new(), Rec::<0>::new());
        task.fgraph.register(one).unwrap();
        task.fgraph.register(two).unwrap();
        task.fgraph.register(none).unwrap();
        task.nest(0, 40);
        // Filled, but for a word that is no frame.
        let used = stack.high_water();
        assert!(used <= len && used + 1 >= len, "{used} of {len}");
        one.events();
        two.events();
        none.events();
        for i in (0..8).chain(8 + len..len + 16) {
            // SAFETY: in bounds.
            assert_eq!(unsafe { *at.add(i) }, CANARY, "word {i} around {len}");
        }
    }
}

#[test]
fn return_with_no_frame_hangs() {
    let task = Fake::new(64);
    let rec = Rec::<1>::new();
    let id = task.fgraph.register(rec).unwrap();
    assert_eq!(task.leave_at(3), None);
    assert_eq!(task.stack.counters().strays, 1);
    // While it holds frames a stack can not be taken away.
    assert!(task.enter(0));
    // SAFETY: the task is the caller.
    let detached = unsafe { task.stack.detach() };
    assert_eq!(detached.map(|words| words.len()), Err(DetachError::InUse));
    // Another slot's return does not take this one's frame.
    assert_eq!(task.leave_at(3), None);
    task.fgraph.unregister(id).unwrap();
    task.leave(0);
    // SAFETY: the task is the caller.
    assert!(unsafe { task.stack.detach() }.is_ok());
    assert_eq!(task.leave_at(0), None);
    assert_eq!(rec.fake(), "+0");
}

/// At a task's end, an interrupt calls traced functions.
struct AtExit {
    task: Fake,
    traced: AtomicUsize,
}

// SAFETY: one thread uses it.
unsafe impl Sync for AtExit {}

impl Callback for AtExit {
    type Frame = usize;

    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        Some(call.func())
    }

    fn exit(&self, _: Exit<'_, usize>, _: usize) {
        for context in [Context::Interrupt, Context::Nmi] {
            let traced = host::in_context(context, || self.task.enter(50));
            self.traced.fetch_add(usize::from(traced), Relaxed);
        }
    }
}

#[test]
fn task_memory_freed_while_an_interrupt_uses_it() {
    let task = Fake::new(64);
    let at_exit = leak(AtExit {
        task: task.other_stack(),
        traced: AtomicUsize::new(0),
    });
    let rec = Rec::<1>::new();
    task.fgraph.register(at_exit).unwrap();
    task.fgraph.register(rec).unwrap();
    (0..3).for_each(|n| assert!(task.enter(n)));
    // SAFETY: the made-up calls do not return.
    let words = unsafe { task.fgraph.exit_task(task.stack) }.unwrap();
    assert_eq!(words.len(), 64);
    assert_eq!(rec.fake(), "+0 +1 +2 x2 x1 x0");
    assert_eq!(at_exit.traced.load(Relaxed), 0);
    // Unreachable: the words may now be anybody's.
    // SAFETY: they are given back.
    unsafe { words.cast::<usize>().write_bytes(0xff, 64) };
    assert!(!task.stack.is_attached());
    assert!(!task.enter(0));
    assert_eq!(task.stack.frames().next(), None);
    // SAFETY: no call is in flight.
    assert!(unsafe { task.fgraph.exit_task(task.stack) }.is_err());
}

#[test]
fn new_task_inherits_frames() {
    let parent = Fake::new(64);
    let rec = Rec::<1>::new();
    parent.fgraph.register(rec).unwrap();
    (0..3).for_each(|n| assert!(parent.enter(n)));
    // A child's words are a copy of its parent's, as they lie in memory.
    // SAFETY: the made-up calls do not return.
    let words = unsafe { parent.fgraph.exit_task(parent.stack) }.unwrap();
    rec.fake();
    let child = Fake::on(parent.fgraph, 0);
    let stack = leak(RetStack::new());
    // SAFETY: given back above, and initialised.
    let words = unsafe { &mut *words.as_ptr() };
    assert!(words.iter().any(|&word| word != 0));
    let low = child.slot(4000) as usize;
    stack.attach(words, low..low + 32768).unwrap();
    host::replace_current(Some(stack));
    assert_eq!((stack.depth(), stack.high_water()), (0, 0));
    assert_eq!(stack.counters(), Default::default());
    assert_eq!(child.leave_at(2), None);
    child.nest(5, 6);
    assert_eq!(rec.events()[0].depth, 0);
}

#[inline(never)]
fn add_seven(n: usize) -> usize {
    black_box(n) + 7
}

#[test]
fn idle_task_without_a_stack_faults() {
    let patched = patched(64);
    let rec = Rec::<1>::new();
    let follow = patched.follow(rec, &[add_seven as fn(usize) -> usize as usize]);
    let idle = std::thread::spawn(|| (add_seven(1), Host::fgraph().scope(1, 2)).0);
    assert_eq!(idle.join().unwrap(), 8);
    assert_eq!(rec.fake(), "");
    // A stack that has not got its words yet, and one with none.
    for empty in [leak(RetStack::new()), leak(RetStack::new())] {
        let own = host::replace_current(Some(empty));
        assert_eq!(add_seven(2), 9);
        empty.attach(&mut [], 0..0).unwrap();
        assert_eq!(add_seven(3), 10);
        host::replace_current(own);
        assert_eq!(empty.counters().overruns, 1);
    }
    assert_eq!(FGRAPH.missed(follow.id), 2);
    assert_eq!(rec.events(), []);
}

#[test]
fn task_created_while_tracing_is_on_is_never_traced() {
    let patched = patched(64);
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[add_seven as fn(usize) -> usize as usize]);
    let late = std::thread::spawn(|| {
        let before = add_seven(1);
        host::attach(64);
        let after = add_seven(2);
        host::exit();
        (before, after)
    });
    assert_eq!(late.join().unwrap(), (8, 9));
    let what: String = rec.events().iter().map(|event| event.what).collect();
    assert_eq!(what, "+-");
}

#[test]
fn full_stack_counts_no_miss() {
    let task = Fake::new(words_for(1, &[2]));
    let (data, none, other) = (Rec::<2>::new(), Rec::<0>::new(), Rec::<0>::new());
    let register = |fgraph: &'static Fgraph<Host>| {
        (
            fgraph.register(data).unwrap(),
            fgraph.register(none).unwrap(),
            fgraph.register(other).unwrap(),
        )
    };
    let ids = register(task.fgraph);
    assert!(task.enter_at(0, 0, 0b011));
    // No room for a frame: each that wanted it is told, and nobody else.
    for n in 1..6 {
        assert!(!task.enter_at(n, n, 0b011));
    }
    assert!(!task.enter_at(6, 6, 0b010));
    task.leave(0);
    let missed = [ids.0, ids.1, ids.2].map(|id| task.fgraph.missed(id));
    assert_eq!(missed, [5, 6, 0]);
    assert_eq!(data.fake(), "+0 -0");
    assert_eq!(none.fake(), "+0 -0");
}

#[test]
fn depth_counts_other_users_frames() {
    let task = Fake::new(256);
    let all = Rec::<1>::new();
    let even = Rec::<0>::which(|func| func / 16 % 2 == Fake::func(0) / 16 % 2);
    task.fgraph.register(all).unwrap();
    task.fgraph.register(even).unwrap();
    task.nest(0, 6);
    let depths = |events: Vec<crate::fixture::Event>| -> Vec<usize> {
        events.iter().map(|event| event.depth).collect()
    };
    assert_eq!(depths(all.events()), [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0]);
    assert_eq!(depths(even.events()), [0, 1, 2, 2, 1, 0]);
}
