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

#[path = "common/host.rs"]
#[allow(dead_code)]
mod host;
#[path = "interrupted/keeper.rs"]
mod keeper;
#[path = "interrupted/real.rs"]
mod real;
#[path = "interrupted/step.rs"]
mod step;
#[path = "interrupted/watch.rs"]
mod watch;

use std::cell::Cell;
use std::io::Write;
use std::sync::{Mutex, MutexGuard};

use fgraph::ret_stack::{Counters, NEAR_WORDS, WIDE_WORDS};
use fgraph::{Context, RetStack};

use host::FGRAPH;
use keeper::{Keepers, Tally};
use real::Walker;
use step::{HandlerStack, Stop, handle_on, stepped_if};
use watch::{Case, Known, UNKNOWN, View, Watch, Work, far, hold, interrupt, near, ret};

/// Whether there is time for all combinations.
const THOROUGH: bool = !cfg!(debug_assertions);

/// Words of a stack that has room for everything.
const ROOMY: usize = if THOROUGH { 2048 } else { 256 };

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

/// What a test has done.
struct Figures {
    name: &'static str,
    operations: usize,
    stops: usize,
    nested: usize,
    interrupts: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Figures {
    /// One test at a time: they share the tracer.
    fn new(name: &'static str) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        host::init_patch();
        handle_on(HandlerStack::Own);
        Self {
            name,
            operations: 0,
            stops: 0,
            nested: 0,
            interrupts: watch::interrupts(),
            _alone: alone,
        }
    }
}

impl Drop for Figures {
    fn drop(&mut self) {
        host::exit();
        // Not by `print`, which a test's harness keeps.
        let _ = writeln!(
            std::io::stderr(),
            "{}: stopped at {} instructions of {} operations and at {} of their interrupts, \
             none skipped; {} interrupts checked",
            self.name,
            self.stops,
            self.operations,
            self.nested,
            watch::interrupts() - self.interrupts,
        );
    }
}

/// How an operation ended.
#[derive(Clone, PartialEq, Debug)]
struct Outcome {
    result: usize,
    state: usize,
    /// The words in use.
    words: Vec<usize>,
    counters: Counters,
    missed: usize,
    tally: Tally,
    events: u64,
}

/// A shadow stack and a real one, and the operation's way through both.
struct Bench<'a> {
    case: Case,
    words: (*mut usize, usize),
    real_stack: std::ops::Range<usize>,
    slots: *mut usize,
    missed: Cell<usize>,
    figures: &'a mut Figures,
}

/// Words of the made-up part of the real stack.
const SLOTS: usize = 16;

impl<'a> Bench<'a> {
    fn new(
        figures: &'a mut Figures,
        callbacks: &[usize],
        accept: bool,
        capacity: usize,
        slots: &'a mut [usize; SLOTS],
    ) -> Self {
        let stack: &'static RetStack = Box::leak(Box::default());
        let words = Box::leak(vec![0; capacity].into_boxed_slice());
        host::replace_current(Some(stack));
        let case = Case {
            keepers: Keepers::new(callbacks, accept),
            stack,
            stub: stub_address(),
            roomy: capacity >= ROOMY,
        };
        Self {
            case,
            words: (words.as_mut_ptr(), capacity),
            real_stack: host::real_stack(),
            slots: slots.as_mut_ptr(),
            missed: Cell::new(0),
            figures,
        }
    }

    /// The address of the `n`th made-up return slot, from the highest.
    fn slot(&self, n: usize) -> usize {
        assert!(n < SLOTS);
        // SAFETY: in bounds.
        unsafe { self.slots.add(SLOTS - 1 - n) as usize }
    }

    /// Function `n` on its slot.
    fn near(&self, n: usize) -> Known {
        Known::new(near(n), ret(n), self.slot(n))
    }

    fn far(&self, n: usize) -> Known {
        Known::new(far(n), ret(n), self.slot(n))
    }

    /// Function `n` in a tail call from one on `slot`.
    fn tail(&self, n: usize, slot: usize) -> Known {
        Known::new(near(n), self.case.stub, self.slot(slot))
    }

    /// Calls functions on their slots.
    fn enter(&self, calls: &[&Known]) {
        for call in calls {
            let entered = self.case.enter(call, call.ret == self.case.stub);
            assert!(entered, "there is room for {call:?}");
        }
    }

