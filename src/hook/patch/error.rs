//! Why text was not patched.

use crate::fgraph::{NotRegistered, RehearseError};

/// Why functions were not enabled or disabled. Nothing has changed, but for an
/// [`init`](super::Patch::init) that failed late, which may have excluded some.
///
/// # Example
///
/// ```
#[doc = example_patch!()]
/// # let id = FGRAPH.register(&COUNTS)?;
/// # // SAFETY: two patchable functions, which nobody else patches.
/// # unsafe { PATCH.init(listed)? };
/// FGRAPH.unregister(id)?;
/// assert_eq!(PATCH.enable(id, |_| true), Err(PatchError::NotRegistered));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchError {
    /// [`Patch::init`](super::Patch::init) was not called, or gave an error.
    NotInitialised,
    /// [`Patch::init`](super::Patch::init) was called before.
    Initialised,
    /// The callback is not registered, or not any more.
    NotRegistered,
    /// The running task is inside the tracer: call it outside of a callback.
    InCallback,
    /// All callback slots are taken, and [`Patch::init`](super::Patch::init) needs a free one:
    /// unregister one, or call it earlier.
    NoSlot,
    /// The running task has no shadow stack, or one that is full: attach
    /// words before [`Patch::init`](super::Patch::init).
    NoStack,
    /// No listed function has an entry of the shape that the
    /// [flag](super#) makes: it was compiled with other numbers, or the
    /// image runs at other addresses than it was linked for and nobody
    /// relocated the list.
    NoFunction,
}

impl From<NotRegistered> for PatchError {
    fn from(_: NotRegistered) -> Self {
        Self::NotRegistered
    }
}

impl From<RehearseError> for PatchError {
    fn from(error: RehearseError) -> Self {
        match error {
            RehearseError::NoSlot => Self::NoSlot,
            RehearseError::NoStack => Self::NoStack,
        }
    }
}

impl core::fmt::Display for PatchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotInitialised => "the table of patchable functions is empty; call init first",
            Self::Initialised => "the table of patchable functions is set already; call init once",
            Self::NotRegistered => {
                "the callback is not registered, or not any more; register it first"
            }
            Self::InCallback => "a callback can not patch; do it outside of the tracer",
            Self::NoSlot => "all callback slots are taken; init needs a free one",
            Self::NoStack => "the running task has no shadow stack with room; attach words first",
            Self::NoFunction => {
                "no listed function has the entry of -Zpatchable-function-entry=24,16 \
                 (x86-64) or 10,8 (AArch64) where the list says"
            }
        })
    }
}

impl core::error::Error for PatchError {}
