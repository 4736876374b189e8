//! What the kernel does when something interrupts it. The architecture calls
//! these from its stubs, with interrupts off, on the interrupted task's stack
//! unless it says otherwise.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::{self, TrapFrame, current};
use crate::backtrace::{self, Backtrace};
use crate::symbols::{After, At};
use crate::task::Cause;
use crate::{println, sched, trace};

/// Faults that were caught by [`probe`].
pub(crate) static PROBED: AtomicUsize = AtomicUsize::new(0);
/// Breakpoints.
pub(crate) static BREAKPOINTS: AtomicUsize = AtomicUsize::new(0);
/// Instructions that were stepped through.
pub(crate) static STEPS: AtomicUsize = AtomicUsize::new(0);
/// Interrupts that nobody sent.
pub(crate) static SPURIOUS: AtomicUsize = AtomicUsize::new(0);

/// The timer. Afterwards the architecture calls [`crate::sched::preempt`].
pub(crate) fn tick(frame: &TrapFrame) {
    trace::tick(frame);
    arch::this_cpu().timer_ticks.fetch_add(1, Ordering::Relaxed);
}

/// An NMI that another CPU sent. Takes no lock, prints nothing: what it
/// interrupted may hold any. On a stack of its own. It must not fault: the
/// return from a fault would let the next NMI in, onto the same stack.
pub(crate) fn nmi(frame: &TrapFrame) {
    arch::this_cpu().nmis.fetch_add(1, Ordering::Relaxed);
    trace::nmi(frame);
}

/// An instruction of `arch::step_through` is done.
pub(crate) fn step(frame: &TrapFrame) {
    STEPS.fetch_add(1, Ordering::Relaxed);
    crate::scenario::backtraces::stepped_to(frame);
}

/// [`probe`] read where nothing is mapped. It goes on and says so.
#[inline(never)]
pub(crate) fn probe_fault(frame: &TrapFrame) {
    PROBED.fetch_add(1, Ordering::Relaxed);
    backtrace::PROBED.capture(frame);
}

/// Reads a word, if the address is mapped.
pub(crate) fn probe(address: usize) -> Option<u64> {
    let mut value = 0;
    // SAFETY: what is mapped may be read; nothing else is changed by it.
    unsafe { arch::probe_read(address, &mut value) }.then_some(value)
}

/// Something read or wrote where nothing is mapped.
pub(crate) fn page_fault(frame: &TrapFrame, address: usize) {
    fatal(frame, format_args!("page fault at {address:#x}"));
}

/// The processor refused an instruction.
pub(crate) fn exception(frame: &TrapFrame, name: &str, error: u64) {
    fatal(frame, format_args!("{name}, error {error:#x}"));
}

/// The debugger's trap; `pc` is behind it.
pub(crate) fn breakpoint(pc: usize) {
    BREAKPOINTS.fetch_add(1, Ordering::Relaxed);
    println!("breakpoint at {}", After(pc));
}

/// Nothing to do.
pub(crate) fn spurious() {
    SPURIOUS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the task if it alone is hurt, or else the kernel.
fn fatal(frame: &TrapFrame, what: core::fmt::Arguments<'_>) {
    let task = current().filter(|task| {
        // This handler is the only one on top of it.
        frame.interruptible()
            && !task.is_idle()
            && task.in_interrupt.load(Ordering::Relaxed) == 1
            && task.in_nmi.load(Ordering::Relaxed) == 0
    });
    let Some(task) = task else {
        panic!("{what} at {}\n{}", At(frame.pc()), Backtrace::of(frame));
    };
    let (id, name) = (task.id(), task.name());
    println!("task {id} {name}: {what}\n{}", Backtrace::of(frame));
    // The handler ends here, on the task's stack, and the task with it.
    task.in_interrupt.store(0, Ordering::Relaxed);
    sched::exit(Cause::Faulted);
}
