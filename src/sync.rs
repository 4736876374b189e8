//! The seam between the crate and its atomics: `core`'s.
//!
//! Everything that several CPUs, or an owner and its interrupts, see goes
//! through the names of this module.

pub(crate) use core::sync::atomic::{
    AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering, compiler_fence, fence,
};

#[cfg(target_has_atomic = "64")]
pub(crate) use core::sync::atomic::AtomicU64;

/// Adds to a counter that contexts of one CPU, or several CPUs, share. Relaxed:
/// nothing is published by it.
#[cold]
pub(crate) fn count(counter: &AtomicU32, by: u32) {
    counter.fetch_add(by, Ordering::Relaxed);
}
