//! Return addresses given back from inside an interrupt: to calls that go on,
//! and before a panic there.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::nest;
use crate::arch::TrapFrame;
use crate::options::Options;
use crate::{println, sched, symbols, trace};

/// Each interrupt restores what it interrupted.
static RESTORES: AtomicBool = AtomicBool::new(false);
/// The next interrupt of what waits for it panics.
static PANICS: AtomicBool = AtomicBool::new(false);
static RESTORED: AtomicUsize = AtomicUsize::new(0);

/// Each timer interrupt and each NMI comes by here.
pub(crate) fn interrupted(frame: &TrapFrame) {
    if RESTORES.load(Ordering::Relaxed) {
        trace::restore();
        RESTORED.fetch_add(1, Ordering::Relaxed);
    }
    let panics = PANICS.load(Ordering::Relaxed)
        && symbols::find(frame.pc())
            .is_some_and(|symbol| symbol.start == wait_for_interrupt as *const () as usize);
    assert!(!panics, "as asked for");
}

/// The workload, whose calls get their addresses back at odd moments, from
/// timer interrupts and NMIs. They go on, and end as unwound.
///
/// A restored call returns without the tracer: another call tells that it is
/// gone, in each task that is left.
pub(super) fn often(options: &Options) -> bool {
    RESTORES.store(true, Ordering::Relaxed);
    let fine = super::beside_nmis(|| crate::work::run(options));
    RESTORES.store(false, Ordering::Relaxed);
    // The CPUs' idle tasks run, which yield, and then this one.
    sched::sleep(20_000_000);
    crate::work::fill();
    let restored = RESTORED.load(Ordering::Relaxed);
    println!("restored: {restored} times");
    fine && restored > 10
}

/// The kernel ends in a timer interrupt, with exit code 101.
pub(super) fn panic(_: &Options) -> bool {
    nest(10, &wait_for_interrupt);
    false
}

#[inline(never)]
fn wait_for_interrupt() {
    PANICS.store(true, Ordering::Relaxed);
    loop {
        core::hint::spin_loop();
    }
}
