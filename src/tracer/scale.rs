//! Ticks of a platform's clock as nanoseconds.
//!
//! This file knows no clock.

use core::fmt;
use core::num::NonZeroU64;

/// How long a tick of [`Platform::clock`](crate::Platform::clock) is: `ticks`
/// of them take `nanoseconds`. Exact to the last nanosecond, rounded down;
/// nothing overflows.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Scale;
///
/// // A counter at 2.4 GHz.
/// let scale = Scale::new(2_400_000_000, 1_000_000_000).unwrap();
/// assert_eq!(scale.nanoseconds(12), 5);
/// // A hundred years are still told to the nanosecond.
/// let century = 3_155_760_000 * 2_400_000_000;
/// assert_eq!(scale.nanoseconds(century + 12), 3_155_760_000_000_000_005);
/// assert_eq!(Scale::NANOSECONDS.nanoseconds(7), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    ticks: NonZeroU64,
    nanoseconds: u64,
}

impl Scale {
    /// A tick is a nanosecond.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Scale;
    ///
    /// assert_eq!(Scale::NANOSECONDS.nanoseconds(1234), 1234);
    /// ```
    pub const NANOSECONDS: Self = Self {
        ticks: NonZeroU64::MIN,
        nanoseconds: 1,
    };

    /// `ticks` take `nanoseconds`; `None` if `ticks` is 0.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Scale;
    ///
    /// // As a clock was calibrated: 59,659 ticks in 50 ms.
    /// const SCALE: Scale = Scale::new(59_659, 50_000_000).unwrap();
    /// assert_eq!(SCALE.nanoseconds(1), 838);
    /// assert_eq!(Scale::new(0, 1), None);
    /// ```
    #[must_use]
    pub const fn new(ticks: u64, nanoseconds: u64) -> Option<Self> {
        match NonZeroU64::new(ticks) {
            Some(ticks) => Some(Self { ticks, nanoseconds }),
            None => None,
        }
    }

    /// The nanoseconds that `ticks` take; `u64::MAX` for more than that.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Scale;
    ///
    /// let scale = Scale::new(1, 1000).unwrap();
    /// assert_eq!(scale.nanoseconds(3), 3000);
    /// assert_eq!(scale.nanoseconds(u64::MAX), u64::MAX);
    /// ```
    #[must_use]
    pub const fn nanoseconds(&self, ticks: u64) -> u64 {
        // The product of two 64-bit numbers has 128 bits.
        let nanoseconds = ticks as u128 * self.nanoseconds as u128 / self.ticks.get() as u128;
        if nanoseconds > u64::MAX as u128 {
            u64::MAX
        } else {
            nanoseconds as u64
        }
    }
}

/// How many digits a number has.
pub(crate) fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Nanoseconds, displayed as microseconds with three decimals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Microseconds(pub(crate) u64);

impl Microseconds {
    /// How many characters it takes.
    pub(crate) fn width(self) -> usize {
        digits(self.0 / 1000) + ".000".len()
    }
}

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
