//! The seam between the crate and its atomics: `core`'s, or those of a model
//! checker, under `--cfg loom`.
//!
//! Everything that several CPUs, or an owner and its interrupts, see goes
//! through the names of this module, which knows none of its users.

#[cfg(loom)]
#[path = "sync/modelled.rs"]
mod imp;

#[cfg(not(loom))]
mod imp {
    #[cfg(target_arch = "aarch64")]
    pub(crate) use core::sync::atomic::AtomicU16;
    #[cfg(target_has_atomic = "64")]
    pub(crate) use core::sync::atomic::AtomicU64;
    pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, compiler_fence, fence};
    pub(crate) use spin::Mutex;

    /// Words that somebody has given away, as atomic ones: an `AtomicUsize`
    /// has the size and validity of a `usize`, and on the targets where this
    /// crate compiles its alignment.
    pub(crate) fn words(words: &mut [usize]) -> *mut AtomicUsize {
        words.as_mut_ptr().cast()
    }
}

pub(crate) use core::sync::atomic::Ordering;
pub(crate) use imp::*;

/// Adds to a counter that contexts of one CPU, or several CPUs, share. Relaxed:
/// nothing is published by it.
#[cold]
pub(crate) fn count(counter: &AtomicU32, by: u32) {
    counter.fetch_add(by, Ordering::Relaxed);
}