    fn attach(&self) -> bool {
        let (words, capacity) = self.words;
        // SAFETY: the words were leaked, and are attached to one stack only.
        let words = unsafe { std::slice::from_raw_parts_mut(words, capacity) };
        let real_stack = self.real_stack.clone();
        self.case.stack.attach(words, real_stack).is_ok()
    }

    /// An empty stack, and return slots as before their calls.
    fn reset(&self) {
        let stack = self.case.stack;
        // SAFETY: the frames are made up: nobody returns to them.
        let _ = unsafe { FGRAPH.exit_task(stack) };
        assert!(self.attach());
        for n in 0..SLOTS {
            // SAFETY: a made-up slot.
            unsafe { (self.slot(n) as *mut usize).write_volatile(ret(n)) };
        }
        self.case.keepers.reset();
        self.missed.set(self.case.keepers.missed());
    }

    fn outcome(&self, result: usize) -> Outcome {
        let of_interrupts = watch::of_interrupts();
        let case = &self.case;
        let state = case.state();
        assert!(
            state <= self.words.1,
            "at rest the state is the top: {state:#x}"
        );
        let mut counters = case.stack.counters();
        counters.overruns -= of_interrupts.overruns as u32;
        counters.recursions -= of_interrupts.recursions as u32;
        let mut tally = case.keepers.tally();
        for counts in [&mut tally.called, &mut tally.accepted, &mut tally.ended] {
            counts[1..].fill(0);
        }
        Outcome {
            result,
            state,
            // SAFETY: the words were leaked; nobody writes them now.
            words: unsafe { std::slice::from_raw_parts(self.words.0, state) }.to_vec(),
            counters,
            missed: case.keepers.missed() - self.missed.get() - of_interrupts.missed,
            tally,
            events: case.keepers.task_events(),
        }
    }

    /// Interrupts `operation` at each of its instructions.
    fn run(&mut self, operation: &Operation<'_>, work: Work) -> Outcome {
        self.run_with(operation, &mut |case, watch, _| {
            interrupt(case, watch, Context::Interrupt, work)
        })
    }

    /// Interrupts it where the stack's memory has changed since the last time.
    fn run_where_changed(&mut self, operation: &Operation<'_>, work: Work) -> Outcome {
        let (words, len) = self.words;
        let slots = self.slots;
        let memory = move |case: &Case| {
            // SAFETY: the words and the slots are this thread's.
            let words = unsafe { std::slice::from_raw_parts(words, len.min(128)) };
            // SAFETY: as above.
            let slots = unsafe { std::slice::from_raw_parts(slots, SLOTS) };
            let words = if case.stack.is_attached() { words } else { &[] };
            (case.state(), words.to_vec(), slots.to_vec())
        };
        let mut last = None;
        self.run_with(operation, &mut |case, watch, _| {
            let now = Some(memory(case));
            if now != last {
                last = now;
                interrupt(case, watch, Context::Interrupt, work)
            } else {
                0
            }
        })
    }

