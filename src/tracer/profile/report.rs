//! A profile as text: sorted, aligned, without allocation.
//!
//! This file reads summaries. It counts nothing.

use core::cmp::Reverse;
use core::fmt;

use super::{Profile, Summary};
use crate::Platform;
use crate::tracer::names::Name;
use crate::tracer::scale::{Microseconds, digits};
use crate::tracer::{Scale, Symbols};

/// What a [`Report`] puts first: the most of it.
///
/// # Example
///
/// ```
#[doc = example_profile!()]
/// let mut scratch = [Summary::default(); 8];
/// let most_called = PROFILE.report(Order::Hits, &mut scratch);
/// assert_eq!(most_called.lines()[0].func, 0x2000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Time with all that ran inside.
    Total,
    /// Own time.
    Own,
    /// Calls.
    Hits,
}

impl Order {
    /// Ascending in the report's order; one function's lines never tie.
    fn key(self, summary: &Summary) -> impl Ord + use<> {
        let most = match self {
            Self::Total => summary.total,
            Self::Own => summary.own,
            Self::Hits => summary.hits,
        };
        (Reverse(most), summary.func)
    }
}

/// A profile at one moment, to be displayed: a line a function.
///
/// Times are microseconds. Each column is as wide as its widest figure; names
/// come last, so that any length fits. Below stand, where there are any: the
/// functions for which the scratch had no room, together; the calls that found
/// no row; and how often the clock went backwards.
///
/// ```text
/// hits  total us  self us  average us  min us  max us  function
///    1   120.000   20.000     120.000 120.000 120.000  main
///  200   100.000  100.000       0.500   0.450   9.031  work
/// ```
///
/// # Example
///
/// ```
#[doc = example_profile!()]
/// let mut scratch = [Summary::default(); 8];
/// let report = PROFILE.report(Order::Own, &mut scratch);
/// assert_eq!(
///     report.to_string(),
///     "\
/// hits  total us  self us  average us  min us  max us  function
///    3     3.000    3.000       1.000   1.000   1.000  0x2000
///    1     3.000    2.000       3.000   3.000   3.000  0x1000
/// "
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Report<'a, S = ()> {
    lines: &'a [Summary],
    hidden: Summary,
    hidden_functions: usize,
    others: Summary,
    backwards: u32,
    symbols: S,
    scale: Scale,
}

impl<P: Platform, const BUCKETS: usize> Profile<P, BUCKETS> {
    /// The profile as it is now, the first in `order` in `scratch`: a scratch
    /// of ten summaries gives the first ten functions. Any context.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_profile!()]
    /// // The first alone.
    /// let mut scratch = [Summary::default(); 1];
    /// let report = PROFILE.report(Order::Hits, &mut scratch);
    /// assert_eq!(report.lines().len(), 1);
    /// ```
    #[must_use]
    pub fn report<'a>(&self, order: Order, scratch: &'a mut [Summary]) -> Report<'a> {
        let room = scratch.len();
        let (mut used, mut hidden_functions, mut hidden) = (0, 0, Summary::default());
        for mut summary in self.summaries() {
            if let Some(place) = scratch.get_mut(used) {
                *place = summary;
                used += 1;
                if used == room {
                    scratch.sort_unstable_by_key(|line| order.key(line));
                }
                continue;
            }
            // Sorted and full: the last of all goes out.
            let at = scratch.partition_point(|line| order.key(line) < order.key(&summary));
            for line in scratch.iter_mut().skip(at) {
                core::mem::swap(line, &mut summary);
            }
            hidden = hidden.merged(&summary);
            hidden_functions += 1;
        }
        let lines = scratch.get_mut(..used).unwrap_or_default();
        lines.sort_unstable_by_key(|line| order.key(line));
        Report {
            lines,
            hidden,
            hidden_functions,
            others: self.others(),
            backwards: self.backwards(),
            symbols: (),
            scale: Scale::NANOSECONDS,
        }
    }
}

impl<'a, S> Report<'a, S> {
    /// With names. Without, functions are told by address.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_profile!()]
    /// # use fgraph::tracer::{Symbol, Symbols};
    /// struct Names;
    ///
    /// impl Symbols for Names {
    ///     fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
    ///         (address == 0x2000).then_some(Symbol { name: "check", start: 0x2000 })
    ///     }
    /// }
    ///
    /// let mut scratch = [Summary::default(); 8];
    /// let report = PROFILE.report(Order::Hits, &mut scratch).symbols(Names);
    /// assert!(report.to_string().lines().nth(1).unwrap().ends_with("  check"));
    /// ```
    #[must_use]
    pub fn symbols<T: Symbols>(self, symbols: T) -> Report<'a, T> {
        let Self {
            lines,
            hidden,
            hidden_functions,
            others,
            backwards,
            symbols: _,
            scale,
        } = self;
        Report {
            lines,
            hidden,
            hidden_functions,
            others,
            backwards,
            symbols,
            scale,
        }
    }

    /// With ticks of this length. Without, a tick is a nanosecond.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_profile!()]
    /// # use fgraph::tracer::Scale;
    /// // A clock of 500 MHz.
    /// let scale = Scale::new(1, 2).unwrap();
    /// let mut scratch = [Summary::default(); 8];
    /// let report = PROFILE.report(Order::Hits, &mut scratch).scale(scale);
    /// assert!(report.to_string().contains("6.000"));
    /// ```
    #[must_use]
    pub fn scale(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }

    /// The functions that are shown, in order.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_profile!()]
    /// let mut scratch = [Summary::default(); 8];
    /// let report = PROFILE.report(Order::Own, &mut scratch);
    /// let own = report.lines().iter().map(|line| line.own);
    /// assert_eq!(own.collect::<Vec<_>>(), [3000, 2000]);
    /// ```
    #[must_use]
    pub fn lines(&self) -> &'a [Summary] {
        self.lines
    }

    /// How many functions the scratch had no room for, and their counts
    /// together.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_profile!()]
    /// let mut scratch = [Summary::default(); 1];
    /// let report = PROFILE.report(Order::Hits, &mut scratch);
    /// let (functions, together) = report.hidden();
    /// assert_eq!((functions, together.own), (1, 2000));
    /// ```
    #[must_use]
    pub fn hidden(&self) -> (usize, &Summary) {
        (self.hidden_functions, &self.hidden)
    }

    fn times(&self, summary: &Summary) -> [Microseconds; 5] {
        let scaled = |ticks| self.scale.nanoseconds(ticks);
        let [total, own, min, max] =
            [summary.total, summary.own, summary.min, summary.max].map(scaled);
        // Of nanoseconds: a mean of ticks would be a tick too coarse.
        let average = Summary {
            total,
            nested: scaled(summary.nested),
            ..*summary
        }
        .average();
        [total, own, average, min, max].map(Microseconds)
    }

    /// All that is shown, in order.
    fn shown(&self) -> impl Iterator<Item = &Summary> {
        let more = [&self.hidden, &self.others].into_iter();
        self.lines.iter().chain(more.filter(|line| line.hits > 0))
    }
}

