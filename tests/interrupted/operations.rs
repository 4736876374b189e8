//! The operations, and how each must look from an interrupt.

use fgraph::ret_stack::{Counters, DetachError, WIDE_WORDS};

use crate::bench::{Bench, Operation, Outcome, THOROUGH};
use crate::host::FGRAPH;
use crate::keeper::Other;
use crate::watch::{Known, View, Work, hold, near, ret};

/// Whether `call`, on a stack with frames that fit, is entered, and returns.
fn call_and_return(bench: &Bench<'_>, call: &Known) -> usize {
    let entered = bench.case.enter(call, false);
    if entered {
        let got = bench.case.leave(call.slot.get());
        hold!(got == Some(call.ret), "returns to {got:x?}");
    }
    entered.into()
}

/// A call of a near or a far function on the frames of `base` others.
pub fn interrupted_call(bench: &mut Bench<'_>, base: usize, wide: bool, work: Work) -> Outcome {
    let all = [bench.near(0), bench.far(1), bench.tail(2, 1)];
    let base: View<'_> = all[..base].iter().rev().collect();
    let call = if wide { bench.far(3) } else { bench.near(3) };
    let with_call = std::iter::once(&call).chain(base.clone()).collect();
    let entered = bench.case.keepers.len() > 0 && bench.case.keepers.accept;
    let operation = Operation {
        name: "a call",
        before: &|bench| {
            let oldest_first: View<'_> = base.iter().rev().copied().collect();
            bench.enter(&oldest_first);
        },
        run: &|bench| call_and_return(bench, &call),
        views: if entered {
            vec![base.clone(), with_call, base.clone()]
        } else {
            vec![base.clone()]
        },
        returns: vec![(call.slot.get(), call.ret)],
        ..Operation::default()
    };
    let outcome = match work {
        Work::ShortStepped if !THOROUGH => bench.run_where_changed(&operation, work),
        _ => bench.run(&operation, work),
    };
    assert_eq!(outcome.result, usize::from(entered));
    outcome
}

/// A call on an empty stack that has room for so many words.
pub fn interrupted_last_call(bench: &mut Bench<'_>, room: usize, head: usize) {
    let wide = head == WIDE_WORDS;
    let call = &if wide { bench.far(3) } else { bench.near(3) };
    let (entered, missed) = bench.case.keepers.fits(room, head);
    let outcome = bench.run(
        &Operation {
            name: "a last call",
            run: &|bench| call_and_return(bench, call),
            views: if entered {
                vec![vec![], vec![call], vec![]]
            } else {
                vec![vec![]]
            },
            returns: vec![(call.slot.get(), call.ret)],
            ..Operation::default()
        },
        Work::Long,
    );
    let overruns = u32::from(missed > 0);
    let got = (outcome.result, outcome.missed, outcome.counters.overruns);
    assert_eq!(got, (entered.into(), missed, overruns), "{room} words");
}

/// The frames on which operations work: a near one, a far one, one that it has
/// tail-called, a near one.
struct Four {
    a: Known,
    b: Known,
    tail: Known,
    d: Known,
}

impl Four {
    fn new(bench: &Bench<'_>) -> Self {
        Self {
            a: bench.near(0),
            b: bench.far(1),
            tail: bench.tail(2, 1),
            d: bench.near(3),
        }
    }

    /// As [`new`](Self::new), where all but the oldest were left by a jump:
    /// their slots may hold anything.
    fn dead(bench: &Bench<'_>) -> Self {
        let mut four = Self::new(bench);
        for known in [&mut four.b, &mut four.tail, &mut four.d] {
            known.dead = true;
        }
        four
    }

