//! Filters by function. They know an address, and nothing of the call.

use core::fmt;
use core::ops::Range;

use super::Filter;
use crate::{Entry, FrameData};

/// Accepts functions whose address lies in one of some ranges: found by a
/// binary search. No ranges accept none.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::{Functions, UnsortedError};
///
/// assert!(Functions::new(&[0x1000..0x1800, 0x2000..0x2001]).is_ok());
/// assert_eq!(Functions::new(&[0..2, 1..3]).unwrap_err(), UnsortedError);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Functions(&'static [Range<usize>]);

/// Ranges are not ascending, or overlap: sort and join them.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::Functions;
///
/// let error = Functions::new(&[8..9, 0..1]).unwrap_err();
/// assert!(error.to_string().contains("sort"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnsortedError;

impl fmt::Display for UnsortedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ranges are not ascending, or overlap; sort and join them")
    }
}

impl core::error::Error for UnsortedError {}

impl Functions {
    /// Functions in these ranges, which ascend and do not overlap.
    ///
    /// # Errors
    ///
    /// [`UnsortedError`].
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Functions;
    ///
    /// static DRIVERS: Functions = match Functions::new(&[0x1000..0x1800, 0x2000..0x2001]) {
    ///     Ok(functions) => functions,
    ///     Err(_) => panic!("ascending, and apart"),
    /// };
    /// assert!(DRIVERS.contains(0x1234));
    /// ```
    pub const fn new(ranges: &'static [Range<usize>]) -> Result<Self, UnsortedError> {
        let (mut rest, mut end) = (ranges, 0);
        while let Some((range, more)) = rest.split_first() {
            if range.start < end || range.end < range.start {
                return Err(UnsortedError);
            }
            end = range.end;
            rest = more;
        }
        Ok(Self(ranges))
    }

    /// Whether `func` lies in one of the ranges.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Functions;
    ///
    /// let functions = Functions::new(&[0x1000..0x1800, 0x2000..0x2001])?;
    /// assert!(functions.contains(0x2000) && !functions.contains(0x1800));
    /// # Ok::<(), fgraph::tracer::filter::UnsortedError>(())
    /// ```
    #[must_use]
    pub fn contains(&self, func: usize) -> bool {
        let not_above = self.0.partition_point(|range| range.start <= func);
        let last = not_above.checked_sub(1).and_then(|last| self.0.get(last));
        last.is_some_and(|range| func < range.end)
    }
}

impl Filter for Functions {
    #[inline]
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        self.contains(call.func())
    }
}

/// Accepts the functions for which a kernel's own function says so.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::Predicate;
///
/// static LOW: Predicate = Predicate(|func| func < 0x10_0000);
/// assert!((LOW.0)(0x1000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Predicate<F = fn(usize) -> bool>(
    /// Told the address of a function.
    pub F,
);

impl Predicate {
    /// With a function by address, so that the filter's type can be named: for
    /// closures too that capture nothing.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Predicate, Switch};
    /// use fgraph::tracer::trigger::Trigger;
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static SECOND: Trigger<Predicate> =
    ///     Trigger::new(Predicate::new(|func| func == 0x1000), &SWITCH, true).skip(1);
    /// assert_eq!(SECOND.hits(), 0);
    /// ```
    #[must_use]
    pub const fn new(accepts: fn(usize) -> bool) -> Self {
        Self(accepts)
    }
}

impl<F: Fn(usize) -> bool + Sync + 'static> Filter for Predicate<F> {
    #[inline]
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        (self.0)(call.func())
    }
}
