//! What [`Patch::init`](super::Patch::init) finds out: which listed addresses
//! are entries, and which of them must never be hooked.
//!
//! This file decides who is excluded. It hooks nobody for good.

use core::hint::black_box;
use core::mem::MaybeUninit;

use static_assertions::const_assert;

use super::{Functions, Global, PatchText, enter, leave};
use crate::arch::{self, Registers, entry};
use crate::fgraph::RehearseError;

// What `Patch::init` asks of a listed address.
const_assert!(entry::PADDING + entry::REACH <= 48);

/// How far a function is searched whose end the table does not tell.
const PAGE: usize = 4096;

/// Tells the functions apart, and excludes those that return from interrupts.
///
/// # Safety
///
/// `listed` is this image's table, and text is writable.
pub(super) unsafe fn find(listed: &[usize], found: &mut Functions) {
    for (i, &address) in listed.iter().enumerate() {
        let func = entry::func(address);
        // The next function ends this one, or the page does.
        let page = PAGE - func % PAGE;
        let next = listed.get(i + 1).and_then(|next| next.checked_sub(func));
        let len = next.filter(|&next| next < 1 << 20).unwrap_or(page);
        // SAFETY: listed, so text up to the next listed one or the page's end.
        unsafe {
            if address == 0 || entry::padding(func) != entry::Padding::Fresh {
                found.foreign += 1;
            } else if entry::returns_from_interrupt(func, len) {
                entry::exclude(func);
                found.interrupt += 1;
            } else {
                found.patchable += 1;
            }
        }
    }
}

/// Excludes the functions that the tracer runs outside of its guard.
///
/// # Safety
///
/// As for [`find`].
pub(super) unsafe fn learn<B: Global<N> + PatchText, const N: usize>(
    listed: &[usize],
    found: &mut Functions,
) -> Result<(), RehearseError> {
    let stub = arch::learn_stub();
    let fresh = |&&address: &&usize| {
        // SAFETY: listed.
        address != 0 && unsafe { entry::padding(entry::func(address)) } == entry::Padding::Fresh
    };
    for &address in listed.iter().filter(fresh) {
        let func = entry::func(address);
        // SAFETY: listed, and text is writable. A stub out of reach leaves
        // the function off, and `enable` will leave it so too.
        unsafe {
            if entry::make_ready(func, stub) {
                entry::turn_on(func);
            }
        }
    }
    let ready = |&&address: &&usize| {
        // SAFETY: listed.
        address != 0 && unsafe { entry::padding(entry::func(address)) } == entry::Padding::Ready
    };
    // What has run so far, this loop's own helpers, is forgotten.
    for &address in listed.iter().filter(ready) {
        // SAFETY: listed, ready, and text is writable.
        unsafe { entry::store_set(entry::func(address), 0) };
    }
    let rehearsed = walk_through::<B, N>();
    for &address in listed.iter().filter(ready) {
        let func = entry::func(address);
        // SAFETY: as above. A function is turned off before its padding
        // changes, and the mark is read before either.
        unsafe {
            let ran = entry::set(func) != 0;
            entry::turn_off(func);
            entry::make_fresh(func);
            if ran {
                entry::exclude(func);
                found.own += 1;
                found.patchable -= 1;
            }
        }
    }
    rehearsed
}

/// Runs what a stub runs, on every path that lies outside of the guard.
#[inline(never)]
fn walk_through<B: Global<N> + PatchText, const N: usize>() -> Result<(), RehearseError> {
    /// A padding with a set, for the function of a made-up call.
    #[repr(C, align(16))]
    struct Padding([u16; entry::PADDING / 2]);
    let registers = MaybeUninit::<Registers>::zeroed();
    // The stub calls these two by their addresses. Called by name, they could
    // become part of this function, and what the stub calls would not have run.
    let enter: unsafe extern "C" fn(_, _, _) -> _ = black_box(enter::<B, N>);
    let leave: unsafe extern "C" fn(_, _) -> _ = black_box(leave::<B, N>);
    B::fgraph().rehearse(
        |set, slot| {
            let padding = Padding([set; entry::PADDING / 2]);
            let func = (&raw const padding.0 as usize).wrapping_add(entry::PADDING);
            // SAFETY: slot and registers are readable, and the set before
            // `func` is. No callback takes part, so no frame is left behind
            // and nobody is to leave.
            unsafe { enter(registers.as_ptr(), slot, func) }
        },
        // SAFETY: the rehearsal has put a frame there for `slot`.
        |slot| unsafe { leave(registers.as_ptr(), slot) },
    )
}
