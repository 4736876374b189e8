//! Interrupts whose calls do not return to the tracer: they were jumped out of,
//! or got their return addresses back. Their frames stay on the shadow stack,
//! wherever the interrupted operation is in it, for others to end.
//!
//! Each operation runs once for each of its instructions, with one such interrupt
//! there. Whatever it finds, it ends as it does undisturbed; and when
//! another call has shown that those of the interrupt are gone, all of them
//! have got their exits, and nothing else is on the stack.

use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fgraph::{Callback, Context, Entry, Exit};

use crate::bench::{Bench, Operation, THOROUGH};
use crate::host::{self, FGRAPH};
use crate::step;
use crate::watch::{Known, far as far_func, near, ret};

/// Below the slots of all operations.
const CLOSING: usize = 12;
/// Below that, of the interrupt.
const LEFT: [usize; 2] = [13, 14];

/// How an operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ended {
    result: usize,
    /// The words in use.
    top: usize,
    depth: usize,
    strays: u32,
    unwound: u32,
    /// Frames of all callbacks together that have no exit yet.
    open: usize,
    damaged: usize,
    /// Whether the call that follows is traced as it should be.
    follows: bool,
}

/// Makes the calls that do not return; how many are traced.
fn leave_behind(bench: &Bench<'_>) -> u32 {
    let enter = |slot| {
        let call = Known::new(near(slot), ret(slot), bench.slot(slot));
        u32::from(bench.case.enter(&call, false))
    };
    host::in_context(Context::Interrupt, || LEFT.map(enter).iter().sum())
}

/// Another call follows the operation, which shows that `left` calls are gone.
fn ended(bench: &Bench<'_>, result: usize, left: u32) -> Ended {
    let case = &bench.case;
    let closing = Known::new(near(CLOSING), ret(CLOSING), bench.slot(CLOSING));
    let follows = match case.enter(&closing, false) {
        true => case.leave(closing.slot.get()) == Some(closing.ret),
        false => !case.keepers.accept,
    };
    let (counters, tally) = (case.stack.counters(), case.keepers.tally());
    Ended {
        result,
        top: case.state(),
        depth: case.stack.depth(),
        strays: counters.strays,
        unwound: counters.unwound.wrapping_sub(left),
        open: tally.accepted.iter().sum::<usize>() - tally.ended.iter().sum::<usize>(),
        damaged: tally.damaged,
        follows,
    }
}

/// What became of a copy of this process.
fn status_of(child: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Interrupts the operation at each of its instructions, each time in a copy of
/// this process that begins there; returns at how many.
fn at_each(bench: &Bench<'_>, operation: &Operation<'_>) -> usize {
    let every = |stops| if THOROUGH { 1 } else { 1 + stops / 100 };
    at_some(bench, operation, every)
}

/// As [`at_each`], but between two changes of the stack's state at one in so many
/// as `every` says of them all.
fn at_some(bench: &Bench<'_>, operation: &Operation<'_>, every: impl Fn(usize) -> usize) -> usize {
    let mut stops = 0;
    let (result, way) = bench.step(operation, &mut |_| stops += 1);
    assert_eq!(way.leaps, 0, "instructions not seen");
    let undisturbed = ended(bench, result, 0);
    let every = every(stops);
    let (mut at, mut interrupts, mut failed, mut last) = (0, 0, None, None);
    let mut left = None;
    let (result, _) = bench.step(operation, &mut |_| {
        at += 1;
        let state = Some(bench.case.state());
        if at % every != 0 && state == last {
            return;
        }
        last = state;
        interrupts += 1;
        // SAFETY: the copy has this thread alone, which holds no lock; it ends
        // below.
        match unsafe { libc::fork() } {
            0 => {
                step::run_on();
                left = Some(leave_behind(bench));
            }
            child if status_of(child) == 0 => {}
            _ => failed = Some(at),
        }
    });
    if let Some(left) = left {
        let ended = ended(bench, result, left);
        let is_traced = left == 2 || !bench.case.keepers.accept || !bench.case.roomy;
        let fine = is_traced && ended == undisturbed;
        if !fine {
            let _ = writeln!(
                std::io::stderr(),
                "{}, at {at} of {stops} {left} calls left: {ended:?}, not {undisturbed:?}",
                operation.name
            );
        }
        // SAFETY: nothing of the copy is needed.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert_eq!(failed, None, "{}: see above", operation.name);
    assert_eq!(ended(bench, result, 0), undisturbed, "{}", operation.name);
    interrupts
}

/// Unwinds out of its next entry or exit, if that is asked for.
struct Bomb;

static BOMB: Bomb = Bomb;

thread_local! {
    /// In how many of its events from now on it does.
    static FUSE: Cell<usize> = const { Cell::new(0) };
}

impl Bomb {
    fn burn(&self) {
        let left = FUSE.get();
        FUSE.set(left.saturating_sub(1));
        if left == 1 {
            // Without the hook's message.
            resume_unwind(Box::new(()));
        }
    }
}

impl Callback for Bomb {
    type Frame = ();

    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        (call.context() == Context::Task).then(|| self.burn())
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {
        self.burn();
    }
}

/// Calls out of which a callback unwinds, beside others; returns how many
/// interrupts came.
pub fn at_some_of_unwinding(bench: &Bench<'_>) -> usize {
    let id = FGRAPH.register(&BOMB).expect("a free slot");
    let calls = [bench.near(0), bench.near(1), bench.near(3)];
    let [a, b, d] = &calls;
    let call = bench.near(4);
    let mut interrupts = 0;
    for (fuse, name) in [(1, "an entry that unwinds"), (2, "an exit that unwinds")] {
        let operation = Operation {
            name,
            before: &|bench| bench.enter(&[a, b, d]),
            run: &|bench| {
                FUSE.set(fuse);
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    bench.case.enter(&call, false) && bench.case.leave(call.slot.get()).is_some()
                }));
                unwound.is_err().into()
            },
            ..Operation::default()
        };
        // What an unwinder does once is done.
        assert_eq!(bench.step(&operation, &mut |_| ()).0, 1);
        // All but a few of the instructions are the unwinder's.
        let every = |stops| 1 + stops / if THOROUGH { 500 } else { 100 };
        interrupts += at_some(bench, &operation, every);
    }
    FGRAPH.unregister(id).expect("registered until now");
    interrupts
}

