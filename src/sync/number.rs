//! Numbers of 64 bits that several see, on targets with words of 32 too.
//!
//! Relaxed, all: a number publishes nothing.

use super::{AtomicUsize, Ordering};
use crate::bits::{U64_WORDS, join, split};

#[cfg(target_has_atomic = "64")]
type Atomic = super::AtomicU64;
#[cfg(target_has_atomic = "64")]
type Held = u64;
#[cfg(not(target_has_atomic = "64"))]
type Atomic = AtomicUsize;
#[cfg(not(target_has_atomic = "64"))]
type Held = usize;

/// A number that one owner sets, or a sum that several CPUs and interrupts add
/// to. On a 32-bit target two words with a carry between them: what is read
/// while others write may be torn, or miss a carry; what is read at rest is
/// exact.
#[derive(Debug)]
pub(crate) struct Number([AtomicUsize; U64_WORDS]);

impl Number {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; U64_WORDS])
    }

    pub(crate) fn get(&self) -> u64 {
        join(self.0.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    pub(crate) fn set(&self, number: u64) {
        for (word, value) in self.0.iter().zip(split(number)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn add(&self, by: u64) {
        add_words(by, |word, by| {
            self.0.get(word).map(|w| w.fetch_add(by, Ordering::Relaxed))
        });
    }
}

/// Adds a number to words, lowest first, each by one step that `add` takes,
/// which returns what the word held.
#[inline]
pub(crate) fn add_words(by: u64, add: impl Fn(usize, usize) -> Option<usize>) {
    let mut carry = false;
    for (word, by) in split(by).into_iter().enumerate() {
        let (by, over) = by.overflowing_add(usize::from(carry));
        if by == 0 {
            carry = over;
            continue;
        }
        let before = add(word, by).unwrap_or(0);
        carry = over | before.checked_add(by).is_none();
    }
}

/// The least or the most of numbers, as several CPUs and interrupts find them.
/// Where the target has no 64-bit atomics, the largest word stands for all
/// numbers above.
#[derive(Debug)]
pub(crate) struct Extreme(Atomic);

// Most numbers change nothing: a load comes first, instead of a locked
// instruction.
impl Extreme {
    /// Nothing is less.
    pub(crate) const fn least() -> Self {
        Self(Atomic::new(0))
    }

    /// Nothing is more.
    pub(crate) const fn most() -> Self {
        Self(Atomic::new(Held::MAX))
    }

    fn held(number: u64) -> Held {
        Held::try_from(number).unwrap_or(Held::MAX)
    }

    pub(crate) fn lower(&self, number: u64) {
        let number = Self::held(number);
        if number < self.0.load(Ordering::Relaxed) {
            self.0.fetch_min(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn raise(&self, number: u64) {
        let number = Self::held(number);
        if number > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn set(&self, number: u64) {
        self.0.store(Self::held(number), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        let number: Held = self.0.load(Ordering::Relaxed);
        number as u64
    }
}
