//! Cases of control flow: tail calls, panics, coroutines, switched tasks.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::Call;
use fgraph::ret_stack::words_for;
use fgraph::{Fgraph, Platform, RetStack};

use crate::fixture::{Event, Fake, Rec, catch, leak, names, patched};
use crate::host::{self, FGRAPH};

/// Falls `n` calls deep, then panics.
#[inline(never)]
fn fall(n: usize) -> usize {
    assert!(n > 0, "fallen");
    black_box(fall(black_box(n - 1))) + 1
}

/// Catches what falls through it.
#[inline(never)]
fn catcher(n: usize) -> bool {
    catch(|| fall(n)).is_err()
}

/// A destructor that calls traced code while the panic unwinds.
struct Landing;

impl Drop for Landing {
    fn drop(&mut self) {
        black_box(leaf(black_box(1)));
    }
}

#[inline(never)]
fn leaf(n: usize) -> usize {
    black_box(n) ^ 1
}

#[inline(never)]
fn fall_with_landing(n: usize) -> usize {
    let _landing = Landing;
    black_box(fall(black_box(n))) + 2
}

fn panic_across(frames: usize) {
    let patched = patched(words_for(frames + 64, &[1, 2]));
    let (fall, catcher) = (
        fall as fn(usize) -> usize as usize,
        catcher as fn(usize) -> bool as usize,
    );
    let leaf = leaf as fn(usize) -> usize as usize;
    let (one, two) = (Rec::<1>::new(), Rec::<2>::new());
    let _one = patched.follow(one, &[fall, catcher, leaf]);
    let _two = patched.follow(two, &[fall]);
    for _ in 0..3 {
        assert!(catcher_of(frames - 1));
        let check = |events: Vec<Event>| {
            let count = |what| {
                events
                    .iter()
                    .filter(|e| (e.what, e.func) == (what, fall))
                    .count()
            };
            assert_eq!([count('+'), count('!'), count('-')], [frames, frames, 0]);
            // Newest first.
            let slots = |what| {
                events
                    .iter()
                    .filter(move |e| e.what == what && e.func == fall)
            };
            let entered = slots('+').map(|e| e.slot);
            assert!(entered.eq(slots('!').map(|e| e.slot).rev()));
        };
        let events = one.events();
        // The catcher's own slot was restored too, so its frame ended with
        // the others, and it returned to its caller all the same.
        let ends: String = events
            .iter()
            .filter(|e| e.func == catcher)
            .map(|e| e.what)
            .collect();
        assert_eq!(ends, "+!");
        check(events);
        check(two.events());
        assert_eq!(patched.stack.depth(), 0);
        // Tracing goes on.
        assert_eq!(black_box(super::flow::leaf(black_box(4))), 5);
        let what: String = one.events().iter().map(|e| e.what).collect();
        assert_eq!(what, "+-");
    }
    assert!(!patched.stack.is_inside());
}

