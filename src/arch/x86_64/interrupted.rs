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

use super::{HEADER, entry};

/// The stub's header behind its first word: the offsets at which the rows of
/// the table above, from the third on, begin; the last is the stub's end.
pub(super) type Bounds = [u16; 9];

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

/// What is where from the stub's begin, and from each bound, on.
const PLACES: [Option<Place>; 9] = [
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

/// Where the return slot is of what was interrupted at `pc`; `None` where the
/// frame pointer tells, or if the code is not that of `stub` or of a function
/// that jumps to it.
///
/// # Safety
///
/// `stub` is a stub's, and the 32 bytes around `pc` are readable.
pub(crate) unsafe fn interrupted(pc: usize, stub: usize) -> Option<Place> {
    let begin = stub.wrapping_sub(HEADER);
    // SAFETY: every stub has the header.
    let bounds: Bounds =
        unsafe { (begin.wrapping_add(size_of::<usize>()) as *const Bounds).read_unaligned() };
    let offset = pc.wrapping_sub(begin);
    let passed = bounds.iter().filter(|&&bound| usize::from(bound) <= offset);
    if offset >= HEADER
        && let Some(&place) = PLACES.get(passed.count())
    {
        return place;
    }
    // SAFETY: the caller's.
    unsafe { entry::is_in_thunk(pc, stub) }.then_some(Place::Slot(0))
}
