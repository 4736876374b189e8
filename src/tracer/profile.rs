//! The profile: how often each function ran, and how long, with and without
//! what it called.
//!
//! This file counts. How a report looks is `report`'s.
//!
//! # Sums hold
//!
//! Each call's time is its own and that of the calls inside it. A frame keeps
//! what its calls inside took; each call that ends adds its whole time to its
//! parent's frame, and what its own frame holds then is not its own:
//!
//! ```text
//!  elapsed  = end − start
//!  own      = elapsed − inside          inside: sum of the children's elapsed
//!  parent's inside += elapsed
//! ```
//!
//! An interrupt may arrive while a call's entry or exit is being taken down,
//! when the call's frame is not, or no longer, on the stack. What it takes is
//! then added to the parent, although it passes between start and end. So the
//! call remembers what the parent's sum was at its start, together with the
//! time: what the sum has grown by at its end was spent inside the call too.
//! Both are read as one: the sum, the clock, and the sum again, until it is the
//! same.

use core::marker::PhantomData;

use super::filter::Deferred;
use super::table::{self, Extreme, Keyed, Sum};
use crate::fgraph::Parent;
use crate::sync::{AtomicU32, AtomicUsize, Ordering, count};
use crate::{Callback, Entry, Exit, FrameData, Platform, RetStack};

mod report;

pub use report::{Histogram, Order, Report};

