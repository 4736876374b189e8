//! Where the return address of a traced call is while the stub has it: for
//! unwinders that start at an interrupted instruction.
//!
//! | interrupted | the slot is | and holds |
//! | --- | --- | --- |
//! | at the entry, in the thunk | at `rsp` | the caller's address |
//! | before `push rbp` | at `rsp` | the caller's address |
//! | before `mov rbp, rsp` | at `rsp + 8` | the caller's address |
//! | up to `leave` | above the frame pointer | the caller's address |
//! | up to the new stack pointer | at `rsp` | the caller's address |
//! | at the call of the body, and after its return | below `rsp` | whatever came |
//! | after `push r11` | at `rsp` | the stub's address |
//! | after `push rbp` | at `rsp + 8` | the stub's address |
//! | up to `leave` | above the frame pointer | the stub's, then the caller's |
//! | at the end | at `rsp` | the caller's address |

/// Where a return slot is, if the frame pointer does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// So many bytes above the stack pointer.
    Slot(usize),
    /// In the word below the stack pointer, which anything may have written.
    Below,
}

const AT_SP: Option<Place> = Some(Place::Slot(0));
const PUSHED: Option<Place> = Some(Place::Slot(size_of::<usize>()));

/// Where it is in a thunk to the stub.
pub(crate) const IN_THUNK: Place = Place::Slot(0);

/// Where it is from the stub's begin, and from each of the header's bounds, on:
/// the rows of the table above.
pub(crate) const PLACES: [Option<Place>; 9] = [
    AT_SP,
    PUSHED,
    None,
    AT_SP,
    Some(Place::Below),
    AT_SP,
    PUSHED,
    None,
    AT_SP,
];
