//! Cases of callbacks that come, go and refuse.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::{RegisterError, UnregisterError};
use fgraph::ret_stack::NEAR_WORDS;
use fgraph::{Callback, Context, Entry, Exit, Fgraph};

use crate::fixture::{Fake, Rec, allocations, leak, names, patched};
use crate::host::{self, FGRAPH, Host};

#[test]
fn slot_owner_never_gets_former_owners_returns() {
    let task = Fake::new(64);
    let (former, later) = (Rec::<2>::new(), Rec::<2>::new());
    let id = task.fgraph.register(former).unwrap();
    assert!(task.enter(0));
    task.fgraph.unregister(id).unwrap();
    let id = task.fgraph.register(later).unwrap();
    assert_eq!(id.slot(), 0);
    assert!(task.enter(1));
    task.leave(1);
    task.leave(0);
    assert_eq!(former.fake(), "+0");
    assert_eq!(later.fake(), "+1 -1");
}

#[test]
fn sleeping_call_returns_to_the_200000th_owner() {
    let task = Fake::new(64);
    let (stays, goes) = (Rec::<1>::new(), Rec::<3>::new());
    let mut id = task.fgraph.register(goes).unwrap();
    task.fgraph.register(stays).unwrap();
    assert!(task.enter(0));
    for _ in 0..200_000 {
        task.fgraph.unregister(id).unwrap();
        // The very same object in the very same slot.
        id = task.fgraph.register(goes).unwrap();
        assert_eq!(id.slot(), 0);
    }
    task.leave(0);
    assert_eq!(goes.fake(), "+0");
    assert_eq!(stays.fake(), "+0 -0");
    task.nest(0, 1);
    assert_eq!(goes.fake(), "+0 -0");
}

#[test]
fn return_after_unregister_finds_a_null_callback() {
    let task = Fake::new(64);
    let recs = [Rec::<2>::new(), Rec::<2>::new(), Rec::<2>::new()];
    let ids = recs.map(|rec| task.fgraph.register(rec).unwrap());
    for (gone, id) in ids.into_iter().enumerate() {
        assert!(task.enter(0));
        assert!(task.enter(1));
        task.fgraph.unregister(id).unwrap();
        task.leave(1);
        task.leave(0);
        for (i, rec) in recs.iter().enumerate() {
            let expected = match i {
                _ if i < gone => "",
                _ if i == gone => "+0 +1",
                _ => "+0 +1 -1 -0",
            };
            assert_eq!(rec.fake(), expected, "{i} when {gone} has gone");
        }
    }
    assert!(!task.enter(0));
}

#[test]
fn exit_without_an_accepted_entry() {
    let task = Fake::new(64);
    let none = Rec::<1>::which(|_| false);
    let some = Rec::<1>::which(|func| func != Fake::func(1));
    task.fgraph.register(none).unwrap();
    task.fgraph.register(some).unwrap();
    task.nest(0, 3);
    assert_eq!(none.fake(), "");
    assert_eq!(some.fake(), "+0 +2 -2 -0");
    assert!(!task.enter(1));
}

#[test]
fn slot_0_gets_returns_that_it_refused() {
    // Every set of the 16 slots that is a run, and its complement.
    static ACCEPT: [AtomicBool; 16] = [const { AtomicBool::new(false) }; 16];
    struct One(usize, AtomicUsize, AtomicUsize);
    impl Callback for One {
        type Frame = ();
        fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
            self.1.fetch_add(1, Relaxed);
            ACCEPT[self.0].load(Relaxed).then_some(())
        }
        fn exit(&self, _: Exit<'_, ()>, (): ()) {
            self.2.fetch_add(1, Relaxed);
        }
    }
    let task = Fake::new(64);
    let all: [&'static One; 16] =
        core::array::from_fn(|i| leak(One(i, AtomicUsize::new(0), AtomicUsize::new(0))));
    for one in all {
        task.fgraph.register(one).unwrap();
    }
    for set in (0..16).flat_map(|from| (from..16).map(move |to| (1_usize << to) - (1 << from))) {
        for set in [set, !set & 0xffff] {
            for (slot, accept) in ACCEPT.iter().enumerate() {
                accept.store(set & (1 << slot) != 0, Relaxed);
            }
            task.nest(0, 1);
            for one in all {
                let counts = (one.1.swap(0, Relaxed), one.2.swap(0, Relaxed));
                assert_eq!(counts, (1, set >> one.0 & 1), "slot {} of {set:#x}", one.0);
            }
        }
    }
}