const HEADERS: [&str; 5] = ["total us", "self us", "average us", "min us", "max us"];

/// Writes figures, right-aligned.
struct Columns {
    hits: usize,
    times: [usize; 5],
}

impl Columns {
    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        hits: u64,
        times: &[Microseconds; 5],
    ) -> fmt::Result {
        write!(f, "{hits:>width$}", width = self.hits)?;
        for (time, width) in times.iter().zip(self.times) {
            let before = width.saturating_sub(time.width());
            write!(f, "  {:before$}{time}", "")?;
        }
        f.write_str("  ")
    }
}

impl<S: Symbols> fmt::Display for Report<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut columns = Columns {
            hits: "hits".len(),
            times: HEADERS.map(str::len),
        };
        for line in self.shown() {
            columns.hits = columns.hits.max(digits(line.hits));
            for (width, time) in columns.times.iter_mut().zip(self.times(line)) {
                *width = (*width).max(time.width());
            }
        }
        write!(f, "{:>width$}", "hits", width = columns.hits)?;
        for (header, width) in HEADERS.iter().zip(columns.times) {
            write!(f, "  {header:>width$}")?;
        }
        f.write_str("  function\n")?;
        for line in self.lines {
            columns.write(f, line.hits, &self.times(line))?;
            writeln!(f, "{}", Name(&self.symbols, line.func))?;
        }
        if self.hidden.hits > 0 {
            columns.write(f, self.hidden.hits, &self.times(&self.hidden))?;
            writeln!(f, "({} more functions)", self.hidden_functions)?;
        }
        if self.others.hits > 0 {
            columns.write(f, self.others.hits, &self.times(&self.others))?;
            writeln!(f, "(functions without a row)")?;
        }
        if self.backwards > 0 {
            writeln!(f, "the clock went backwards {} times", self.backwards)?;
        }
        Ok(())
    }
}

/// A function's histogram, to be displayed: a line a bucket, from the first
/// that was hit to the last.
///
/// ```text
///       from us  calls
///         0.512     12  ####
///         1.024    180  ########################################
///         2.048      8  ##
/// ```
///
/// # Example
///
/// ```
/// use fgraph::tracer::Scale;
/// use fgraph::tracer::profile::Histogram;
///
/// let drawn = Histogram::new([0, 12, 3, 0], Scale::NANOSECONDS);
/// assert_eq!(
///     drawn.to_string(),
///     "\
/// from us  calls
///   0.002     12  ########################################
///   0.004      3  ##########
/// "
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Histogram<const BUCKETS: usize> {
    buckets: [u64; BUCKETS],
    scale: Scale,
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    /// Of what [`Profile::histogram`] gives.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Scale, profile::Histogram};
    #[doc = example_profile!()]
    /// let buckets = PROFILE.histogram(0x2000).unwrap();
    /// let drawn = Histogram::new(buckets, Scale::NANOSECONDS).to_string();
    /// assert_eq!(drawn.lines().count(), 2);
    /// ```
    #[must_use]
    pub fn new(buckets: [u64; BUCKETS], scale: Scale) -> Self {
        Self { buckets, scale }
    }
}

/// The width of the longest bar.
const BAR: u64 = 40;

impl<const BUCKETS: usize> fmt::Display for Histogram<BUCKETS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hit = |&(_, calls): &(usize, u64)| calls > 0;
        let buckets = || self.buckets.iter().copied().enumerate();
        let first = buckets().find(hit).map_or(BUCKETS, |(i, _)| i);
        let last = buckets().rfind(hit).map_or(0, |(i, _)| i);
        let most = self.buckets.iter().copied().max().unwrap_or(0).max(1);
        // The first bucket has what took no time, too.
        let from = |i: usize| {
            let ticks = if i == 0 { 0 } else { 1_u64 << i.min(63) };
            Microseconds(self.scale.nanoseconds(ticks))
        };
        let times = from(last).width().max("from us".len());
        let calls = digits(most).max("calls".len());
        writeln!(f, "{:>times$}  {:>calls$}", "from us", "calls")?;
        for (i, count) in buckets().take(last + 1).skip(first) {
            let before = times.saturating_sub(from(i).width());
            write!(f, "{:before$}{}  {count:>calls$}", "", from(i))?;
            // Rounded up: what was hit is seen.
            let bar = (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(most));
            if bar > 0 {
                f.write_str("  ")?;
            }
            for _ in 0..bar {
                f.write_str("#")?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}
