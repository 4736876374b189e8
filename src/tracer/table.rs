//! Rows found by address: a table of fixed size that any CPU, interrupt and
//! NMI uses at once without a lock.
//!
//! This file knows no row beyond its key.

#[cfg(target_has_atomic = "64")]
use crate::sync::AtomicU64;
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

const WORDS: usize = (u64::BITS / usize::BITS) as usize;

/// A 64-bit sum that several CPUs and interrupts add to. On a 32-bit target two
/// words with a carry between them: what is read while others add may miss a
/// carry; what is read at rest is exact. Also a number that one owner sets.
#[derive(Debug)]
pub(crate) struct Sum([AtomicUsize; WORDS]);

impl Sum {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; WORDS])
    }

    // Relaxed, all: sums publish nothing.
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        add_words(by, |word, by| {
            self.0.get(word).map(|w| w.fetch_add(by, Ordering::Relaxed))
        });
    }

    pub(crate) fn get(&self) -> u64 {
        let mut value = 0;
        for part in self.0.iter().rev() {
            value = value << (usize::BITS - 1) << 1 | part.load(Ordering::Relaxed) as u64;
        }
        value
    }

    pub(crate) fn set(&self, mut value: u64) {
        for part in &self.0 {
            part.store(value as usize, Ordering::Relaxed);
            value = value >> (usize::BITS - 1) >> 1;
        }
    }
}

/// The least or the most of numbers, as several CPUs and interrupts find them.
/// Where the target has no 64-bit atomics, the largest word stands for all
/// numbers above.
#[derive(Debug)]
pub(crate) struct Extreme(Atomic);

#[cfg(target_has_atomic = "64")]
type Atomic = AtomicU64;
#[cfg(not(target_has_atomic = "64"))]
type Atomic = AtomicUsize;

#[cfg(target_has_atomic = "64")]
fn held(number: u64) -> u64 {
    number
}

#[cfg(not(target_has_atomic = "64"))]
fn held(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

// Relaxed, all: nothing is published. Most numbers change nothing: a load comes
// first, instead of a locked instruction.
impl Extreme {
    /// Nothing is less.
    pub(crate) const fn least() -> Self {
        Self(Atomic::new(0))
    }

    /// Nothing is more.
    pub(crate) const fn most() -> Self {
        #[cfg(target_has_atomic = "64")]
        return Self(Atomic::new(u64::MAX));
        #[cfg(not(target_has_atomic = "64"))]
        return Self(Atomic::new(usize::MAX));
    }

    pub(crate) fn lower(&self, number: u64) {
        let number = held(number);
        if number < self.0.load(Ordering::Relaxed) {
            self.0.fetch_min(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn raise(&self, number: u64) {
        let number = held(number);
        if number > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn set(&self, number: u64) {
        self.0.store(held(number), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        #[cfg(target_has_atomic = "64")]
        return self.0.load(Ordering::Relaxed);
        #[cfg(not(target_has_atomic = "64"))]
        return self.0.load(Ordering::Relaxed) as u64;
    }
}

/// Adds 64 bits to words, lowest first, each by one step that `add` takes,
/// which returns what the word held.
#[inline]
pub(crate) fn add_words(by: u64, add: impl Fn(usize, usize) -> Option<usize>) {
    let (mut rest, mut carry) = (by, false);
    for word in 0..WORDS {
        let (by, over) = (rest as usize).overflowing_add(usize::from(carry));
        rest = rest >> (usize::BITS - 1) >> 1;
        if by == 0 {
            carry = over;
            continue;
        }
        let before = add(word, by).unwrap_or(0);
        carry = over | before.checked_add(by).is_none();
    }
}
