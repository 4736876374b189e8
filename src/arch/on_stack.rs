//! Where calls store their return addresses themselves: slots hold them, no
//! chain is followed. Also where there is no hook, and so no replaced address.

/// A call stores its return address, and its slot is where.
pub(crate) const RETURN_ON_STACK: bool = true;

/// Not used: no chain is followed.
pub(crate) const CALLER: usize = 0;
/// Not used: no chain is followed.
pub(crate) const RETURN: usize = size_of::<usize>();

/// Not used: no chain is followed.
#[inline(always)]
pub(crate) fn frame_pointer() -> usize {
    0
}

/// A return address without its signature: it has none.
#[inline(always)]
pub(crate) fn strip(address: usize) -> usize {
    address
}

/// `ret` in place of the return address `seen`.
#[inline(always)]
pub(crate) fn replaced(_seen: usize, ret: usize, _sp: usize) -> Option<usize> {
    Some(ret)
}