    fn all(&self) -> View<'_> {
        vec![&self.d, &self.tail, &self.b, &self.a]
    }

    /// One after the other goes.
    fn down(&self) -> Vec<View<'_>> {
        (0..=4).map(|gone| self.all()[gone..].to_vec()).collect()
    }

    fn enter(&self, bench: &Bench<'_>) {
        bench.enter(&[&self.a, &self.b, &self.tail, &self.d]);
    }

    fn returns(&self) -> Vec<(usize, usize)> {
        [&self.a, &self.b, &self.d]
            .map(|known| (known.slot.get(), known.ret))
            .to_vec()
    }
}

fn interrupted(bench: &mut Bench<'_>, operation: &Operation<'_>, work: Work) -> Outcome {
    match work {
        Work::ShortStepped => bench.run_where_changed(operation, work),
        _ => bench.run(operation, work),
    }
}

/// Everything but calls.
pub fn interrupted_operations(bench: &mut Bench<'_>, work: Work) {
    returns(bench, work);
    jumps(bench, work);
    scopes_and_walks(bench, work);
    ends(bench, work);
    words(bench, work);
    registrations(bench, work);
}

fn returns(bench: &mut Bench<'_>, work: Work) {
    let four = Four::new(bench);
    let Four { a, b, tail, .. } = &four;
    let (slot, ret) = (b.slot.get(), b.ret);
    let operation = Operation {
        name: "two returns of a tail call",
        before: &|bench| bench.enter(&[a, b, tail]),
        run: &|bench| (bench.case.leave(slot) == Some(ret)).into(),
        views: vec![vec![tail, b, a], vec![b, a], vec![a]],
        returns: vec![(a.slot.get(), a.ret), (slot, ret)],
        ..Operation::default()
    };
    let got = interrupted(bench, &operation, work);
    assert_eq!((got.result, got.counters), (1, Counters::default()));

    let operation = Operation {
        name: "a return without a frame",
        before: &|bench| four.enter(bench),
        run: &|bench| bench.case.leave(bench.slot(9)).map_or(7, |_| 0),
        views: vec![four.all()],
        returns: four.returns(),
        ..Operation::default()
    };
    let got = interrupted(bench, &operation, work);
    assert_eq!((got.result, got.counters.strays), (7, 1));
}

fn jumps(bench: &mut Bench<'_>, work: Work) {
    let four = Four::dead(bench);
    let a = (four.a.slot.get(), four.a.ret);
    let operation = Operation {
        name: "a return over three frames",
        before: &|bench| four.enter(bench),
        run: &|bench| (bench.case.leave(a.0) == Some(a.1)).into(),
        views: four.down(),
        returns: vec![a],
        ..Operation::default()
    };
    let got = interrupted(bench, &operation, work);
    assert_eq!((got.result, got.counters.unwound), (1, 3));

    let slot = four.b.slot.get();
    let again = &Known::new(near(5), ret(5), slot);
    let mut views = four.down();
    views[4] = vec![again, &four.a];
    let operation = Operation {
        name: "a call that proves three frames dead",
        before: &|bench| {
            four.enter(bench);
            // SAFETY: a made-up slot.
            unsafe { (slot as *mut usize).write_volatile(again.ret) };
        },
        run: &|bench| bench.case.enter(again, false).into(),
        views,
        returns: vec![a, (slot, again.ret)],
        ..Operation::default()
    };
    let got = interrupted(bench, &operation, work);
    assert_eq!((got.result, got.counters.unwound), (1, 3));
}

fn scopes_and_walks(bench: &mut Bench<'_>, work: Work) {
    let four = Four::new(bench);
    let scope = &Known::new(near(6), ret(6), 0);
    let operation = Operation {
        name: "a scope",
        before: &|bench| four.enter(bench),
        run: &|_| {
            let _scope = FGRAPH.scope(scope.func, scope.ret);
            0
        },
        views: vec![four.all(), [vec![scope], four.all()].concat(), four.all()],
        returns: four.returns(),
        ..Operation::default()
    };
    interrupted(bench, &operation, work);

    let operation = Operation {
        name: "walks",
        before: &|bench| four.enter(bench),
        run: &|bench| {
            let frames = bench.case.stack.frames();
            let sum = frames.fold(0, |sum, frame| sum ^ frame.func ^ frame.slot);
            let stub = bench.case.stub;
            let real = |known: &Known| FGRAPH.real_return(bench.case.stack, known.slot.get(), stub);
            sum ^ real(&four.b) ^ real(&four.d)
        },
        views: vec![four.all()],
        returns: four.returns(),
        ..Operation::default()
    };
    interrupted(bench, &operation, work);
}