/// One function's counts in a [`Profile`]'s memory, with `BUCKETS` steps of a
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
    hits: Sum,
    total: Sum,
    nested: Sum,
    own: Sum,
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
            hits: Sum::new(),
            total: Sum::new(),
            nested: Sum::new(),
            own: Sum::new(),
            min: Extreme::most(),
            max: Extreme::least(),
            histogram: [const { AtomicUsize::new(0) }; BUCKETS],
        }
    }

    fn count(&self, elapsed: u64, own: u64, recursive: bool) {
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

    fn summary(&self) -> Summary {
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

    fn clear(&self) {
        for sum in [&self.hits, &self.total, &self.nested, &self.own] {
            sum.set(0);
        }
        self.min.set(u64::MAX);
        self.max.set(0);
        for bucket in &self.histogram {
            bucket.store(0, Ordering::Relaxed);
        }
    }

    fn buckets(&self) -> [u64; BUCKETS] {
        core::array::from_fn(|i| {
            let bucket = self.histogram.get(i);
            bucket.map_or(0, |bucket| bucket.load(Ordering::Relaxed) as u64)
        })
    }
}

/// What a [`Profile`] knows of one function. Times are ticks.
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
    fn merged(&self, other: &Self) -> Self {
        if self.hits == 0 || other.hits == 0 {
            let some = if self.hits == 0 { other } else { self };
            return Self { func: 0, ..*some };
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

/// Counts and times the calls of each function, in memory that the kernel
/// gives: any CPU and any context at once, with no lock.
///
/// A call is counted when it ends. What ended unwound, or with its task,
/// counts as long as it lasted. An interrupt's calls are inside the call that
/// they interrupted: in its total, not in its own time. Calls that the
/// profile does not follow (a filter's refusals, functions not enabled) are
/// part of the own time of the call around them.
///
/// A function is looked for in 16 rows of its own. Calls of functions that
/// found none are counted together, so sums hold; give about twice as many
/// rows as functions.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::profile::{Order, Row, Summary};
#[doc = example_kernel!()]
///
/// static ROWS: [Row; 64] = [const { Row::new() }; 64];
/// static PROFILE: Profile<Kernel> = Profile::new(&ROWS);
///
/// FGRAPH.register(&PROFILE)?;
/// {
///     let _outer = FGRAPH.scope(0x1000, 0);
///     let _inner = FGRAPH.scope(0x2000, 0x1004);
/// }
/// let outer = PROFILE.get(0x1000).unwrap();
/// // The clock here moves by a thousand ticks whenever it is read.
/// assert_eq!((outer.hits, outer.total, outer.own), (1, 3000, 2000));
///
/// let mut scratch = [Summary::default(); 16];
/// let report = PROFILE.report(Order::Total, &mut scratch);
/// print!("{report}");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Profile<P, const BUCKETS: usize = 32> {
    rows: &'static [Row<BUCKETS>],
    /// Those that found no row.
    others: Row<BUCKETS>,
    backwards: AtomicU32,
    with_sleep: bool,
    platform: PhantomData<fn() -> P>,
}

/// What the profile keeps of a call in its frame.
///
/// # Example
///
/// ```
/// use fgraph::FrameData;
/// use fgraph::tracer::profile::Timing;
///
/// // So many words of a task's stack for each call, and the word over them.
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!(size_of::<<Timing as FrameData>::Words>(), 4 * size_of::<usize>());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// What the calls inside took; first, for [`Parent::add`].
    inside: u64,
    start: u64,
    /// The parent's `inside` at the start.
    parents: u64,
    /// The functions of the enclosing calls: a bit for each, which several
    /// share.
    around: usize,
}

type TimingWords = (u64, (u64, (u64, usize)));

impl FrameData for Timing {
    type Words = <TimingWords as FrameData>::Words;

    #[inline(always)]
    fn to_words(self) -> Self::Words {
        (self.inside, (self.start, (self.parents, self.around))).to_words()
    }

    #[inline(always)]
    fn from_words(words: Self::Words) -> Self {
        let (inside, (start, (parents, around))) = TimingWords::from_words(words);
        Self {
            inside,
            start,
            parents,
            around,
        }
    }
}

type Around<'a> = Option<Parent<'a, Timing>>;

/// A function's bit among those around a call.
fn bit(func: usize) -> usize {
    // Functions are aligned: their lowest bits tell nothing apart.
    1 << ((func >> 4 ^ func >> 10) & (usize::BITS as usize - 1))
}

impl<P: Platform, const BUCKETS: usize> Profile<P, BUCKETS> {
    /// An empty profile with these rows, which no other profile uses.
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
    /// assert_eq!(PROFILE.summaries().count(), 0);
    /// ```
    #[must_use]
    pub const fn new(rows: &'static [Row<BUCKETS>]) -> Self {
        Self {
            rows,
            others: Row::new(),
            backwards: AtomicU32::new(0),
            with_sleep: true,
            platform: PhantomData,
        }
    }

    /// Leaves out the time that a task spends switched out, as
    /// [`Fgraph::switch`](crate::Fgraph::switch) tells it: all times are then
    /// those of a clock that stands still meanwhile.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Profile;
    /// use fgraph::tracer::profile::Row;
    #[doc = example_kernel!()]
    ///
    /// static ROWS: [Row; 64] = [const { Row::new() }; 64];
    /// static BUSY: Profile<Kernel> = Profile::new(&ROWS).without_sleep();
    ///
    /// FGRAPH.register(&BUSY)?;
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// // The task is switched out, for a thousand ticks here, and in again.
    /// FGRAPH.switch(Some(&STACK), None);
    /// FGRAPH.switch(None, Some(&STACK));
    /// drop(scope);
    /// assert_eq!(BUSY.get(0x1000).unwrap().total, 2000);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn without_sleep(mut self) -> Self {
        self.with_sleep = false;
        self
    }

    /// What is known of each function that has a row and was hit. Any context;
    /// calls that end meanwhile may be seen half.
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
    /// drop(FGRAPH.scope(0x1000, 0));
    /// drop(FGRAPH.scope(0x2000, 0));
    /// assert_eq!(PROFILE.summaries().map(|summary| summary.hits).sum::<u64>(), 2);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn summaries(&self) -> impl Iterator<Item = Summary> + use<'_, P, BUCKETS> {
        let summaries = self.rows.iter().map(Row::summary);
        summaries.filter(|summary| summary.hits > 0)
    }

    /// What is known of `func`.
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
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(PROFILE.get(0x1000).unwrap().hits, 1);
    /// assert_eq!(PROFILE.get(0x2000), None);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn get(&self, func: usize) -> Option<Summary> {
        let summary = table::find(self.rows, func)?.summary();
        (summary.hits > 0).then_some(summary)
    }

    /// What is known of all functions together that found no row, or are at
    /// address 0. No hits: none was lost.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Profile;
    #[doc = example_kernel!()]
    ///
    /// // No rows at all.
    /// static PROFILE: Profile<Kernel> = Profile::new(&[]);
    /// FGRAPH.register(&PROFILE)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(PROFILE.others().hits, 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn others(&self) -> Summary {
        self.others.summary()
    }

    /// How often the clock went backwards: a call would have ended before it
    /// began, or before what ran inside it. It is told to have taken as long
    /// as what ran inside it, 0 for a leaf.
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
    /// CLOCK.store(5000, std::sync::atomic::Ordering::Relaxed);
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// CLOCK.store(0, std::sync::atomic::Ordering::Relaxed);
    /// drop(scope);
    /// assert_eq!((PROFILE.backwards(), PROFILE.get(0x1000).unwrap().total), (1, 0));
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn backwards(&self) -> u32 {
        self.backwards.load(Ordering::Relaxed)
    }

    /// The calls of `func` by duration: bucket *i* counts those of 2ⁱ ticks to
    /// less than 2ⁱ⁺¹; those of 0 ticks are in the first, and all that are
    /// longer in the last.
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
    /// drop(FGRAPH.scope(0x1000, 0));
    /// let histogram = PROFILE.histogram(0x1000).unwrap();
    /// assert_eq!(histogram[9], 1, "it took 512 ticks or more, and less than 1,024");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn histogram(&self, func: usize) -> Option<[u64; BUCKETS]> {
        Some(table::find(self.rows, func)?.buckets())
    }

    /// Sets all counters to zero; functions keep their rows. Any context. Calls
    /// that end meanwhile may be counted in part.
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
    /// drop(FGRAPH.scope(0x1000, 0));
    /// PROFILE.clear();
    /// assert_eq!(PROFILE.get(0x1000), None);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn clear(&self) {
        self.rows.iter().for_each(Row::clear);
        self.others.clear();
        self.backwards.store(0, Ordering::Relaxed);
    }

    fn time(&self, stack: &RetStack) -> u64 {
        let slept = if self.with_sleep { 0 } else { stack.slept() };
        P::clock().wrapping_sub(slept)
    }

    /// The time, and what the parent's calls inside have taken until then.
    #[inline]
    fn now(&self, stack: &RetStack, parent: &Around<'_>) -> (u64, u64) {
        let inside = || parent.as_ref().map_or(0, |parent| parent.get().inside);
        let mut before = inside();
        let mut time = self.time(stack);
        // Each further turn takes an interrupt of its own.
        for _ in 0..8 {
            let after = inside();
            if after == before {
                break;
            }
            before = after;
            time = self.time(stack);
        }
        (time, before)
    }
}

