//! What the kernel does when something interrupts it. The architecture calls
//! these from its stubs, with interrupts off, on the interrupted task's stack
//! unless it says otherwise.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::arch::{self, TrapFrame, current};
use crate::backtrace::{self, Backtrace};
use crate::task::{Cause, Task};
use crate::{println, sched, trace};

/// Faults that were caught by `arch::probe`.
pub(crate) static PROBED: AtomicUsize = AtomicUsize::new(0);
/// Breakpoints.
pub(crate) static BREAKPOINTS: AtomicUsize = AtomicUsize::new(0);
/// Interrupts that nobody sent.
pub(crate) static SPURIOUS: AtomicUsize = AtomicUsize::new(0);

/// Counts a handler as running, on the task that it interrupted.
fn nested<R>(counter: fn(&Task) -> &AtomicU32, handler: impl FnOnce() -> R) -> R {
    let Some(task) = current() else {
        return handler();
    };
    counter(task).fetch_add(1, Ordering::Relaxed);
    let result = handler();
    counter(task).fetch_sub(1, Ordering::Relaxed);
    result
}

/// The timer. It switches tasks after the interrupt has ended as far as the
/// counts go: the interrupted task leaves as if it had called the scheduler.
pub(crate) fn tick() {
    nested(
        |task| &task.in_interrupt,
        || {
            arch::this_cpu().timer_ticks.fetch_add(1, Ordering::Relaxed);
        },
    );
    sched::preempt();
}

/// An NMI that another CPU sent. Takes no lock, prints nothing: what it
/// interrupted may hold any. On a stack of its own.
pub(crate) fn nmi(frame: &TrapFrame) {
    nested(
        |task| &task.in_nmi,
        || {
            arch::this_cpu().nmis.fetch_add(1, Ordering::Relaxed);
            trace::nmi(frame);
        },
    );
}

/// Something read or wrote where nothing is mapped. `caught`: `arch::probe`
/// did and goes on; otherwise the task ends.
pub(crate) fn page_fault(frame: &TrapFrame, address: usize, caught: bool) {
    if caught {
        nested(
            |task| &task.in_interrupt,
            || {
                PROBED.fetch_add(1, Ordering::Relaxed);
                backtrace::PROBED.capture(frame);
            },
        );
    } else {
        fatal(frame, format_args!("page fault at {address:#x}"));
    }
}

/// The processor refused an instruction.
pub(crate) fn exception(frame: &TrapFrame, name: &str, error: u64) {
    fatal(frame, format_args!("{name}, error {error:#x}"));
}

/// The debugger's trap. Called by a handler with the interrupt ABI.
pub(crate) fn breakpoint(pc: usize) {
    nested(
        |task| &task.in_interrupt,
        || {
            BREAKPOINTS.fetch_add(1, Ordering::Relaxed);
            println!("breakpoint at {}", crate::symbols::At(pc));
        },
    );
}

/// Nothing to do. Called by a handler with the interrupt ABI.
pub(crate) fn spurious() {
    SPURIOUS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the task if it alone is hurt, or else the kernel.
fn fatal(frame: &TrapFrame, what: core::fmt::Arguments<'_>) {
    let task = current().filter(|task| {
        frame.interruptible()
            && !task.is_idle()
            && task.in_interrupt.load(Ordering::Relaxed) == 0
            && task.in_nmi.load(Ordering::Relaxed) == 0
    });
    let Some(task) = task else {
        panic!(
            "{what} at {}\n{}",
            crate::symbols::At(frame.pc()),
            Backtrace::of(frame)
        );
    };
    nested(
        |task| &task.in_interrupt,
        || {
            let (id, name) = (task.id(), task.name());
            println!("task {id} {name}: {what}\n{}", Backtrace::of(frame));
        },
    );
    sched::exit(Cause::Faulted);
}
