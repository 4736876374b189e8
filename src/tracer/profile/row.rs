//! One function's counters, and what they say.
//!
//! This file does not know when a call is counted, nor how a row is found.

use crate::sync::number::{Extreme, Number};
use crate::sync::{AtomicUsize, Ordering};
use crate::tracer::table::Keyed;

/// One function's counts in a [`Profile`](super::Profile)'s memory, with `BUCKETS` steps of a
/// histogram; 0 for none.
///
/// 320 bytes on a 64-bit target with 32 buckets, 64 with none.
///
/// # Example
///
/// ```
/// use fgraph::tracer::profile::Row;
///
/// /// Without histograms.
/// static SMALL: [Row<0>; 512] = [const { Row::new() }; 512];
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!(size_of_val(&SMALL), 512 * 64);
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Row<const BUCKETS: usize = 32> {
    func: AtomicUsize,
    hits: Number,
    total: Number,
    nested: Number,
    own: Number,
    min: Extreme,
    max: Extreme,
    histogram: [AtomicUsize; BUCKETS],
}

impl<const BUCKETS: usize> Keyed for Row<BUCKETS> {
    fn key(&self) -> &AtomicUsize {
        &self.func
    }
}

impl<const BUCKETS: usize> Default for Row<BUCKETS> {
    fn default() -> Self {
        Self::new()
    }
}

// Relaxed, all: counters publish nothing, and each is right by itself. A
// reader that meets a call being counted may see one counter with it and
// another without.
impl<const BUCKETS: usize> Row<BUCKETS> {
    /// An empty row.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::profile::Row;
    ///
    /// const EMPTY: Row = Row::new();
    /// static ROWS: [Row; 64] = [EMPTY; 64];
    /// # assert_eq!(ROWS.len(), 64);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            func: AtomicUsize::new(0),
            hits: Number::new(),
            total: Number::new(),
            nested: Number::new(),
            own: Number::new(),
            min: Extreme::most(),
            max: Extreme::least(),
            histogram: [const { AtomicUsize::new(0) }; BUCKETS],
        }
    }

    pub(super) fn count(&self, elapsed: u64, own: u64, recursive: bool) {
        self.hits.add(1);
        let sum = if recursive { &self.nested } else { &self.total };
        sum.add(elapsed);
        self.own.add(own);
        self.min.lower(elapsed);
        self.max.raise(elapsed);
        let bucket = elapsed.checked_ilog2().unwrap_or(0) as usize;
        if let Some(bucket) = self.histogram.get(bucket.min(BUCKETS.saturating_sub(1))) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn summary(&self) -> Summary {
        let hits = self.hits.get();
        let min = self.min.get();
        Summary {
            func: self.func.load(Ordering::Relaxed),
            hits,
            total: self.total.get(),
            nested: self.nested.get(),
            own: self.own.get(),
            min: if hits == 0 { 0 } else { min },
            max: self.max.get(),
        }
    }

    pub(super) fn clear(&self) {
        for sum in [&self.hits, &self.total, &self.nested, &self.own] {
            sum.set(0);
        }
        self.min.set(u64::MAX);
        self.max.set(0);
        for bucket in &self.histogram {
            bucket.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn buckets(&self) -> [u64; BUCKETS] {
        core::array::from_fn(|i| {
            let bucket = self.histogram.get(i);
            bucket.map_or(0, |bucket| bucket.load(Ordering::Relaxed) as u64)
        })
    }
}

/// What a [`Profile`](super::Profile) knows of one function. Times are ticks.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::profile::Row;
#[doc = example_kernel!()]
///
/// static ROWS: [Row; 64] = [const { Row::new() }; 64];
/// static PROFILE: Profile<Kernel> = Profile::new(&ROWS);
/// FGRAPH.register(&PROFILE)?;
///
/// let outer = FGRAPH.scope(0x1000, 0);
/// // A call of itself, of a thousand ticks here.
/// drop(FGRAPH.scope(0x1000, 0));
/// drop(outer);
/// let summary = PROFILE.get(0x1000).unwrap();
/// assert_eq!((summary.total, summary.nested, summary.own), (3000, 1000, 3000));
/// assert_eq!((summary.min, summary.max), (1000, 3000));
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// The address of the function; 0 for several.
    pub func: usize,
    /// How many of its calls have ended.
    pub hits: u64,
    /// What its calls took with all that ran inside them. Of calls of one
    /// function inside each other the outermost counts, so that a recursive
    /// function is not told to have run longer than the clock did.
    pub total: u64,
    /// What its calls inside other calls of itself took: in `total` already,
    /// with the outermost.
    pub nested: u64,
    /// What its calls took without the traced calls inside them. Over all
    /// functions this adds up to the time of the outermost calls.
    pub own: u64,
    /// The quickest call. This and `max`, on a target with neither 64-bit
    /// words nor 64-bit atomics: 2³² − 1 for all that is longer.
    pub min: u64,
    /// The slowest call.
    pub max: u64,
}

impl Summary {
    /// The mean duration of a call, rounded down; recursive calls included.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::profile::Summary;
    ///
    /// let summary = Summary { hits: 3, total: 10, ..Summary::default() };
    /// assert_eq!(summary.average(), 3);
    /// assert_eq!(Summary::default().average(), 0);
    /// ```
    #[must_use]
    pub fn average(&self) -> u64 {
        let sum = u128::from(self.total) + u128::from(self.nested);
        // Not above the slowest call, but for what is being counted.
        (sum / u128::from(self.hits.max(1)))
            .try_into()
            .unwrap_or(u64::MAX)
    }

    /// Both together, as one line for several functions.
    #[must_use]
    pub(super) fn merged(&self, other: &Self) -> Self {
        if self.hits == 0 {
            return Self { func: 0, ..*other };
        }
        Self {
            func: 0,
            hits: self.hits.saturating_add(other.hits),
            total: self.total.saturating_add(other.total),
            nested: self.nested.saturating_add(other.nested),
            own: self.own.saturating_add(other.own),
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}
