//! An interrupt at every machine instruction.
//!
//! The trap flag makes a signal handler run before each instruction of an
//! operation. The handler is an interrupt: it walks the shadow stack, asks for
//! the return address of every live call, makes traced calls of its own, and
//! compares all with what it was before; NMIs do the same at each instruction
//! of the interrupt's calls. That no instruction is passed over is proven by
//! decoding each one: the next stop is where it leads. The operation then ends
//! as it does undisturbed: with the same result, events, words and counters,
//! by the same instructions.
//!
//! Each test says how many instructions it stopped at. Debug builds, which take
//! ten times the instructions, try fewer combinations.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "interrupted/bench.rs"]
mod bench;
#[path = "common/host.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod host;
#[path = "interrupted/keeper.rs"]
mod keeper;
#[path = "interrupted/left.rs"]
mod left;
#[path = "interrupted/operations.rs"]
mod operations;
#[path = "interrupted/owners.rs"]
mod owners;
#[path = "interrupted/real.rs"]
mod real;
#[path = "interrupted/step.rs"]
mod step;
#[path = "interrupted/watch.rs"]
mod watch;

use std::io::Write;

use fgraph::Context;
use fgraph::ret_stack::{NEAR_WORDS, WIDE_WORDS};

use bench::{Bench, Figures, Operation, ROOMY, SLOTS, THOROUGH, stub_address};
use operations::{interrupted_call, interrupted_last_call, interrupted_operations};
use real::Walker;
use step::{HandlerStack, handle_on};
use watch::{Known, UNKNOWN, Work, interrupt};

/// Sets of callbacks, told by the words that each keeps.
const CALLBACKS: [&[usize]; 9] = [
    &[],
    &[0],
    &[1],
    &[3],
    &[15],
    &[0, 3],
    &[0; 16],
    &[1; 16],
    &[0, 1, 3, 15, 0, 1, 3, 15, 0, 1, 3, 15, 0, 1, 3, 15],
];

fn callbacks() -> &'static [&'static [usize]] {
    if THOROUGH {
        &CALLBACKS
    } else {
        &[&[], &[0, 3]]
    }
}

/// The stacks on which interrupts run: both, where there is time.
fn handler_stacks() -> &'static [HandlerStack] {
    let both = &[HandlerStack::Own, HandlerStack::Same];
    if THOROUGH { both } else { &both[1..] }
}

#[test]
fn calls() {
    let mut figures = Figures::new("calls");
    let mut slots = [0; SLOTS];
    for &callbacks in callbacks() {
        for accept in [true, false] {
            let bench = &mut Bench::new(&mut figures, callbacks, accept, ROOMY, &mut slots);
            let bases: &[usize] = match accept {
                true if callbacks.is_empty() => &[0],
                true if callbacks.len() == 16 => &[3],
                true if !THOROUGH => &[1],
                true => &[0, 1, 3],
                false => &[0],
            };
            for &base in bases {
                for wide in [false, true] {
                    interrupted_call(bench, base, wide, Work::Long);
                }
            }
        }
    }
}

#[test]
fn operations() {
    let mut figures = Figures::new("operations");
    let mut slots = [0; SLOTS];
    let all: &[&[usize]] = if THOROUGH {
        &[&[0], &[15], &[0, 3], &[1; 16]]
    } else {
        &[&[1]]
    };
    for &stack in handler_stacks() {
        handle_on(stack);
        for &callbacks in all {
            if callbacks.len() == 16 && stack == HandlerStack::Same {
                continue;
            }
            let bench = &mut Bench::new(&mut figures, callbacks, true, ROOMY, &mut slots);
            keeper::ask_for_walks(THOROUGH);
            interrupted_operations(bench, Work::Long);
            if stack == HandlerStack::Same {
                interrupted_call(bench, 3, false, Work::Long);
            }
        }
    }
}

#[test]
fn nested_two_deep() {
    let mut figures = Figures::new("nested two deep");
    let mut slots = [0; SLOTS];
    let bench = &mut Bench::new(&mut figures, &[1], true, ROOMY, &mut slots);
    keeper::ask_for_walks(false);
    interrupted_call(bench, 0, false, Work::ShortStepped);
    if THOROUGH {
        interrupted_operations(bench, Work::ShortStepped);
    }
}

#[test]
fn almost_full() {
    let mut figures = Figures::new("almost full");
    let mut slots = [0; SLOTS];
    let mut fill = |callbacks: &[usize], wide: bool, step: usize| {
        let head = if wide { WIDE_WORDS } else { NEAR_WORDS };
        for room in (0..).step_by(step) {
            let bench = &mut Bench::new(&mut figures, callbacks, true, room, &mut slots);
            keeper::ask_for_walks(false);
            // Up to room for an interrupt's frames above it too.
            if room > 2 * bench.case.keepers.frame(head) + WIDE_WORDS + 3 {
                break;
            }
            interrupted_last_call(bench, room, head);
        }
    };
    if THOROUGH {
        for wide in [false, true] {
            fill(&[0], wide, 1);
            fill(&[1], wide, 1);
            fill(&[3, 0, 1], wide, 1);
        }
        fill(&[1; 16], false, 7);
        handle_on(HandlerStack::Same);
        fill(&[0, 3], false, 1);
    } else {
        fill(&[1, 0], false, 3);
        fill(&[0], true, 5);
    }
}

