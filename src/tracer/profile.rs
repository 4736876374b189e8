//! The profile: how often each function ran, and how long, with and without
//! what it called.
//!
//! This file times calls. What is counted of a function is `row`'s, how a
//! report looks `report`'s.
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
use super::table;
use crate::fgraph::Parent;
use crate::sync::number::add_words;
use crate::sync::{AtomicU32, Ordering, count};
use crate::{Callback, Entry, Exit, FrameData, Platform, RetStack};

mod report;
mod row;

pub use report::{Histogram, Order, Report};
pub use row::{Row, Summary};

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
    #[doc = example_profile!()]
    /// assert_eq!(PROFILE.summaries().map(|summary| summary.hits).sum::<u64>(), 4);
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
    #[doc = example_profile!()]
    /// assert_eq!(PROFILE.get(0x2000).unwrap().hits, 3);
    /// assert_eq!(PROFILE.get(0x3000), None);
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
    #[doc = example_profile!()]
    /// let scope = FGRAPH.scope(0x3000, 0);
    /// CLOCK.store(0, std::sync::atomic::Ordering::Relaxed);
    /// drop(scope);
    /// assert_eq!((PROFILE.backwards(), PROFILE.get(0x3000).unwrap().total), (1, 0));
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
    #[doc = example_profile!()]
    /// let histogram = PROFILE.histogram(0x2000).unwrap();
    /// assert_eq!(histogram[9], 3, "each took 512 ticks or more, and less than 1,024");
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
    #[doc = example_profile!()]
    /// PROFILE.clear();
    /// assert_eq!(PROFILE.get(0x2000), None);
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
        add_words(by, |word, by| parent.add(word, by));
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
