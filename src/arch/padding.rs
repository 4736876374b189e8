//! What the architectures' paddings have in common: the states that one can be
//! in.

use super::chosen::entry::PADDING;

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