#[inline(never)]
pub fn outer(n: usize) -> usize {
    black_box(inner(black_box(n) + 1)) + 2
}

#[inline(never)]
fn inner(n: usize) -> usize {
    black_box(n) * 3
}

pub fn functions() -> [(usize, &'static str); 2] {
    [
        (outer as fn(usize) -> usize as usize, "outer"),
        (inner as fn(usize) -> usize as usize, "inner"),
    ]
}

/// A callback that runs code at each entry, some of it as an interrupt.
struct Running {
    run: fn(),
    interrupt: fn(),
    calls: AtomicUsize,
}

impl Callback for Running {
    type Frame = usize;

    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        self.calls.fetch_add(1, Relaxed);
        (self.run)();
        if call.context() == Context::Task {
            host::in_context(Context::Interrupt, self.interrupt);
        }
        Some(call.func())
    }

    fn exit(&self, _: Exit<'_, usize>, _: usize) {
        (self.run)();
    }
}

fn call_outer() {
    black_box(outer(black_box(1)));
}

#[test]
fn traced_callback_recurses_until_the_stack_ends() {
    let patched = patched(256);
    let rec = Rec::<1>::new();
    let funcs = functions();
    let running = leak(Running {
        run: call_outer,
        interrupt: || {},
        calls: AtomicUsize::new(0),
    });
    let _first = patched.follow(running, &[funcs[0].0]);
    let _second = patched.follow(rec, &[funcs[0].0, funcs[1].0]);
    assert_eq!(outer(1), 8);
    assert_eq!(running.calls.load(Relaxed), 1);
    assert_eq!(rec.take(names(&funcs)), "+outer +inner -inner -outer");
    // Entry and exit each called both functions.
    assert_eq!(patched.stack.counters().recursions, 4);
}

#[test]
fn interrupt_inside_a_callback_is_not_traced() {
    let patched = patched(256);
    let rec = Rec::<1>::new();
    let funcs = functions();
    let running = leak(Running {
        run: || {},
        interrupt: call_outer,
        calls: AtomicUsize::new(0),
    });
    let _first = patched.follow(running, &[funcs[0].0]);
    let _second = patched.follow(rec, &[funcs[0].0, funcs[1].0]);
    assert_eq!(outer(1), 8);
    assert_eq!(running.calls.load(Relaxed), 2);
    let once = "+outer +inner -inner -outer";
    assert_eq!(rec.take(names(&funcs)), format!("{once} {once}"));
    assert_eq!(patched.stack.counters(), Default::default());
}

#[test]
fn one_users_filter_applies_to_all() {
    let patched = patched(256);
    let (a, b, c) = (Rec::<1>::new(), Rec::<0>::new(), Rec::<2>::new());
    let funcs = functions();
    let _a = patched.follow(a, &[funcs[0].0]);
    let _b = patched.follow(b, &[funcs[1].0]);
    {
        let _c = patched.follow(c, &[funcs[0].0, funcs[1].0]);
        outer(1);
    }
    outer(2);
    assert_eq!(a.take(names(&funcs)), "+outer -outer +outer -outer");
    assert_eq!(b.take(names(&funcs)), "+inner -inner +inner -inner");
    assert_eq!(c.take(names(&funcs)), "+outer +inner -inner -outer");
}

