//! Everywhere the kernel and the tracer meet.
//!
//! The rest of the kernel calls these and knows nothing of the tracer.

#![expect(dead_code, reason = "the tracer is not linked in yet")]

use crate::arch::{self, TrapFrame};
use crate::options::Options;
use crate::task::{Cause, Task};

/// Which kind of code runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Context {
    /// A task.
    Task,
    /// An interrupt's or exception's handler.
    Interrupt,
    /// An NMI's.
    Nmi,
}

/// The kernel is up, the workload is not: what the command line wants traced
/// is traced from here on. In a task.
pub(crate) fn start(_options: &Options) {}

/// The workload is done: stop, and print. In a task.
pub(crate) fn finish(_options: &Options) {}

/// A task is about to run for the first time. Under the scheduler's lock,
/// interrupts off; the task's place may have had another before.
pub(crate) fn task_created(_task: &Task) {}

/// A task ends. By itself, in task context; or killed: under the scheduler's
/// lock with interrupts off, itself or, if it does not run, by another task.
pub(crate) fn task_exit(_task: &Task, _cause: Cause) {}

/// `previous` gives the CPU to `next`. Under the scheduler's lock, still on
/// `previous`'s stack, with it the current task.
pub(crate) fn task_switch(_previous: &Task, _next: &Task) {}

/// The timer may switch `task`, the running one, away: it is not inside a
/// callback or the tracer.
pub(crate) fn may_preempt(_task: &Task) -> bool {
    true
}

/// A panic is about to walk the running task's stack: return addresses that
/// were replaced are to be put back. Any context.
pub(crate) fn restore() {}

/// The address to which the call returns whose return slot is `slot` and holds
/// `seen`. Every address of every backtrace comes through here. Any context;
/// takes no lock.
pub(crate) fn return_address(_slot: usize, seen: usize) -> usize {
    seen
}

/// An NMI that was sent for it. Takes no lock.
pub(crate) fn nmi(frame: &TrapFrame) {
    crate::backtrace::NMI.capture(frame);
}

/// The running context. Any context.
pub(crate) fn context() -> Context {
    use core::sync::atomic::Ordering::Relaxed;
    match arch::current() {
        Some(task) if task.in_nmi.load(Relaxed) != 0 => Context::Nmi,
        Some(task) if task.in_interrupt.load(Relaxed) != 0 => Context::Interrupt,
        Some(_) | None => Context::Task,
    }
}

/// The grace period: every callback that ran anywhere when it was called has
/// returned. In a task.
pub(crate) fn synchronize() {
    crate::sched::grace_period();
}

/// Runs `f`, which writes to text.
pub(crate) fn patch_text<R>(f: impl FnOnce() -> R) -> R {
    arch::with_other_cpus_stopped(f)
}
