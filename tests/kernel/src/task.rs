//! A task: its stack, and what the scheduler knows of it.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use fgraph::RetStack;

use crate::arch;
use crate::cpu::MAX_CPUS;

/// Tasks that there can be at a time, the CPUs' idle tasks not counted.
pub(crate) const MAX_TASKS: usize = 24;

const STACK: usize = 64 << 10;

/// What the lowest word of a stack says while nobody has overrun it.
const CANARY: usize = 0x57ac_0f57_ac0f_57ac;

/// What a task runs. A `static`, so a task's name outlives it.
pub(crate) struct Program {
    /// For people.
    pub(crate) name: &'static str,
    /// The task ends when it returns.
    pub(crate) run: fn(usize),
}

/// Where a task stands. Changes under the scheduler's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// No task has this place.
    Free,
    /// Waits for a CPU.
    Ready,
    /// Has one.
    Running,
    /// Until a time.
    Sleeping,
    /// For a key.
    Waiting,
    /// Ends; still on its stack.
    Ending,
    /// Ended; somebody may ask how.
    Dead,
    /// A CPU's own, when there is nothing to do.
    Idle,
}

impl State {
    const ALL: [Self; 8] = [
        Self::Free,
        Self::Ready,
        Self::Running,
        Self::Sleeping,
        Self::Waiting,
        Self::Ending,
        Self::Dead,
        Self::Idle,
    ];
}

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Cause {
    /// Its program returned, or it asked to.
    Finished,
    /// Another task wanted it.
    Killed,
    /// It panicked.
    Panicked,
    /// It did what the processor refuses.
    Faulted,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Finished, Self::Killed, Self::Panicked, Self::Faulted];
}

/// A place for a task. All are static; a free one is taken by the next task,
/// with its stack.
///
/// Fields are atomic for the sake of readers without the scheduler's lock,
/// which orders all that matters.
pub(crate) struct Task {
    sp: AtomicUsize,
    id: AtomicU32,
    state: AtomicU8,
    cause: AtomicU8,
    kill_wanted: AtomicU8,
    /// Mutexes that it holds. While there is one it can not be killed.
    pub(crate) holds: AtomicU32,
    /// When sleep ends.
    pub(crate) wake_at: AtomicU64,
    /// What it waits for.
    pub(crate) waits_for: AtomicUsize,
    /// Interrupt handlers and NMI handlers that run on top of it. Kept here and
    /// not with the CPU: a handler ends on the task that it interrupted, and a
    /// task finds its own counts by one load, whichever CPU it is on.
    pub(crate) in_interrupt: AtomicU32,
    /// See `in_interrupt`.
    pub(crate) in_nmi: AtomicU32,
    /// What the tracer remembers of the task's calls. Has words while tracing
    /// is on.
    pub(crate) ret_stack: RetStack,
    program: AtomicPtr<Program>,
    argument: AtomicUsize,
    stack_low: AtomicUsize,
    stack_high: AtomicUsize,
}

#[repr(C, align(4096))]
struct Stack(UnsafeCell<[u8; STACK]>);

// SAFETY: a stack is written by the task that has the place of its number, and
// at creation, when nobody has.
unsafe impl Sync for Stack {}

static STACKS: [Stack; MAX_TASKS] = [const { Stack(UnsafeCell::new([0; STACK])) }; MAX_TASKS];

/// The places for tasks.
pub(crate) static TASKS: [Task; MAX_TASKS] = [const { Task::new(State::Free) }; MAX_TASKS];

/// The CPUs' idle tasks, which run on the stacks that the CPUs booted on.
pub(crate) static IDLE: [Task; MAX_CPUS] = [const { Task::new(State::Idle) }; MAX_CPUS];

/// The program of the idle tasks: what a CPU's boot becomes.
pub(crate) static IDLE_PROGRAM: Program = Program {
    name: "idle",
    run: |_| (),
};

impl Task {
    const fn new(state: State) -> Self {
        Self {
            sp: AtomicUsize::new(0),
            id: AtomicU32::new(0),
            state: AtomicU8::new(state as u8),
            cause: AtomicU8::new(0),
            kill_wanted: AtomicU8::new(0),
            holds: AtomicU32::new(0),
            wake_at: AtomicU64::new(0),
            waits_for: AtomicUsize::new(0),
            in_interrupt: AtomicU32::new(0),
            in_nmi: AtomicU32::new(0),
            ret_stack: RetStack::new(),
            program: AtomicPtr::new(ptr::null_mut()),
            argument: AtomicUsize::new(0),
            stack_low: AtomicUsize::new(0),
            stack_high: AtomicUsize::new(0),
        }
    }