fn ends(bench: &mut Bench<'_>, work: Work) {
    let four = Four::new(bench);
    let operation = Operation {
        name: "restore",
        before: &|bench| four.enter(bench),
        // SAFETY: the slots are there.
        run: &|_| unsafe { FGRAPH.restore() },
        views: four.down(),
        returns: four.returns(),
        ..Operation::default()
    };
    let got = interrupted(bench, &operation, work);
    assert_eq!((got.result, got.counters.unwound), (4, 4));

    let operation = Operation {
        name: "exit_task",
        before: &|bench| four.enter(bench),
        run: &|bench| {
            // SAFETY: the frames are made up: nobody returns to them.
            let words = unsafe { FGRAPH.exit_task(bench.case.stack) };
            words.map_or(0, |words| words.cast::<usize>().addr().get())
        },
        views: four.down(),
        quiet: true,
        ..Operation::default()
    };
    assert_ne!(interrupted(bench, &operation, work).result, 0);
}

fn words(bench: &mut Bench<'_>, work: Work) {
    let operation = Operation {
        name: "attach",
        before: &|bench| {
            // SAFETY: this is the task, and nobody walks its stack.
            let words = unsafe { bench.case.stack.detach() }.expect("no frames");
            words[..64].fill(usize::MAX);
        },
        run: &|bench| bench.attach().into(),
        ..Operation::default()
    };
    assert_eq!(interrupted(bench, &operation, work).result, 1);

    let operation = Operation {
        name: "detach",
        run: &|bench| {
            // SAFETY: this is the task, and nobody walks its stack.
            let Ok(words) = (unsafe { bench.case.stack.detach() }) else {
                return 0;
            };
            // What is given back is nobody else's.
            words[..8].fill(7);
            usize::from(words[..8] == [7; 8])
        },
        ..Operation::default()
    };
    assert_eq!(interrupted(bench, &operation, work).result, 1);

    let four = Four::new(bench);
    let operation = Operation {
        name: "a detach that is refused",
        before: &|bench| four.enter(bench),
        run: &|bench| {
            // SAFETY: this is the task, and nobody walks its stack.
            let words = unsafe { bench.case.stack.detach() };
            (words == Err(DetachError::InUse)).into()
        },
        views: vec![four.all()],
        returns: four.returns(),
        ..Operation::default()
    };
    assert_eq!(interrupted(bench, &operation, work).result, 1);
}

/// Another callback comes and goes: each call of an interrupt is told to it at
/// its entry and its return, or at neither.
fn registrations(bench: &mut Bench<'_>, work: Work) {
    if bench.case.keepers.len() == 16 {
        return;
    }
    let other = Other::new();
    let leave = || {
        let left = other.unregister();
        other.check();
        left
    };
    let operation = Operation {
        name: "register",
        before: &|_| {
            leave();
        },
        run: &|_| other.register().into(),
        quiet: true,
        ..Operation::default()
    };
    assert_eq!(interrupted(bench, &operation, work).result, 1);
    assert!(other.calls() > 0, "interrupts behind it");
    leave();
    if !THOROUGH {
        return;
    }
    let operation = Operation {
        name: "unregister",
        before: &|_| {
            leave();
            assert!(other.register());
        },
        run: &|_| other.unregister().into(),
        quiet: true,
        calls_system: true,
        ..Operation::default()
    };
    assert_eq!(interrupted(bench, &operation, work).result, 1);
    other.check();
}