/// A handler that runs as the task, at one instruction of a call's end: it
/// gives the addresses back, which ends the call's frame, and leaves one of its
/// own in the same words.
#[test]
fn frames_that_take_anothers_place() {
    let mut figures = Figures::new("frames in another's place");
    let mut slots = [0; SLOTS];
    // Each instruction needs a run of its own.
    let step = if THOROUGH { 1 } else { 97 };
    for (callbacks, wide) in [(&[0][..], false), (&[1], false), (&[0], true), (&[1], true)] {
        let bench = &Bench::new(&mut figures, callbacks, true, ROOMY, &mut slots);
        let (call, other) = match wide {
            false => (bench.near(0), bench.near(1)),
            true => (bench.far(0), bench.far(1)),
        };
        let (mut at, mut ended_first) = (0, 0);
        loop {
            bench.reset();
            assert!(bench.case.enter(&call, false));
            let (mut stop, mut ended, mut returned) = (0, None, None);
            let leave = || returned = bench.case.leave(call.slot.get());
            step::stepped(leave, &mut |_| {
                if stop == at {
                    // SAFETY: the slots are the test's own words.
                    ended = Some(unsafe { host::FGRAPH.restore() });
                    if ended == Some(1) {
                        assert!(bench.case.enter(&other, false));
                    }
                }
                stop += 1;
            });
            let Some(ended) = ended else {
                break;
            };
            let expected = (ended == 0).then_some(call.ret);
            assert_eq!(returned, expected, "at instruction {at}");
            ended_first += ended;
            assert_eq!(
                bench.case.leave(other.slot.get()),
                (ended == 1).then_some(other.ret)
            );
            let tally = bench.case.keepers.tally();
            assert_eq!(tally.accepted, tally.ended, "at instruction {at}");
            assert_eq!(tally.damaged, 0, "at instruction {at}");
            at += step;
        }
        assert!(
            0 < ended_first && ended_first < at / step,
            "{ended_first} of {at}"
        );
    }
}

/// An interrupt that comes while a call's frame is looked for, before it is
/// claimed: it shows by a call of its own that the frame is dead, which ends
/// it, and leaves one in the same words.
#[test]
fn frames_that_an_interrupt_puts_in_anothers_place() {
    let mut figures = Figures::new("frames of an interrupt");
    let mut slots = [0; SLOTS];
    for callbacks in [&[0][..], &[1]] {
        let bench = &Bench::new(&mut figures, callbacks, true, ROOMY, &mut slots);
        let stack = bench.case.stack;
        // Wide frames end the other way. The interrupt's call is on a slot above.
        let (call, other) = (bench.far(3), bench.far(2));
        // Interrupts the call's end at the `at`th of the instructions in
        // question; returns how many these are.
        let interrupted_at = |at: usize| {
            bench.reset();
            assert!(bench.case.enter(&call, false));
            let (mut looked, mut returned) = (0, None);
            let leave = || returned = bench.case.leave(call.slot.get());
            step::stepped(leave, &mut |_| {
                let looks = stack.depth() == 1;
                if looks && looked == at {
                    let enter = || bench.case.enter(&other, false);
                    assert!(host::in_context(Context::Interrupt, enter));
                }
                looked += usize::from(looks);
            });
            let came = at < looked;
            assert_eq!(returned, (!came).then_some(call.ret), "at {at}");
            assert_eq!(stack.depth(), came.into(), "at {at}");
            let got = bench.case.leave(other.slot.get());
            assert_eq!(got, came.then_some(other.ret), "at {at}");
            let tally = bench.case.keepers.tally();
            assert_eq!(tally.accepted, tally.ended, "at {at}");
            assert_eq!((tally.damaged, stack.is_inside()), (0, false), "at {at}");
            assert_eq!(stack.counters().unwound, came.into(), "at {at}");
            looked
        };
        let all = interrupted_at(usize::MAX);
        assert!(all > 0, "it looks for the frame before it ends it");
        let step = if THOROUGH { 1 } else { 1 + all / 40 };
        for at in (0..all).step_by(step) {
            interrupted_at(at);
        }
    }
}

