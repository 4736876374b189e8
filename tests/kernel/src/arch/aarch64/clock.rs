//! Time: the generic timer's virtual counter, whose speed is known.

use core::arch::asm;

use crate::TICK_HZ;

/// The counter's value since boot; all CPUs read the same one.
#[inline]
pub(crate) fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register. Not before what comes before it is done.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// The same as time. In 128 bits, or it would overflow within minutes.
#[inline]
pub(crate) fn ticks_to_ns(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(frequency().max(1))) as u64
}

/// Ticks of a second.
#[inline]
fn frequency() -> u64 {
    let hz;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) };
    hz
}

/// The timer of this CPU interrupts it once, a tick of the kernel from now.
pub(super) fn arm() {
    // SAFETY: the interrupt has a handler, which calls this again.
    unsafe {
        asm!(
            "msr cntv_tval_el0, {ticks}",
            "msr cntv_ctl_el0, {on}",
            "isb",
            ticks = in(reg) frequency() / TICK_HZ,
            on = in(reg) 1_u64,
            options(nomem, nostack, preserves_flags),
        );
    }
}
