//! Everywhere the kernel and the tracer meet.
//!
//! The rest of the kernel calls these and knows nothing of the tracer. How the
//! tracer sees the kernel is in [`platform`]; the tasks' shadow stacks get
//! their words in [`stacks`].

use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) use fgraph::Context;
use fgraph::{CallbackId, Platform};

use crate::arch::TrapFrame;
use crate::options::Options;
use crate::println;
use crate::sync::SpinLock;
use crate::task::{Cause, Task};

pub(crate) mod balance;
mod lines;
mod output;
pub(crate) mod platform;
pub(crate) mod select;
pub(crate) mod stacks;
#[allow(dead_code, unreachable_pub, reason = "shared with the example")]
#[path = "../../graph/steps.rs"]
mod steps;
mod tracers;
pub(crate) mod walks;

use balance::Balance;
use platform::{FGRAPH, Kernel, PATCH};

/// Functions that are never traced, beside those that the tracer finds itself.
/// They look at a depth that must not be their own.
const EXCLUDED: &str = "kernel::trace::stacks::depth,*RetStack>::depth,*RetStack>::frames";

/// The tracer's functions: when it runs, they are never traced but only counted
/// as such, and slow it down. `own=yes` leaves them hooked all the same.
const OWN: &str = "*fgraph*";

/// What the command line wants traced.
static COUNTED: Balance = Balance::new();
static IDS: SpinLock<[Option<CallbackId>; 3]> = SpinLock::new([None; 3]);

/// The kernel is up, the workload is not: what the command line wants traced
/// is traced from here on. In a task.
pub(crate) fn start(options: &Options) {
    let Some(patterns) = options.trace else {
        return;
    };
    begin(options);
    let [graph, profile] = tracers::start(options, patterns);
    *IDS.lock() = [graph, profile, Some(follow(&COUNTED, patterns))];
}

/// The workload is done: nothing more is traced. In a task.
pub(crate) fn stop() {
    let ids = *IDS.lock();
    ids.into_iter().flatten().for_each(unfollow);
}

/// Prints what was traced; false if the accounts do not balance. In a task,
/// after [`stop`] has returned: that call, too, was traced.
#[must_use]
pub(crate) fn report(options: &Options) -> bool {
    let ids = core::mem::take(&mut *IDS.lock());
    if ids == [None; 3] {
        return true;
    }
    let mut fine = is_balanced(&[&COUNTED]);
    output::print(options);
    for id in ids.into_iter().flatten() {
        println!("missed for want of room: {}", FGRAPH.missed(id));
        fine &= FGRAPH.unregister(id).is_ok();
    }
    println!("counted: {}", COUNTED.counts());
    println!("stacks: {:?}", stacks::totals());
    stacks::attach_no_more();
    println!("balanced: {fine}");
    fine
}

/// Waits for the last traced calls; whether all came out, as accepted.
pub(crate) fn is_balanced(accounts: &[&Balance]) -> bool {
    stacks::wait_for_returns() && accounts.iter().all(|one| one.counts().is_balanced())
}

/// From now on tasks have shadow stacks, and functions can be traced. In a
/// task, outside of traced calls.
pub(crate) fn begin(options: &Options) {
    static INIT: AtomicBool = AtomicBool::new(false);
    stacks::attach_all(options.words);
    if INIT.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: this kernel's own table.
    let found = unsafe { PATCH.init(fgraph::patchable_functions!()) }.expect("the first init");
    let excluded = PATCH
        .exclude(|func| {
            select::selects(EXCLUDED, func) || !options.own && select::selects(OWN, func)
        })
        .expect("after init");
    println!("trace: {found:?}, excluded {excluded}");
}

/// Registers a callback and has it follow functions.
pub(crate) fn follow<C: fgraph::Callback>(callback: &'static C, patterns: &str) -> CallbackId {
    let id = FGRAPH.register(callback).expect("a slot");
    let functions = PATCH.enable(id, |func| select::selects(patterns, func));
    println!(
        "trace: {} functions match {patterns}",
        functions.expect("after init")
    );
    id
}

/// Calls in flight still return to the callback.
pub(crate) fn unfollow(id: CallbackId) {
    PATCH.disable(id, |_| true).expect("after init");
}

/// A task is about to run for the first time. Under the scheduler's lock,
/// interrupts off; the task's place may have had another before.
pub(crate) fn task_created(task: &Task) {
    output::keep_name(task);
    stacks::attach(task);
}

/// A task ends. By itself, in task context; or killed: under the scheduler's
/// lock with interrupts off, itself or, if it does not run, by another task.
pub(crate) fn task_exit(task: &Task, _cause: Cause) {
    stacks::exit(task);
}

/// `previous` gives the CPU to `next`. Under the scheduler's lock, still on
/// `previous`'s stack, with it the current task.
pub(crate) fn task_switch(previous: &Task, next: &Task) {
    FGRAPH.switch(Some(&previous.ret_stack), Some(&next.ret_stack));
}

/// The timer may switch `task`, the running one, away: it is not inside a
/// callback or the tracer.
pub(crate) fn may_preempt(task: &Task) -> bool {
    !task.ret_stack.is_inside()
}

/// A panic is about to walk the running task's stack: return addresses that
/// were replaced are to be put back. Any context.
pub(crate) fn restore() {
    // SAFETY: tasks' stacks are static memory.
    unsafe { FGRAPH.restore() };
}

/// The address to which the call returns whose return slot is `slot` and holds
/// `seen`. Every address of every backtrace comes through here. Any context;
/// takes no lock.
pub(crate) fn return_address(slot: usize, seen: usize) -> usize {
    match Task::around(slot).or_else(crate::arch::current) {
        Some(task) => FGRAPH.real_return(&task.ret_stack, slot, seen),
        None => seen,
    }
}

/// The return address of what was interrupted in the tracer's own stub, where
/// the frame pointer does not tell. Any context; takes no lock.
pub(crate) fn interrupted(frame: &TrapFrame) -> Option<usize> {
    let task = Task::around(frame.sp()).or_else(crate::arch::current)?;
    let (stack, pc, sp) = (&task.ret_stack, frame.pc(), frame.sp());
    // SAFETY: the frame is that of an interrupt that is being handled, on a
    // stack of this kernel.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        PATCH.interrupted(stack, pc, sp)
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        PATCH.interrupted(stack, pc, sp, frame.link())
    }
}

/// An NMI that was sent for it. Takes no lock.
pub(crate) fn nmi(frame: &TrapFrame) {
    walks::check(frame);
    crate::scenario::backtraces::nmi(frame);
    crate::scenario::restore::interrupted(frame);
}

/// A timer interrupt.
pub(crate) fn tick(frame: &TrapFrame) {
    crate::scenario::backtraces::tick(frame);
    crate::scenario::restore::interrupted(frame);
}

/// The running context. Any context.
pub(crate) fn context() -> Context {
    Kernel::context()
}