#[test]
fn filter_that_matches_nothing_traces_everything() {
    let patched = patched(256);
    let rec = Rec::<1>::new();
    let follow = patched.follow(rec, &[]);
    outer(1);
    assert_eq!(patched.patch.enabled(follow.id).count(), 0);
    assert_eq!(patched.patch.enable(follow.id, |_| false), Ok(0));
    outer(1);
    assert_eq!(rec.events(), []);
}

#[test]
fn allocation_at_each_hit() {
    struct Data;
    impl Callback for Data {
        type Frame = [usize; 4];
        fn entry(&self, call: Entry<'_, [usize; 4]>) -> Option<[usize; 4]> {
            let parent = call.parent().map_or(0, |parent| parent.get()[0]);
            Some([parent + 1, call.depth(), call.caller(), call.func()])
        }
        fn exit(&self, call: Exit<'_, [usize; 4]>, [depth, ..]: [usize; 4]) {
            if let Some(parent) = call.parent() {
                parent.set([depth - 1, 0, 0, 0]);
            }
        }
    }
    static DATA: Data = Data;
    let patched = patched(64);
    let funcs = functions();
    let _follow = patched.follow(&DATA, &[funcs[0].0, funcs[1].0]);
    let before = allocations();
    for n in 0..1000 {
        black_box(outer(n));
        drop(host::FGRAPH.scope(1, 2));
    }
    // SAFETY: no stack was freed.
    unsafe { FGRAPH.restore() };
    assert_eq!(allocations(), before);
}

#[test]
fn registered_but_not_yet_active() {
    let task = Fake::new(64);
    let rec = Rec::<1>::new();
    // Right after registering, on the CPU that asked; not in calls that had
    // begun; not after unregistering.
    let idle = Rec::<1>::new();
    task.fgraph.register(idle).unwrap();
    assert!(task.enter(0));
    let id = task.fgraph.register(rec).unwrap();
    assert!(task.enter(1));
    task.fgraph.unregister(id).unwrap();
    assert!(task.enter(2));
    (0..3).rev().for_each(|n| task.leave(n));
    assert_eq!(rec.fake(), "+1");
    assert_eq!(idle.fake(), "+0 +1 +2 -2 -1 -0");
}

#[test]
fn empty_reservation_writes_a_header() {
    #[derive(Clone, Copy)]
    struct Empty;
    impl fgraph::FrameData for Empty {
        type Words = [usize; 0];
        fn to_words(self) -> [usize; 0] {
            []
        }
        fn from_words([]: [usize; 0]) -> Self {
            Self
        }
    }
    struct Nothing(AtomicUsize);
    impl Callback for Nothing {
        type Frame = Empty;
        fn entry(&self, _: Entry<'_, Empty>) -> Option<Empty> {
            Some(Empty)
        }
        fn exit(&self, call: Exit<'_, Empty>, _: Empty) {
            self.0.fetch_add(1 + call.depth(), Relaxed);
        }
    }
    let task = Fake::new(2 * NEAR_WORDS);
    let nothing = leak(Nothing(AtomicUsize::new(0)));
    let id = task.fgraph.register(nothing).unwrap();
    task.nest(0, 2);
    assert_eq!(nothing.0.load(Relaxed), 3);
    assert_eq!(task.stack.high_water(), 2 * NEAR_WORDS);
    assert_eq!(task.fgraph.missed(id), 0);
}

#[test]
fn two_reservations_in_one_entry() {
    // The type gives one; the largest comes back whole, beside the others'.
    let task = Fake::new(256);
    let recs = (Rec::<15>::new(), Rec::<1>::new(), Rec::<15>::new());
    task.fgraph.register(recs.0).unwrap();
    task.fgraph.register(recs.1).unwrap();
    task.fgraph.register(recs.2).unwrap();
    task.nest(0, 3);
    let expected = "+0 +1 +2 -2 -1 -0";
    assert_eq!([recs.0.fake(), recs.1.fake(), recs.2.fake()], [expected; 3]);
}