    /// Makes the place number `place` a task that begins at `entry`. Under the
    /// scheduler's lock, on a free place.
    pub(crate) fn begin(
        place: usize,
        id: u32,
        program: &'static Program,
        argument: usize,
        entry: extern "C" fn() -> !,
    ) -> &'static Self {
        let task = &TASKS[place];
        let low = STACKS[place].0.get() as usize;
        // SAFETY: the place is free, so nobody runs on its stack.
        let sp = unsafe {
            (low as *mut usize).write(CANARY);
            arch::prepare_stack(low + STACK, entry)
        };
        task.set(id, program, argument, (low, low + STACK));
        task.sp.store(sp, Ordering::Relaxed);
        task
    }

    /// Makes the running CPU's boot its idle task.
    pub(crate) fn begin_idle(cpu: usize) -> &'static Self {
        let task = &IDLE[cpu];
        let (low, high) = arch::boot_stack(cpu);
        // SAFETY: the lowest word of a stack of which little is in use.
        unsafe { (low as *mut usize).write(CANARY) };
        task.set(cpu as u32, &IDLE_PROGRAM, 0, (low, high));
        task
    }

    fn set(&self, id: u32, program: &'static Program, argument: usize, stack: (usize, usize)) {
        self.id.store(id, Ordering::Relaxed);
        self.cause.store(0, Ordering::Relaxed);
        self.kill_wanted.store(0, Ordering::Relaxed);
        self.holds.store(0, Ordering::Relaxed);
        self.in_interrupt.store(0, Ordering::Relaxed);
        self.in_nmi.store(0, Ordering::Relaxed);
        self.program
            .store(ptr::from_ref(program).cast_mut(), Ordering::Relaxed);
        self.argument.store(argument, Ordering::Relaxed);
        self.stack_low.store(stack.0, Ordering::Relaxed);
        self.stack_high.store(stack.1, Ordering::Relaxed);
    }

    /// Its number. Idle tasks have their CPU's; the others count on from there.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Its program's name.
    pub(crate) fn name(&self) -> &'static str {
        self.program().map_or("none", |program| program.name)
    }

    /// Runs its program.
    pub(crate) fn run(&self) {
        if let Some(program) = self.program() {
            (program.run)(self.argument.load(Ordering::Relaxed));
        }
    }

    /// What it runs.
    pub(crate) fn program(&self) -> Option<&'static Program> {
        // SAFETY: null, or a static program.
        unsafe { self.program.load(Ordering::Relaxed).as_ref() }
    }

    /// Its state.
    pub(crate) fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Changes its state. Under the scheduler's lock.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// How it ended.
    pub(crate) fn cause(&self) -> Cause {
        Cause::ALL[usize::from(self.cause.load(Ordering::Relaxed))]
    }

    /// Notes how it ends.
    pub(crate) fn set_cause(&self, cause: Cause) {
        self.cause.store(cause as u8, Ordering::Relaxed);
    }

    /// It is to be killed, when it holds no mutex.
    pub(crate) fn want_kill(&self) {
        self.kill_wanted.store(1, Ordering::Relaxed);
    }

    /// It is to be killed, and may be.
    pub(crate) fn is_killed(&self) -> bool {
        self.kill_wanted.load(Ordering::Relaxed) != 0 && self.holds.load(Ordering::Relaxed) == 0
    }

    /// The task whose stack holds `address`: the running one, but for the one
    /// instruction in a switch between the two.
    pub(crate) fn around(address: usize) -> Option<&'static Self> {
        let holds = |task: &&Self| {
            let (low, high) = task.stack();
            (low..high).contains(&address)
        };
        arch::current()
            .filter(holds)
            .or_else(|| TASKS.iter().chain(&IDLE).find(holds))
    }

    /// The number of its place: those of the CPUs' own tasks come last.
    pub(crate) fn place(&self) -> usize {
        let mut places = TASKS.iter().chain(&IDLE);
        let place = places.position(|task| ptr::eq(task, self));
        place.expect("tasks are these")
    }

    /// A CPU's own.
    pub(crate) fn is_idle(&self) -> bool {
        self.state() == State::Idle
    }

    /// Where its stack pointer is saved while it does not run.
    pub(crate) fn saved_sp(&self) -> &AtomicUsize {
        &self.sp
    }

    /// Its stack, from the lowest address to behind the highest.
    pub(crate) fn stack(&self) -> (usize, usize) {
        (
            self.stack_low.load(Ordering::Relaxed),
            self.stack_high.load(Ordering::Relaxed),
        )
    }

    /// Its stack has never been full.
    pub(crate) fn stack_is_whole(&self) -> bool {
        // SAFETY: the lowest word of its stack.
        unsafe { (self.stack().0 as *const usize).read_volatile() == CANARY }
    }
}
