//! Walks from NMIs, which arrive at any instruction: each must get through to
//! where its task began.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::TrapFrame;
use crate::backtrace::{NMI, Walk};
use crate::symbols;

/// Walks that were looked at.
pub(crate) static WALKS: AtomicUsize = AtomicUsize::new(0);
/// Walks that ended elsewhere.
pub(crate) static BROKEN: AtomicUsize = AtomicUsize::new(0);
/// Where the first of them ended.
pub(crate) static END: AtomicUsize = AtomicUsize::new(0);

/// Where tasks begin, and where the CPUs' boots do.
const ROOTS: [&str; 2] = ["kernel::sched::first", "kernel::arch::x86_64::boot::"];

/// Walks from what an NMI interrupted. The first that is broken is kept for
/// people, else the latest.
pub(super) fn check(frame: &TrapFrame) {
    WALKS.fetch_add(1, Ordering::Relaxed);
    let end = Walk::interrupted(frame).last().unwrap_or(frame.pc());
    let is_root = symbols::find(end.wrapping_sub(1))
        .is_some_and(|symbol| ROOTS.iter().any(|root| symbol.name.starts_with(root)));
    if is_root {
        if BROKEN.load(Ordering::Relaxed) == 0 {
            NMI.capture(frame);
        }
    } else if BROKEN.fetch_add(1, Ordering::Relaxed) == 0 {
        NMI.capture(frame);
        END.store(end, Ordering::Relaxed);
    }
}
