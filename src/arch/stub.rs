//! What the architectures' stubs have in common: their header, and the look-up
//! of what was interrupted in one.
//!
//! This file knows no instruction. Where a stub keeps what is its
//! architecture's, `chosen`.

use super::chosen::{IN_THUNK, PLACES, Place, entry, learn, patched, trap};
use crate::hook::Global;

/// What a stub begins with; its code follows, aligned to 16 bytes.
#[repr(C)]
struct Header {
    /// From the header to where the stub's calls return to.
    returns: usize,
    bounds: Bounds,
}

/// The offsets from the header at which each but the first of [`PLACES`]
/// begins; the last is the stub's end.
type Bounds = [u16; PLACES.len()];

/// Bytes before the stub's code.
pub(super) const HEADER: usize = size_of::<Header>().next_multiple_of(16);
/// Those of them that are not the header's: padding, and its last.
pub(super) const HEADER_PAD: usize =
    HEADER - core::mem::offset_of!(Header, bounds) - size_of::<Bounds>();

/// The address of the common stub of a tracer's patched functions.
pub(crate) fn stub<B: Global<N>, const N: usize>() -> usize {
    header::<B, N>().wrapping_add(HEADER)
}

/// The address to which calls through that stub return.
pub(crate) fn stub_return<B: Global<N>, const N: usize>() -> usize {
    let header = header::<B, N>();
    // SAFETY: every stub begins with one.
    let Header { returns, .. } = unsafe { (header as *const Header).read_unaligned() };
    header.wrapping_add(returns)
}

fn header<B: Global<N>, const N: usize>() -> usize {
    patched::<B, N> as unsafe extern "C" fn() as usize
}

/// The address to which a call returns whose caller is lost: a trap.
pub(crate) fn lost() -> usize {
    trap as unsafe extern "C" fn() as usize
}

/// The address of the stub that marks functions instead of tracing them.
pub(crate) fn learn_stub() -> usize {
    learn as unsafe extern "C" fn() as usize
}

/// Where the return address is of what was interrupted at `pc`; `None` where
/// the frame pointer tells, or if the code is not that of `stub` or of a
/// function that jumps to it.
///
/// # Safety
///
/// `stub` is a stub's, and the 32 bytes around `pc` are readable.
pub(crate) unsafe fn interrupted(pc: usize, stub: usize) -> Option<Place> {
    let begin = stub.wrapping_sub(HEADER);
    // SAFETY: every stub begins with one.
    let Header { bounds, .. } = unsafe { (begin as *const Header).read_unaligned() };
    let offset = pc.wrapping_sub(begin);
    let passed = bounds.iter().filter(|&&bound| usize::from(bound) <= offset);
    if offset >= HEADER
        && let Some(&place) = PLACES.get(passed.count())
    {
        return place;
    }
    // SAFETY: the caller's.
    unsafe { entry::is_in_thunk(pc, stub) }.then_some(IN_THUNK)
}
