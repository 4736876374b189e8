//! One operation on one stack: undisturbed, stepped, and interrupted at every
//! instruction; and what a test counts of it.

use std::cell::Cell;
use std::io::Write;
use std::sync::{Mutex, MutexGuard};

use fgraph::ret_stack::Counters;
use fgraph::{Context, RetStack};

use crate::host::{self, FGRAPH};
use crate::keeper::{Keepers, Tally};
use crate::real;
use crate::step::{HandlerStack, Stop, Way, handle_on, stepped_if};
use crate::watch::{self, Case, Known, View, Watch, Work, far, interrupt, near, ret};

/// Whether there is time for all combinations.
pub const THOROUGH: bool = !cfg!(debug_assertions);

/// Words of a stack that has room for everything.
pub const ROOMY: usize = if THOROUGH { 2048 } else { 256 };

/// What a test has done.
pub struct Figures {
    name: &'static str,
    operations: usize,
    stops: usize,
    nested: usize,
    /// Instructions behind system calls, before which no trap comes.
    late: usize,
    interrupts: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Figures {
    /// One test at a time: they share the tracer.
    pub fn new(name: &'static str) -> Self {
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
            late: 0,
            interrupts: watch::interrupts(),
            _alone: alone,
        }
    }
}

impl Drop for Figures {
    fn drop(&mut self) {
        host::exit();
        if self.operations == 0 {
            return;
        }
        let behind = match self.late {
            0 => String::new(),
            late => format!(" but {late} right behind system calls"),
        };
        // Not by `print`, which a test's harness keeps.
        let _ = writeln!(
            std::io::stderr(),
            "{}: stopped at {} instructions of {} operations and at {} of their interrupts, \
             none skipped{}; {} interrupts checked",
            self.name,
            self.stops,
            self.operations,
            self.nested,
            behind,
            watch::interrupts() - self.interrupts,
        );
    }
}

/// How an operation ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    pub result: usize,
    state: usize,
    /// The words in use.
    words: Vec<usize>,
    pub counters: Counters,
    pub missed: usize,
    tally: Tally,
    events: u64,
}

/// A shadow stack and a real one, and the operation's way through both.
pub struct Bench<'a> {
    pub case: Case,
    words: (*mut usize, usize),
    real_stack: std::ops::Range<usize>,
    slots: *mut usize,
    missed: Cell<usize>,
    figures: &'a mut Figures,
}

/// Words of the made-up part of the real stack.
pub const SLOTS: usize = 16;

