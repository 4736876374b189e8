//! The seam between the crate and its atomics: `core`'s, or those of a model
//! checker, under `--cfg loom`.
//!
//! Everything that several CPUs, or an owner and its interrupts, see goes
//! through the names of this module, which knows none of its users.

pub(crate) mod number;

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

/// Adds to a counter that contexts of one CPU, or several CPUs, share. Relaxed,
/// as all that reads such a counter: nothing is published by it.
#[cold]
pub(crate) fn count(counter: &AtomicU32, by: u32) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Stores `to` into `word` if it holds `from`, by one instruction as this CPU
/// and its interrupts see it. The word is written by no other CPU meanwhile, so
/// the bus need not be locked, which would take several times as long.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(loom)))]
#[inline(always)]
pub(crate) fn replace(word: &AtomicUsize, from: usize, to: usize) -> bool {
    // SAFETY: the word is one that may be read and written.
    unsafe {
        core::arch::asm!(
            "cmpxchg [{word}], {to}",
            "jne {other}",
            word = in(reg) word.as_ptr(),
            to = in(reg) to,
            inout("rax") from => _,
            other = label { return false },
            options(nostack)
        );
    }
    true
}

/// Stores `to` into `word` if it holds `from`. Relaxed: for the CPU that writes
/// it and its interrupts.
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(loom))))]
#[inline(always)]
pub(crate) fn replace(word: &AtomicUsize, from: usize, to: usize) -> bool {
    word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}