#[test]
fn calls_that_interrupts_leave_behind() {
    let mut figures = Figures::new("left behind");
    let mut slots = [0; SLOTS];
    let mut interrupts = 0;
    let all: &[(&[usize], bool)] = if THOROUGH {
        &[(&[0], true), (&[0, 3], true), (&[1], false)]
    } else {
        &[(&[1], true)]
    };
    for &(callbacks, accept) in all {
        let bench = &Bench::new(&mut figures, callbacks, accept, ROOMY, &mut slots);
        keeper::ask_for_walks(false);
        interrupts += left::at_each_of_all(bench);
        if accept {
            interrupts += left::at_some_of_unwinding(bench);
        }
    }
    let rooms = if THOROUGH { 2..=18 } else { 7..=7 };
    for room in rooms {
        for wide in [false, true] {
            let bench = &Bench::new(&mut figures, &[1, 0, 3], true, room, &mut slots);
            keeper::ask_for_walks(false);
            interrupts += left::at_each_of_a_tight_call(bench, wide);
        }
    }
    let _ = writeln!(std::io::stderr(), "left behind: by {interrupts} interrupts");
}

#[test]
fn slots_that_change_hands() {
    let mut figures = Figures::new("slots that change hands");
    let mut slots = [0; SLOTS];
    let bench = &Bench::new(&mut figures, &[1], true, ROOMY, &mut slots);
    bench.reset();
    let (changes, seen) = owners::changed_at_each();
    assert!(0 < seen && seen < changes, "{seen} of {changes}");
}

/// Patches the functions in assembly while `f` runs, for all callbacks.
fn patched<R>(bench: &mut Bench<'_>, f: impl FnOnce(&mut Bench<'_>) -> R) -> R {
    let functions = [real::leaf(), real::outer(), real::tail()];
    let patch = |bench: &Bench<'_>, on: bool| {
        for id in bench.case.keepers.ids() {
            let which = |func| functions.contains(&func);
            let count = if on {
                host::PATCH.enable(id, which)
            } else {
                host::PATCH.disable(id, which)
            };
            assert_eq!(count, Ok(functions.len()));
        }
    };
    patch(bench, true);
    let result = f(bench);
    patch(bench, false);
    result
}

#[test]
fn stubs() {
    let mut figures = Figures::new("stubs");
    let mut slots = [0; SLOTS];
    let all: &[&[usize]] = if THOROUGH {
        &[&[0], &[1], &[0, 3], &[15; 16]]
    } else {
        &[&[3]]
    };
    let mut walks = 0;
    for &stack in handler_stacks() {
        handle_on(stack);
        for callbacks in all {
            for accept in [true, false] {
                let bench = &mut Bench::new(&mut figures, callbacks, accept, ROOMY, &mut slots);
                walks += patched(bench, |bench| interrupted_stub(bench, Work::Real));
            }
        }
    }
    if THOROUGH {
        let bench = &mut Bench::new(&mut figures, &[1], true, ROOMY, &mut slots);
        keeper::ask_for_walks(false);
        walks += patched(bench, |bench| interrupted_stub(bench, Work::RealStepped));
    }
    let _ = writeln!(
        std::io::stderr(),
        "stubs: unwound from {walks} instructions of stubs"
    );
}

/// Real calls, by their stubs; returns from how many instructions an unwinder
/// started.
fn interrupted_stub(bench: &mut Bench<'_>, work: Work) -> usize {
    let accept = bench.case.keepers.accept;
    let mut called = real::Called::new();
    let called = &raw mut called;
    let outer = &Known::new(real::outer(), real::back(), UNKNOWN);
    let leaf = &Known::new(real::leaf(), real::outer_back(), UNKNOWN);
    let tail = &Known::new(real::tail(), real::back(), UNKNOWN);
    let tailed = &Known::new(real::leaf(), bench.case.stub, UNKNOWN);
    let calls = [
        (
            real::outer(),
            43,
            vec![vec![], vec![outer], vec![leaf, outer], vec![outer], vec![]],
            2,
        ),
        (
            real::tail(),
            44,
            vec![vec![], vec![tail], vec![tailed, tail], vec![tail], vec![]],
            1,
        ),
    ];
    let mut walks = 0;
    for (function, expected, views, depth) in calls {
        let stub = real::stub(real::leaf(), stub_address());
        let walker = Walker::new(stub, called);
        let operation = Operation {
            name: "a real call",
            run: &|_| real::call_noting(function, 21, called),
            views: if accept { views } else { vec![vec![]] },
            ..Operation::default()
        };
        let mut last = None;
        let outcome = bench.run_with(&operation, &mut |case, watch, stop| {
            walker.walk(case, stop);
            let now = Some((case.state(), watch.at.get()));
            if work == Work::Real || now != last {
                last = now;
                interrupt(case, watch, Context::Interrupt, work)
            } else {
                watch.look(case.stack);
                0
            }
        });
        assert_eq!((outcome.result, walker.deepest.get()), (expected, depth));
        walks += walker.walks.get();
    }
    walks
}
