//! Cases of control flow: panics, tail calls, interrupt handlers.

use std::cell::Cell;
use std::hint::black_box;

use fgraph::ret_stack::words_for;

use crate::fixture::{Event, Fake, Rec, catch, names, patched};
use crate::host::FGRAPH;

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
