//! What the architectures' paddings have in common: the states that one can be
//! in, and the set at its begin.

use super::chosen::entry::PADDING;
use crate::sync::{AtomicU16, Ordering};

/// What a padding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Padding {
    /// As the compiler made it.
    Fresh,
    /// With set and thunk.
    Ready,
    /// Never to be hooked.
    Excluded,
    /// Not one of the flag that this architecture takes.
    Foreign,
}

/// The function of an address from the section of patchable entries.
pub(crate) const fn func(listed: usize) -> usize {
    listed.wrapping_add(PADDING)
}

#[inline(always)]
fn set_word<'a>(func: usize) -> &'a AtomicU16 {
    let set = func.wrapping_sub(PADDING) as *const AtomicU16;
    // SAFETY: called for functions whose padding is ready (or in whose place
    // the hook's tests put an aligned half-word): the half-word is text,
    // aligned, and only accessed as an atomic.
    unsafe { &*set }
}

/// The callbacks that follow `func`. Relaxed: a set that is older or newer
/// than the call is as good.
#[inline(always)]
pub(crate) fn set(func: usize) -> usize {
    usize::from(set_word(func).load(Ordering::Relaxed))
}

/// Stored at once. No instruction cache is told: it is never executed.
///
/// # Safety
///
/// Text is writable, and the padding of `func` is ready.
pub(crate) unsafe fn store_set(func: usize, set: usize) {
    set_word(func).store(set as u16, Ordering::Relaxed);
}