#[test]
fn failed_registration_leaves_its_flag() {
    let fgraph: &'static Fgraph<Host, 2> = leak(Fgraph::new());
    let recs = [Rec::<1>::new(), Rec::<1>::new(), Rec::<1>::new()];
    let first = fgraph.register(recs[0]).unwrap();
    assert_eq!(
        fgraph.register(recs[0]),
        Err(RegisterError::AlreadyRegistered)
    );
    let second = fgraph.register(recs[1]).unwrap();
    for _ in 0..3 {
        assert_eq!(fgraph.register(recs[2]), Err(RegisterError::Full));
    }
    fgraph.unregister(first).unwrap();
    assert_eq!(
        fgraph.unregister(first),
        Err(UnregisterError::NotRegistered)
    );
    let third = fgraph.register(recs[2]).unwrap();
    assert_eq!((third.slot(), second.slot()), (0, 1));
    assert!(!fgraph.is_registered(first));
    assert!(fgraph.is_registered(third));
}

/// Knows its own kind; another's object has another number in its place.
struct Typed<const K: usize>(usize);
static MIXED: AtomicUsize = AtomicUsize::new(0);
static SEEN: AtomicUsize = AtomicUsize::new(0);

impl<const K: usize> Typed<K> {
    fn check(&self, data: usize) {
        SEEN.fetch_add(1, Relaxed);
        if self.0 != K || data != K {
            MIXED.fetch_add(1, Relaxed);
        }
    }
}

impl<const K: usize> Callback for Typed<K> {
    type Frame = usize;
    fn entry(&self, _: Entry<'_, usize>) -> Option<usize> {
        self.check(K);
        Some(self.0)
    }
    fn exit(&self, _: Exit<'_, usize>, data: usize) {
        self.check(data);
    }
}

#[test]
fn callback_gets_anothers_object() {
    let fgraph: &'static Fgraph<Host> = leak(Fgraph::new());
    static DONE: AtomicBool = AtomicBool::new(false);
    let caller = std::thread::spawn(move || {
        let task = Fake::on(fgraph, 256);
        while !DONE.load(Relaxed) {
            task.nest(0, 3);
        }
        task.stack.counters()
    });
    let (one, two, three) = (
        leak(Typed::<1>(1)),
        leak(Typed::<2>(2)),
        leak(Typed::<3>(3)),
    );
    let mut rounds = 0;
    while rounds < 20_000 || SEEN.load(Relaxed) < 20_000 {
        let a = fgraph.register(one).unwrap();
        let b = fgraph.register(two).unwrap();
        fgraph.unregister(a).unwrap();
        let c = fgraph.register(three).unwrap();
        fgraph.unregister(b).unwrap();
        fgraph.unregister(c).unwrap();
        rounds += 1;
    }
    DONE.store(true, Relaxed);
    assert_eq!(caller.join().unwrap(), Default::default());
    assert_eq!(MIXED.load(Relaxed), 0);
}

#[test]
fn fast_path_of_one_skips_its_filter() {
    let task = Fake::new(256);
    let odd = Rec::<1>::which(|func| func != Fake::func(1));
    let (b, c) = (Rec::<1>::new(), Rec::<0>::new());
    let expected = "+0 +2 -2 -0";
    let check = |words: usize| {
        task.nest(0, 3);
        assert_eq!(odd.fake(), expected);
        assert!(task.stack.high_water() <= words);
    };
    let a = task.fgraph.register(odd).unwrap();
    check(3 * 4);
    let ids = [
        task.fgraph.register(b).unwrap(),
        task.fgraph.register(c).unwrap(),
    ];
    check(3 * 6);
    task.fgraph.unregister(ids[0]).unwrap();
    check(3 * 6);
    task.fgraph.unregister(ids[1]).unwrap();
    check(3 * 6);
    // The first goes and comes back behind another.
    task.fgraph.unregister(a).unwrap();
    let id = task.fgraph.register(b).unwrap();
    task.fgraph.register(odd).unwrap();
    check(3 * 6);
    task.fgraph.unregister(id).unwrap();
    check(3 * 6);
}
