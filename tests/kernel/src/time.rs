//! Time since boot, in nanoseconds.

use crate::arch;

/// Now.
pub(crate) fn now() -> u64 {
    arch::ticks_to_ns(arch::ticks())
}

/// Waits without sleeping.
pub(crate) fn spin(ns: u64) {
    let until = now() + ns;
    while now() < until {
        core::hint::spin_loop();
    }
}