    fn run_with(
        &mut self,
        operation: &Operation<'_>,
        at_stop: &mut dyn FnMut(&Case, &Watch<'_>, &Stop) -> usize,
    ) -> Outcome {
        let begin = || {
            self.reset();
            (operation.before)(self);
        };
        // One function for all runs, so that their instructions are the same.
        let run = |step: bool, on_stop: &mut dyn FnMut(&Stop)| {
            let mut result = 0;
            let way = stepped_if(step, || result = (operation.run)(self), on_stop);
            (result, way)
        };
        begin();
        let (result, _) = run(false, &mut |_| ());
        let undisturbed = self.outcome(result);
        let mut way = None;
        if THOROUGH {
            begin();
            let (result, alone) = run(true, &mut |_| ());
            assert_eq!(self.outcome(result), undisturbed, "stepped");
            way = Some(alone);
        }

        begin();
        let watch = Watch {
            quiet: operation.quiet,
            ..Watch::new(None, &operation.views, &operation.returns)
        };
        watch.look(self.case.stack);
        let (mut nested, mut failed_at) = (0, None);
        let case = &self.case;
        let (result, interrupted_way) = run(true, &mut |stop| {
            nested += at_stop(case, &watch, stop);
            if failed_at.is_none() && watch::has_failed() {
                failed_at = Some((stop.rip, watch.at.get()));
            }
        });
        watch.look(self.case.stack);
        let name = operation.name;
        let with = || {
            format!(
                "{name} with {:?} on {} words",
                case.keepers.words, self.words.1
            )
        };
        if let Some(failure) = watch::failure() {
            panic!("{}: at (rip, view) {failed_at:x?}: {failure}", with());
        }
        assert_eq!(watch.at.get() + 1, operation.views.len(), "{}", with());
        let same = way.is_none_or(|way| way == interrupted_way);
        assert!(same, "{}: {interrupted_way:?} is not {way:?}", with());
        let way = interrupted_way;
        assert_eq!(way.leaps, 0, "{}: instructions not seen", with());
        assert!(way.stops > 0);
        assert_eq!(self.outcome(result), undisturbed, "{}", with());

        self.figures.operations += 1;
        self.figures.stops += way.stops;
        self.figures.nested += nested;
        undisturbed
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // SAFETY: the frames are made up: nobody returns to them.
        let _ = unsafe { FGRAPH.exit_task(self.case.stack) };
        host::replace_current(None);
    }
}

/// What is interrupted.
struct Operation<'a> {
    name: &'static str,
    /// What is on the stack before.
    before: &'a dyn Fn(&Bench<'_>),
    run: &'a dyn Fn(&Bench<'_>) -> usize,
    /// What walks see, one after the other.
    views: Vec<View<'a>>,
    returns: Vec<(usize, usize)>,
    quiet: bool,
}

/// The address to which patched calls return.
fn stub_address() -> usize {
    thread_local! {
        static ADDRESS: Cell<usize> = const { Cell::new(0) };
    }
    if ADDRESS.get() == 0 {
        let stack: &'static RetStack = Box::leak(Box::default());
        let words = Box::leak(vec![0; 64].into_boxed_slice());
        stack
            .attach(words, host::real_stack())
            .expect("a new stack takes its words");
        let keepers = Keepers::new(&[0], true);
        let id = keepers.ids().next().expect("one");
        host::PATCH
            .enable(id, |func| func == real::tell())
            .expect("outside of callbacks");
        let before = host::replace_current(Some(stack));
        ADDRESS.set(real::call(real::tell(), 0).result);
        assert_ne!(ADDRESS.get(), real::back(), "the call is traced");
        host::PATCH
            .disable(id, |_| true)
            .expect("outside of callbacks");
        host::replace_current(before);
    }
    ADDRESS.get()
}

/// Whether `call`, on a stack with frames that fit, is entered, and returns.
fn call_and_return(bench: &Bench<'_>, call: &Known) -> usize {
    let entered = bench.case.enter(call, false);
    if entered {
        let got = bench.case.leave(call.slot.get());
        hold!(got == Some(call.ret), "returns to {got:x?}");
    }
    entered.into()
}

fn interrupted_call(bench: &mut Bench<'_>, base: usize, wide: bool, work: Work) -> Outcome {
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
        quiet: false,
    };
    let outcome = match work {
        Work::ShortStepped if !THOROUGH => bench.run_where_changed(&operation, work),
        _ => bench.run(&operation, work),
    };
    assert_eq!(outcome.result, usize::from(entered));
    outcome
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