/// All operations that find frames, or make some; returns how many interrupts
/// came.
pub fn at_each_of_all(bench: &Bench<'_>) -> usize {
    let calls = [bench.near(0), bench.far(1), bench.tail(2, 1), bench.near(3)];
    let [a, b, tail, d] = &calls;
    let far = &bench.far(4);
    let again = &Known::new(near(5), ret(5), b.slot.get());
    let call = |call: &Known| {
        let entered = bench.case.enter(call, false);
        // What it returns is told by the leave.
        let returns = entered && bench.case.leave(call.slot.get()) == Some(call.ret);
        usize::from(entered) + usize::from(returns)
    };
    let leave = |call: &Known| usize::from(bench.case.leave(call.slot.get()) == Some(call.ret));
    let scope = |n: usize| FGRAPH.scope(near(n), ret(n));
    let base: &dyn Fn(&Bench<'_>) = &|bench| {
        if bench.case.keepers.accept {
            bench.enter(&[a, b, tail, d]);
        }
    };
    let held = Cell::new(None);
    let hold: &dyn Fn(&Bench<'_>) = &|bench| {
        bench.enter(&[a]);
        held.set(Some(scope(6)));
        // Jumped over.
        std::mem::forget(scope(7));
    };
    let hold_below: &dyn Fn(&Bench<'_>) = &|bench| {
        bench.enter(&[a]);
        held.set(Some(scope(6)));
        bench.enter(&[b]);
    };
    // An interrupt that was here before: the next one ends its calls, and leaves
    // as many words.
    let left: &dyn Fn(&Bench<'_>) = &|bench| {
        base(bench);
        leave_behind(bench);
    };
    let mut interrupts = 0;
    let mut each =
        |name: &'static str, before: &dyn Fn(&Bench<'_>), run: &dyn Fn(&Bench<'_>) -> usize| {
            let operation = Operation {
                name,
                before,
                run,
                ..Operation::default()
            };
            interrupts += at_each(bench, &operation);
        };
    each("a call on an empty stack", &|_| (), &|_| call(far));
    each("a call", base, &|bench| call(&bench.near(4)));
    each("a far call", base, &|_| call(far));
    each("a scope", base, &|_| {
        drop(scope(6));
        0
    });
    // The newest frame is a scope's, or wide: calls take the place of a claim that
    // was made for a near one.
    for (wide, names) in [
        (false, ["a call under a scope", "a far call under a scope"]),
        (true, ["a call under a far scope", "a far call under one"]),
    ] {
        let func = if wide { far_func(6) } else { near(6) };
        let below: &dyn Fn(&Bench<'_>) = &|bench| {
            base(bench);
            held.set(Some(FGRAPH.scope(func, ret(6))));
        };
        for (known, name) in [&bench.near(4), far].into_iter().zip(names) {
            each(name, below, &|_| {
                let result = call(known);
                drop(held.take());
                result
            });
        }
    }
    let over_far: &dyn Fn(&Bench<'_>) = &|bench| {
        if bench.case.keepers.accept {
            bench.enter(&[a, b]);
        }
    };
    each("a call over a far one", over_far, &|bench| {
        call(&bench.near(4))
    });
    each("a far call over a far one", over_far, &|_| call(far));
    if bench.case.keepers.accept {
        each("a return of a far call", over_far, &|_| leave(b));
        each("a return", base, &|_| leave(d));
        each("a return over one frame", base, &|_| leave(b));
        each("a return over three frames", base, &|_| leave(a));
        each("a call that proves three dead", base, &|bench| {
            bench.case.enter(again, false).into()
        });
        let drop_held: &dyn Fn(&Bench<'_>) -> usize = &|_| {
            drop(held.take());
            0
        };
        // With calls above, it can not know that the other was jumped over.
        each("the end of a scope under another", hold, &|bench| {
            drop_held(bench);
            leave(a)
        });
        each("the end of a scope under a call", hold_below, drop_held);
        each("a return over what was left", left, &|_| leave(d));
        each("a call over what was left", left, &|_| call(far));
        each("restore", base, &|_| {
            // SAFETY: the slots are there. How many it tells depends on when it
            // counts.
            let _ = unsafe { FGRAPH.restore() };
            0
        });
    }
    interrupts
}

/// A call on a stack that has room for its frame, or not, and for less data than
/// all callbacks keep; returns how many interrupts came. An interrupt's own calls
/// may find none.
pub fn at_each_of_a_tight_call(bench: &Bench<'_>, wide: bool) -> usize {
    let call = if wide { bench.far(4) } else { bench.near(4) };
    let operation = Operation {
        name: "a call in tight room",
        run: &|bench| {
            let entered = bench.case.enter(&call, false);
            let returns = entered && bench.case.leave(call.slot.get()) == Some(call.ret);
            usize::from(entered) + usize::from(returns)
        },
        ..Operation::default()
    };
    at_each(bench, &operation)
}
