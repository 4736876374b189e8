//! Walks from NMIs, which arrive at any instruction: each must get through to
//! where its task began.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::{self, TrapFrame};
use crate::backtrace::{NMI, Walk};
use crate::symbols;

/// Walks that were looked at.
pub(crate) static WALKS: AtomicUsize = AtomicUsize::new(0);
/// Walks that ended elsewhere.
pub(crate) static BROKEN: AtomicUsize = AtomicUsize::new(0);
/// Where the first of them ended.
pub(crate) static END: AtomicUsize = AtomicUsize::new(0);

/// Where tasks begin.
const ROOT: &str = "kernel::sched::first";

/// Walks from what an NMI interrupted. The first that is broken is kept for
/// people, else the latest.
pub(super) fn check(frame: &TrapFrame) {
    WALKS.fetch_add(1, Ordering::Relaxed);
    // A return address is one behind its call; the interrupted one is not.
    let end = Walk::interrupted(frame)
        .last()
        .map_or(frame.pc(), |address| address.wrapping_sub(1));
    let mut roots = arch::ROOTS.iter().chain([&ROOT]);
    let is_root =
        symbols::find(end).is_some_and(|symbol| roots.any(|root| symbol.name.starts_with(root)));
    if is_root {
        if BROKEN.load(Ordering::Relaxed) == 0 {
            NMI.capture(frame);
        }
    } else if BROKEN.fetch_add(1, Ordering::Relaxed) == 0 {
        NMI.capture(frame);
        END.store(end, Ordering::Relaxed);
    }
}
