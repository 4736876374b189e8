//! Rows found by address: a table of fixed size that any CPU, interrupt and
//! NMI uses at once without a lock.
//!
//! This file knows no row beyond its key.

use crate::sync::{AtomicUsize, Ordering};

/// A row with a key, which is 0 while nobody has claimed it.
pub(crate) trait Keyed {
    /// Only this file writes it.
    fn key(&self) -> &AtomicUsize;
}

/// How many rows a key is looked for in: what a hit costs at most.
pub(crate) const PROBES: usize = 16;

/// The rows in which `key` may be, in the order in which they are tried.
fn probes<R>(rows: &[R], key: usize) -> impl Iterator<Item = &R> {
    // Fibonacci hashing: nearby addresses come to lie far from each other. The
    // upper half of the product, taken as a fraction of the table.
    let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = ((hash * rows.len() as u64) >> 32) as usize;
    let (before, from) = rows.split_at(first.min(rows.len()));
    from.iter().chain(before).take(PROBES)
}

/// The row of `key`; `None` if it has none.
pub(crate) fn find<R: Keyed>(rows: &[R], key: usize) -> Option<&R> {
    let has = |row: &&R| row.key().load(Ordering::Relaxed) == key;
    (key != 0).then(|| probes(rows, key).find(has)).flatten()
}

/// The row of `key`, claimed for it if it has none; `None` if there is none to
/// be had. A claimed row is never given up, so that all who look for a key
/// find the same row, whatever interrupts them.
#[inline]
pub(crate) fn claim<R: Keyed>(rows: &[R], key: usize) -> Option<&R> {
    if key == 0 {
        return None;
    }
    probes(rows, key).find(|row| {
        // Relaxed, both: a row's counters start at rest, so nothing is
        // published with its key.
        let seen = row.key().load(Ordering::Relaxed);
        seen == key
            || seen == 0
                && row
                    .key()
                    .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|now| now == key, |_| true)
    })
}

/// Gives all rows back, while nobody claims any: of two that looked for one key
/// at once, one might find its row and the other take a new one.
pub(crate) fn free<R: Keyed>(rows: &[R]) {
    for row in rows {
        row.key().store(0, Ordering::Relaxed);
    }
}