/// Other operations, on the frames of four calls, one of them a far one and one
/// a tail call.
fn interrupted_operations(bench: &mut Bench<'_>, work: Work) {
    let [a, b, tail, d] = &[bench.near(0), bench.far(1), bench.tail(2, 1), bench.near(3)];
    let live = |known: &Known| (known.slot.get(), known.ret);
    let (slot_a, slot_b, slot_d) = (live(a), live(b), live(d));
    let all = || -> View<'_> { vec![d, tail, b, a] };
    let down = || -> Vec<View<'_>> { (0..=4).map(|gone| all()[gone..].to_vec()).collect() };
    let before = &|bench: &Bench<'_>| bench.enter(&[a, b, tail, d]);
    let none = &|_: &Bench<'_>| ();
    let mut run = |operation: &Operation<'_>| {
        if work == Work::ShortStepped {
            bench.run_where_changed(operation, work)
        } else {
            bench.run(operation, work)
        }
    };

    // Two returns through one slot.
    let leaves = run(&Operation {
        name: "two returns of a tail call",
        before: &|bench| bench.enter(&[a, b, tail]),
        run: &|bench| {
            let got = bench.case.leave(slot_b.0);
            usize::from(got == Some(slot_b.1))
        },
        views: vec![vec![tail, b, a], vec![b, a], vec![a]],
        returns: vec![slot_a, slot_b],
        quiet: false,
    });
    assert_eq!((leaves.result, leaves.counters), (1, Counters::default()));

    // The slots of what is jumped over hold what they held.
    let dead = |known: &Known| Known {
        dead: true,
        ..known.clone()
    };
    let [dead_b, dead_tail, dead_d] = &[dead(b), dead(tail), dead(d)];
    let jump = run(&Operation {
        name: "a return over three frames",
        before,
        run: &|bench| usize::from(bench.case.leave(slot_a.0) == Some(slot_a.1)),
        views: vec![
            vec![dead_d, dead_tail, dead_b, a],
            vec![dead_tail, dead_b, a],
            vec![dead_b, a],
            vec![a],
            vec![],
        ],
        returns: vec![slot_a],
        quiet: false,
    });
    assert_eq!((jump.result, jump.counters.unwound), (1, 3));

    // Enters on the slot of the far one, which was left by a jump.
    let again = &Known::new(near(5), ret(5), slot_b.0);
    let replace = run(&Operation {
        name: "a call that proves three frames dead",
        before: &|bench| {
            bench.enter(&[a, b, tail, d]);
            // SAFETY: a made-up slot.
            unsafe { (slot_b.0 as *mut usize).write_volatile(again.ret) };
        },
        run: &|bench| bench.case.enter(again, false).into(),
        views: vec![
            vec![dead_d, dead_tail, dead_b, a],
            vec![dead_tail, dead_b, a],
            vec![dead_b, a],
            vec![a],
            vec![again, a],
        ],
        returns: vec![slot_a, (slot_b.0, again.ret)],
        quiet: false,
    });
    assert_eq!((replace.result, replace.counters.unwound), (1, 3));

    let lost = run(&Operation {
        name: "a return without a frame",
        before,
        run: &|bench| bench.case.leave(bench.slot(9)).map_or(7, |_| 0),
        views: vec![all()],
        returns: vec![slot_a, slot_b, slot_d],
        quiet: false,
    });
    assert_eq!((lost.result, lost.counters.strays), (7, 1));

    let scope = &Known::new(near(6), ret(6), 0);
    run(&Operation {
        name: "a scope",
        before,
        run: &|_| {
            let _scope = FGRAPH.scope(scope.func, scope.ret);
            0
        },
        views: vec![all(), [vec![scope], all()].concat(), all()],
        returns: vec![slot_a, slot_b, slot_d],
        quiet: false,
    });

    let restore = run(&Operation {
        name: "restore",
        before,
        // SAFETY: the slots are there.
        run: &|_| unsafe { FGRAPH.restore() },
        views: down(),
        returns: vec![slot_a, slot_b, slot_d],
        quiet: false,
    });
    assert_eq!((restore.result, restore.counters.unwound), (4, 4));

    let exit = run(&Operation {
        name: "exit_task",
        before,
        run: &|bench| {
            // SAFETY: the frames are made up: nobody returns to them.
            let words = unsafe { FGRAPH.exit_task(bench.case.stack) };
            words.map_or(0, |words| words.cast::<usize>().addr().get())
        },
        views: down(),
        returns: vec![],
        quiet: true,
    });
    assert_ne!(exit.result, 0);

    run(&Operation {
        name: "walks",
        before,
        run: &|bench| {
            let frames = bench.case.stack.frames();
            let sum = frames.fold(0, |sum, frame| sum ^ frame.func ^ frame.slot);
            let real = |slot| FGRAPH.real_return(bench.case.stack, slot, bench.case.stub);
            sum ^ real(slot_b.0) ^ real(slot_d.0)
        },
        views: vec![all()],
        returns: vec![slot_a, slot_b, slot_d],
        quiet: false,
    });

    let attach = run(&Operation {
        name: "attach",
        before: &|bench| {
            // SAFETY: this is the task, and nobody walks its stack.
            let words = unsafe { bench.case.stack.detach() }.expect("no frames");
            words[..64].fill(usize::MAX);
        },
        run: &|bench| bench.attach().into(),
        views: vec![vec![]],
        returns: vec![],
        quiet: false,
    });
    assert_eq!(attach.result, 1);

    let detach = run(&Operation {
        name: "detach",
        before: none,
        run: &|bench| {
            // SAFETY: this is the task, and nobody walks its stack.
            let words = unsafe { bench.case.stack.detach() };
            words.map_or(0, |words| words.as_ptr().addr())
        },
        views: vec![vec![]],
        returns: vec![],
        quiet: false,
    });
    assert_ne!(detach.result, 0);

    let refused = run(&Operation {
        name: "a detach that is refused",
        before,
        run: &|bench| {
            // SAFETY: this is the task, and nobody walks its stack.
            let words = unsafe { bench.case.stack.detach() };
            usize::from(words == Err(fgraph::ret_stack::DetachError::InUse))
        },
        views: vec![all()],
        returns: vec![slot_a, slot_b, slot_d],
        quiet: false,
    });
    assert_eq!(refused.result, 1);
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