#[inline(never)]
fn catcher_of(n: usize) -> bool {
    black_box(catcher(black_box(n)))
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn panic_through_a_hooked_frame_aborts() {
    panic_across(1);
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn panic_through_10_hooked_frames_aborts() {
    panic_across(10);
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn panic_through_1000_hooked_frames_aborts() {
    panic_across(1000);
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn destructors_of_a_panic_are_not_traced() {
    let patched = patched(4096);
    let funcs = [
        (fall as fn(usize) -> usize as usize, "fall"),
        (fall_with_landing as fn(usize) -> usize as usize, "landing"),
        (leaf as fn(usize) -> usize as usize, "leaf"),
    ];
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &funcs.map(|(func, _)| func));
    assert!(catch(|| fall_with_landing(1)).is_err());
    let expected = "+landing +fall +fall !fall !fall !landing +leaf -leaf";
    assert_eq!(rec.take(names(&funcs)), expected);
}

#[inline(never)]
fn deep(n: usize, restore: bool) -> String {
    if black_box(n) == 0 {
        if restore {
            let before = shown_frames();
            // SAFETY: no stack was freed.
            let ended = unsafe { FGRAPH.restore() };
            assert_eq!(ended, 5);
            // The unwinder goes on to the end of the thread.
            let after = shown_frames();
            assert!(before < after && after >= 5, "{before} {after}");
        }
        return String::new();
    }
    let mut text = deep(n - 1, restore);
    text.push(char::from(b'0' + n as u8));
    text
}

/// How many frames the unwinder finds.
fn shown_frames() -> usize {
    let text = std::backtrace::Backtrace::force_capture().to_string();
    text.lines()
        .filter(|line| line.trim_start().contains(": "))
        .count()
}

#[test]
fn restored_slots_still_hold_the_trampoline() {
    let patched = patched(256);
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[deep as fn(usize, bool) -> String as usize]);
    assert_eq!(deep(4, true), "1234");
    let what: String = rec.events().iter().map(|e| e.what).collect();
    assert_eq!(what, "+++++!!!!!");
    assert_eq!(deep(1, false), "1");
    let what: String = rec.events().iter().map(|e| e.what).collect();
    assert_eq!(what, "++--");
}

/// Functions that call the next one as their last act, by a jump; the lowest
/// stack pointer is kept.
mod tail {
    use super::*;

    thread_local! {
        pub static LOWEST: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    #[inline(always)]
    fn note() {
        let here: usize;
        // SAFETY: reads a register.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack));
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("mov {}, sp", out(reg) here, options(nomem, nostack));
        }
        LOWEST.set(LOWEST.get().min(here));
    }

    /// Two functions that jump to one another until `n` is 0.
    #[inline(never)]
    pub fn ping(n: usize, sum: usize) -> usize {
        note();
        if n == 0 {
            return sum;
        }
        become pong(n - 1, sum.wrapping_mul(3))
    }

    #[inline(never)]
    pub fn pong(n: usize, sum: usize) -> usize {
        note();
        if n == 0 {
            return sum + 1;
        }
        become ping(n - 1, sum.wrapping_mul(5) + 1)
    }
}

#[test]
fn tail_call_shows_the_trampoline_as_caller() {
    use tail::{LOWEST, ping, pong};
    const CALLS: usize = 1000;
    let patched = patched(words_for(CALLS + 8, &[1]));
    let call = |calls| ping(black_box(calls), 1);
    let untraced = black_box(call)(CALLS);
    let lowest = LOWEST.replace(usize::MAX);
    let again = black_box(call)(2);
    // They are tail calls: the stack is as deep for two as for a thousand.
    assert_eq!((LOWEST.replace(usize::MAX), again), (lowest, 16));
    let rec = Rec::<1>::new();
    let (ping_at, pong_at) = (
        ping as fn(usize, usize) -> usize as usize,
        pong as fn(usize, usize) -> usize as usize,
    );
    let _follow = patched.follow(rec, &[ping_at, pong_at]);
    assert_eq!(black_box(call)(CALLS), untraced);
    assert_eq!(LOWEST.replace(usize::MAX), lowest, "constant real stack");
    let events = rec.events();
    assert_eq!(events.len(), 2 * (CALLS + 1));
    let (entries, exits) = events.split_at(CALLS + 1);
    for (i, entry) in entries.iter().enumerate() {
        assert_eq!(entry.func, [ping_at, pong_at][i % 2]);
        assert_eq!((entry.what, entry.depth), ('+', i));
        assert_eq!(
            (entry.caller, entry.slot),
            (entries[0].caller, entries[0].slot)
        );
        let exit = &exits[CALLS - i];
        assert_eq!(
            *exit,
            Event {
                what: '-',
                ..*entry
            }
        );
    }
    assert_eq!(patched.stack.depth(), 0);
    assert_eq!(patched.stack.counters(), Default::default());
}

#[test]
fn one_exit_is_reported_for_two_tail_calls() {
    let task = Fake::new(64);
    let (all, some) = (
        Rec::<1>::new(),
        Rec::<1>::which(|func| func != Fake::func(11)),
    );
    task.fgraph.register(all).unwrap();
    task.fgraph.register(some).unwrap();
    assert!(task.enter(5));
    assert!(task.enter(9));
    for n in 10..13 {
        assert!(task.tail(n, 9));
    }
    assert!(task.enter(20));
    task.leave(20);
    assert_eq!(task.leave_at(9), Some(Fake::ret(9)));
    task.leave(5);
    let events = all.events();
    assert!(
        events
            .iter()
            .filter(|e| (9..13).any(|n| e.func == Fake::func(n)))
            .all(|e| e.caller == Fake::ret(9))
    );
    assert_eq!(events.len(), 12);
    assert_eq!(some.fake(), "+5 +9 +10 +12 +20 -20 -12 -10 -9 -5");
}

#[test]
fn full_stack_in_a_tail_call_loses_the_caller() {
    let task = Fake::new(words_for(2, &[1]));
    let rec = Rec::<1>::new();
    task.fgraph.register(rec).unwrap();
    assert!(task.enter(0));
    assert!(task.tail(1, 0));
    assert!(!task.tail(2, 0));
    assert!(!task.tail(3, 0));
    assert_eq!(task.leave_at(0), Some(Fake::ret(0)));
    assert_eq!(rec.fake(), "+0 +1 -1 -0");
}

/// A coroutine: a stack of its own, entered and left by a switch.
mod coroutine {
    use super::*;
    use std::arch::naked_asm;

    /// Words that [`switch`] leaves on a stack, and which is the address to go
    /// to. On x86-64 a return address that nobody uses comes after it: aligned
    /// as after a call.
    const SAVED: (usize, usize) = if cfg!(target_arch = "x86_64") {
        (8, 6)
    } else {
        (20, 1)
    };

    /// Saves the stack pointer in `*from` and goes on where `to` was saved.
    #[cfg(target_arch = "aarch64")]
    #[unsafe(naked)]
    pub unsafe extern "C" fn switch(from: *mut usize, to: usize) {
        naked_asm!(
            "stp x29, x30, [sp, #-160]!",
            "stp x19, x20, [sp, #16]",
            "stp x21, x22, [sp, #32]",
            "stp x23, x24, [sp, #48]",
            "stp x25, x26, [sp, #64]",
            "stp x27, x28, [sp, #80]",
            "stp d8, d9, [sp, #96]",
            "stp d10, d11, [sp, #112]",
            "stp d12, d13, [sp, #128]",
            "stp d14, d15, [sp, #144]",
            "mov x9, sp",
            "str x9, [x0]",
            "mov sp, x1",
            "ldp d14, d15, [sp, #144]",
            "ldp d12, d13, [sp, #128]",
            "ldp d10, d11, [sp, #112]",
            "ldp d8, d9, [sp, #96]",
            "ldp x27, x28, [sp, #80]",
            "ldp x25, x26, [sp, #64]",
            "ldp x23, x24, [sp, #48]",
            "ldp x21, x22, [sp, #32]",
            "ldp x19, x20, [sp, #16]",
            "ldp x29, x30, [sp], #160",
            "ret",
        )
    }

    /// Saves the stack pointer in `*from` and goes on where `to` was saved.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(naked)]
    pub unsafe extern "C" fn switch(from: *mut usize, to: usize) {
        naked_asm!(
            "push rbp",
            "push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "mov [rdi], rsp",
            "mov rsp, rsi",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
        )
    }

    pub struct Coroutine {
        pub own: Cell<usize>,
        pub resumer: Cell<usize>,
        pub shadow: &'static RetStack,
        pub other: Cell<Option<&'static RetStack>>,
    }

    thread_local! {
        pub static RUNNING: Cell<Option<&'static Coroutine>> = const { Cell::new(None) };
    }

    impl Coroutine {
        pub fn new(body: extern "C" fn() -> !) -> &'static Self {
            let stack: &'static mut [u128] = Box::leak(vec![0; 4096].into_boxed_slice());
            let range = stack.as_ptr_range();
            let shadow = leak(RetStack::new());
            let words = Box::leak(vec![0; 256].into_boxed_slice());
            let bounds = range.start as usize..range.end as usize;
            shadow.attach(words, bounds.clone()).unwrap();
            let (words, entry) = SAVED;
            let top = (bounds.end - words * size_of::<usize>()) as *mut usize;
            // SAFETY: words at the end of the leaked stack.
            unsafe {
                top.write_bytes(0, words);
                top.add(entry).write(body as usize);
            }
            leak(Self {
                own: Cell::new(top as usize),
                resumer: Cell::new(0),
                shadow,
                other: Cell::new(None),
            })
        }

        /// Runs it until it suspends. The shadow stack goes with the stack.
        #[inline(never)]
        pub fn resume(&'static self) {
            RUNNING.set(Some(self));
            self.other.set(host::replace_current(Some(self.shadow)));
            // SAFETY: saved by `new` or `suspend`.
            unsafe { switch(self.resumer.as_ptr(), self.own.get()) };
        }

        #[inline(never)]
        pub fn suspend(&'static self) {
            host::replace_current(self.other.get());
            // SAFETY: saved by `resume`.
            unsafe { switch(self.own.as_ptr(), self.resumer.get()) };
        }
    }

    #[inline(never)]
    pub fn step(n: usize) -> usize {
        let sum = black_box(n) + 1;
        RUNNING.get().expect("in a coroutine").suspend();
        sum
    }

    pub static SUM: AtomicUsize = AtomicUsize::new(0);

    pub extern "C" fn body() -> ! {
        let mut n = 0;
        loop {
            n = black_box(twice(n));
            SUM.fetch_add(n, Relaxed);
        }
    }

    #[inline(never)]
    pub fn twice(n: usize) -> usize {
        step(n) + step(n)
    }
}

#[test]
fn coroutine_pops_anothers_frame() {
    use coroutine::{Coroutine, SUM, body, step, twice};
    #[inline(never)]
    fn driver(all: &[&'static Coroutine], depth: usize) -> usize {
        if depth > 0 {
            return driver(all, black_box(depth - 1)) + 1;
        }
        for _ in 0..4 {
            all.iter().for_each(|one| one.resume());
        }
        black_box(0)
    }
    let patched = patched(256);
    let all = [(); 3].map(|()| Coroutine::new(body));
    let funcs = [
        (step as fn(usize) -> usize as usize, "s"),
        (twice as fn(usize) -> usize as usize, "t"),
        (
            driver as fn(&[&'static Coroutine], usize) -> usize as usize,
            "d",
        ),
    ];
    let rec = Rec::<1>::new();
    let follow = patched.follow(rec, &funcs.map(|(func, _)| func));
    assert_eq!(driver(&all, 2), 2);
    // twice(0) = 2, then twice(2) has come to its second step, 3 + …
    assert_eq!(SUM.load(Relaxed), 3 * 2);
    let text = rec.take(names(&funcs));
    let again = |what: &str| [what; 3].join(" ");
    let expected = [
        "+d +d +d".to_string(),
        again("+t +s"),
        again("-s +s"),
        again("-s -t +t +s"),
        again("-s +s"),
        "-d -d -d".to_string(),
    ];
    assert_eq!(text, expected.join(" "));
    // Coroutines that are dropped while suspended end their frames.
    for one in all {
        assert_eq!(one.shadow.depth(), 2);
        // SAFETY: it is not resumed again.
        assert!(unsafe { FGRAPH.exit_task(one.shadow) }.is_ok());
    }
    assert_eq!(rec.take(names(&funcs)), again("xs xt"));
    drop(follow);
}

/// A platform that changes `current` inside a traced function.
struct Switching;

thread_local! {
    static TASKS: Cell<[Option<&'static RetStack>; 2]> = const { Cell::new([None; 2]) };
    static NOW: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: one thread; a stack that was left is found by the slot.
unsafe impl Platform for Switching {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        TASKS.get()[NOW.get()].map(f)
    }

    fn clock() -> u64 {
        0
    }

    fn owner<R>(slot: usize, f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        let other = TASKS.get()[1 - NOW.get()]?;
        other
            .frames()
            .any(|frame| frame.slot == slot)
            .then(|| f(other))
    }
}

#[test]
fn current_changes_before_the_stack_pointer() {
    let fgraph: &'static Fgraph<Switching> = leak(Fgraph::new());
    let mut real = [0_usize; 8];
    let base = &raw mut real[0] as usize;
    let stacks = [leak(RetStack::new()), leak(RetStack::new())];
    for stack in stacks {
        let words = Box::leak(vec![0; 64].into_boxed_slice());
        stack.attach(words, base..base + 64).unwrap();
    }
    TASKS.set(stacks.map(|stack| Some(stack as &'static RetStack)));
    let rec = Rec::<1>::new();
    fgraph.register(rec).unwrap();
    let enter = |n: usize| {
        let call = Call {
            func: Fake::func(n),
            ret: Fake::ret(n),
            slot: base + 8 * (7 - n),
            tail: false,
            registers: None,
        };
        // SAFETY: the slots are words of this test's.
        unsafe { fgraph.enter(&call, 1) }
    };
    // SAFETY: as above.
    let leave = |n: usize| unsafe { fgraph.leave(base + 8 * (7 - n), None) };
    assert!(enter(0));
    assert!(enter(1));
    // In function 1, the scheduler's, the other task becomes current.
    NOW.set(1);
    assert_eq!(leave(1), Some(Fake::ret(1)));
    assert_eq!(
        stacks.map(|stack| stack.counters().strays),
        [1, 0],
        "noticed"
    );
    assert!(enter(2));
    assert_eq!(leave(2), Some(Fake::ret(2)));
    NOW.set(0);
    assert_eq!(leave(0), Some(Fake::ret(0)));
    assert_eq!(rec.fake(), "+0 +1 -1 +2 -2 -0");
}

/// What the processor pushes for an interrupt.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Pushed([u64; 5]);

/// An interrupt's handler, as the compiler makes it.
#[cfg(target_arch = "x86_64")]
extern "x86-interrupt" fn handler(_: Pushed) {
    black_box(leaf(1));
}

#[cfg(target_arch = "x86_64")]
extern "x86-interrupt" fn handler_with_error(_: Pushed, error: u64) {
    black_box(leaf(error as usize));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn interrupt_abi_functions_are_hooked() {
    let patched = patched(64);
    let handlers = [
        handler as extern "x86-interrupt" fn(Pushed) as usize,
        handler_with_error as extern "x86-interrupt" fn(Pushed, u64) as usize,
    ];
    assert_ne!(handlers[0], handlers[1]);
    let own = |func: &usize| handlers.contains(func);
    assert_eq!(patched.patch.functions().filter(own).count(), 0);
    let follow = patched.follow_where(Rec::<1>::new(), |func| own(&func), 0);
    assert_eq!(patched.patch.enabled(follow.id).count(), 0);
    // They do have the padding: it is a choice.
    let listed = fgraph::patchable_functions!();
    let listed = |handler| listed.iter().any(|listed| listed + 16 == handler);
    assert!(handlers.into_iter().all(listed));
}