impl<'a> Bench<'a> {
    pub fn new(
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
    pub fn slot(&self, n: usize) -> usize {
        assert!(n < SLOTS);
        // SAFETY: in bounds.
        unsafe { self.slots.add(SLOTS - 1 - n) as usize }
    }

    /// Function `n` on its slot.
    pub fn near(&self, n: usize) -> Known {
        Known::new(near(n), ret(n), self.slot(n))
    }

    pub fn far(&self, n: usize) -> Known {
        Known::new(far(n), ret(n), self.slot(n))
    }

    /// Function `n` in a tail call from one on `slot`.
    pub fn tail(&self, n: usize, slot: usize) -> Known {
        Known::new(near(n), self.case.stub, self.slot(slot))
    }

    /// Calls functions on their slots.
    pub fn enter(&self, calls: &[&Known]) {
        for call in calls {
            let entered = self.case.enter(call, call.ret == self.case.stub);
            assert!(entered, "there is room for {call:?}");
        }
    }

    pub fn attach(&self) -> bool {
        let (words, capacity) = self.words;
        // SAFETY: the words were leaked, and are attached to one stack only.
        let words = unsafe { std::slice::from_raw_parts_mut(words, capacity) };
        let real_stack = self.real_stack.clone();
        self.case.stack.attach(words, real_stack).is_ok()
    }

    /// An empty stack, and return slots as before their calls.
    pub fn reset(&self) {
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

    /// Runs `operation` from the beginning, and `on_stop` before each of its
    /// instructions.
    pub fn step(&self, operation: &Operation<'_>, on_stop: &mut dyn FnMut(&Stop)) -> (usize, Way) {
        self.reset();
        (operation.before)(self);
        let mut result = 0;
        let way = stepped_if(true, || result = (operation.run)(self), on_stop);
        (result, way)
    }

    /// Interrupts `operation` at each of its instructions.
    pub fn run(&mut self, operation: &Operation<'_>, work: Work) -> Outcome {
        self.run_with(operation, &mut |case, watch, _| {
            interrupt(case, watch, Context::Interrupt, work)
        })
    }

    /// Interrupts it where the stack's memory has changed since the last time.
    pub fn run_where_changed(&mut self, operation: &Operation<'_>, work: Work) -> Outcome {
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

    pub fn run_with(
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
        let (result, interrupted) = run(true, &mut |stop| {
            // Libraries may hold locks that an interrupt's allocations take.
            if !operation.calls_system || is_own_code(stop.rip) {
                nested += at_stop(case, &watch, stop);
            }
            if failed_at.is_none() && watch::has_failed() {
                failed_at = Some((stop.rip, watch.at.get()));
            }
        });
        watch.look(case.stack);
        if let Some(failure) = watch::failure() {
            let with = self.with(operation);
            panic!("{with}: at (rip, view) {failed_at:x?}: {failure}");
        }
        self.check_way(operation, &watch, way, interrupted);
        let outcome = self.outcome(result);
        assert_eq!(outcome, undisturbed, "{}", self.with(operation));

        self.figures.operations += 1;
        self.figures.stops += interrupted.stops;
        self.figures.late += interrupted.late;
        self.figures.nested += nested;
        undisturbed
    }

    fn with(&self, operation: &Operation<'_>) -> String {
        let callbacks = &self.case.keepers.words;
        format!(
            "{} with {callbacks:?} on {} words",
            operation.name, self.words.1
        )
    }

    /// The way that was interrupted has no leaps and led through all views, as
    /// the one that was not.
    fn check_way(
        &self,
        operation: &Operation<'_>,
        watch: &Watch<'_>,
        alone: Option<Way>,
        interrupted: Way,
    ) {
        let with = self.with(operation);
        let views = operation.views.len();
        assert_eq!(watch.at.get() + 1, views, "{with}: views");
        // What the system does, other threads decide too.
        let same = operation.calls_system || alone.is_none_or(|alone| alone == interrupted);
        assert!(same, "{with}: {interrupted:?} is not {alone:?}");
        assert_eq!(interrupted.leaps, 0, "{with}: instructions not seen");
        assert!(interrupted.stops > 0);
        assert!(interrupted.late == 0 || operation.calls_system, "{with}");
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // SAFETY: the frames are made up: nobody returns to them.
        let _ = unsafe { FGRAPH.exit_task(self.case.stack) };
        host::replace_current(None);
    }
}

/// Whether an address is in this program, not in a shared library.
fn is_own_code(address: usize) -> bool {
    unsafe extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }
    (&raw const __executable_start as usize..&raw const etext as usize).contains(&address)
}

/// What is interrupted.
pub struct Operation<'a> {
    pub name: &'static str,
    /// What is on the stack before.
    pub before: &'a dyn Fn(&Bench<'_>),
    pub run: &'a dyn Fn(&Bench<'_>) -> usize,
    /// What walks see, one after the other.
    pub views: Vec<View<'a>>,
    pub returns: Vec<(usize, usize)>,
    /// Whether the tracer is quiet meanwhile: interrupts may go untraced.
    pub quiet: bool,
    /// Whether it calls the operating system.
    pub calls_system: bool,
}

impl Default for Operation<'_> {
    /// Nothing, on an empty stack that stays empty.
    fn default() -> Self {
        Self {
            name: "",
            before: &|_| (),
            run: &|_| 0,
            views: vec![vec![]],
            returns: vec![],
            quiet: false,
            calls_system: false,
        }
    }
}

/// The address to which patched calls return.
pub fn stub_address() -> usize {
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
