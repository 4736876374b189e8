//! Times of which a record holds the low bits only. This file knows no clock.

use super::words::{TIME_BITS, high, join, low};

/// A stretch of the platform's clock. Within one, and half of one to both
/// sides, a record's time is unambiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Era(pub(crate) u32);

impl Era {
    /// No time lies in it.
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline(always)]
    pub(crate) const fn of(time: u64) -> Self {
        Self((time >> (TIME_BITS - 1)) as u32)
    }

    /// The time in its middle.
    pub(crate) const fn middle(self) -> u64 {
        ((self.0 as u64) << (TIME_BITS - 1)) + (1 << (TIME_BITS - 2))
    }

    /// Two eras as a note's value: the one that ends, the one that begins.
    pub(crate) const fn change(from: Self, to: Self) -> u64 {
        join(from.0, to.0)
    }

    pub(crate) const fn changed(value: u64) -> (Self, Self) {
        (Self(high(value)), Self(low(value)))
    }
}

/// The time whose low bits are `time`'s and which is nearest to `near`.
pub(crate) const fn nearest(time: u64, near: u64) -> u64 {
    let unused = 64 - TIME_BITS;
    let ahead = (time.wrapping_sub(near) << unused) as i64 >> unused;
    near.wrapping_add(ahead as u64)
}