#[inline]
fn add_inside(parent: &Around<'_>, by: u64) {
    if let Some(parent) = parent {
        table::add_words(by, |word, by| parent.add(word, by));
    }
}

impl<P: Platform, const BUCKETS: usize> Callback for Profile<P, BUCKETS> {
    type Frame = Timing;

    #[inline]
    fn entry(&self, call: Entry<'_, Timing>) -> Option<Timing> {
        let parent = call.parent();
        let around = parent
            .as_ref()
            .map_or(0, |parent| parent.get().around | bit(parent.func()));
        let (start, parents) = self.now(call.stack(), &parent);
        Some(Timing {
            inside: 0,
            start,
            parents,
            around,
        })
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Timing>, data: Timing) {
        let parent = call.parent();
        let (end, parents) = self.now(call.stack(), &parent);
        // While this call's frame was not on the stack; in the parent's sum
        // already.
        let beside = parents.wrapping_sub(data.parents);
        let inside = data.inside.saturating_add(beside);
        let elapsed = end.wrapping_sub(data.start).cast_signed();
        let elapsed = match u64::try_from(elapsed) {
            Ok(elapsed) if elapsed >= inside => elapsed,
            _ => {
                count(&self.backwards, 1);
                inside
            }
        };
        add_inside(&parent, elapsed.saturating_sub(beside));

        let func = call.func();
        // A walk, and only where the bit says that it may find one.
        let recursive = data.around & bit(func) != 0
            && call.parents().any(|enclosing| enclosing.func() == func);
        let row = table::claim(self.rows, func).unwrap_or(&self.others);
        row.count(elapsed, elapsed - inside, recursive);
    }
}

/// A call that is left out is part of its parent's own time.
impl<P: Platform, const BUCKETS: usize> Deferred for Profile<P, BUCKETS> {
    fn discard(&self, call: Exit<'_, Timing>, data: Timing) {
        add_inside(&call.parent(), data.inside);
    }
}