/// A call on an empty stack that has room for so many words.
fn interrupted_last_call(bench: &mut Bench<'_>, room: usize, head: usize) {
    let wide = head == WIDE_WORDS;
    let call = &if wide { bench.far(3) } else { bench.near(3) };
    let (entered, missed) = bench.case.keepers.fits(room, head);
    let outcome = bench.run(
        &Operation {
            name: "a last call",
            before: &|_| (),
            run: &|bench| call_and_return(bench, call),
            views: if entered {
                vec![vec![], vec![call], vec![]]
            } else {
                vec![vec![]]
            },
            returns: vec![(call.slot.get(), call.ret)],
            quiet: false,
        },
        Work::Long,
    );
    let overruns = u32::from(room < head);
    let got = (outcome.result, outcome.missed, outcome.counters.overruns);
    assert_eq!(got, (entered.into(), missed, overruns), "{room} words");
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
    let _ = writeln!(std::io::stderr(), "stubs: {walks} walks by frame pointers");
}

/// Real calls, by their stubs; returns how many walks there were by frame
/// pointers.
fn interrupted_stub(bench: &mut Bench<'_>, work: Work) -> usize {
    let accept = bench.case.keepers.accept;
    let mut called = real::Called::new();
    let called = &raw mut called;
    let outer = &Known::new(real::outer(), real::back(), UNKNOWN);
    let leaf = &Known::new(real::leaf(), real::outer_back(), UNKNOWN);
    let tail = &Known::new(real::tail(), real::back(), UNKNOWN);
    let tailed = &Known::new(real::leaf(), bench.case.stub, UNKNOWN);
    let walker = |full: Vec<usize>| Walker {
        stub: real::stub(real::leaf(), stub_address()),
        full,
        called,
        longest: Cell::new(0),
        walks: Cell::new(0),
    };
    let calls = [
        (
            real::outer(),
            43,
            vec![vec![], vec![outer], vec![leaf, outer], vec![outer], vec![]],
            walker(vec![real::outer_back(), real::back()]),
        ),
        (
            real::tail(),
            44,
            vec![vec![], vec![tail], vec![tailed, tail], vec![tail], vec![]],
            walker(vec![real::back()]),
        ),
    ];
    let mut walks = 0;
    for (function, expected, views, walker) in calls {
        let operation = Operation {
            name: "a real call",
            before: &|_| (),
            run: &|_| real::call_noting(function, 21, called),
            views: if accept { views } else { vec![vec![]] },
            returns: vec![],
            quiet: false,
        };
        let mut changed = None;
        let outcome = bench.run_with(&operation, &mut |case, watch, stop| {
            walker.walk(case, stop);
            let now = Some((case.state(), watch.at.get()));
            if work == Work::Real || now != changed {
                changed = now;
                interrupt(case, watch, Context::Interrupt, work)
            } else {
                watch.look(case.stack);
                0
            }
        });
        assert_eq!(outcome.result, expected);
        assert_eq!(walker.longest.get(), walker.full.len());
        walks += walker.walks.get();
    }
    walks
}
