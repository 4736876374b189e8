//! Triggers: small callbacks that wait for something and hold it fast.
//!
//! | trigger | waits for | holds |
//! | --- | --- | --- |
//! | [`Trigger`] | a call of certain functions | a [`Switch`], on or off |
//! | [`Counts`] | calls | how many of each function |
//! | [`MaxLatency`] | the slowest or deepest call so far | the whole tree of calls inside it |
//! | [`StackWatch`] | the deepest use of each task's real stack | the chain of calls that led there |
//!
//! Each lives in memory that the kernel gives it, works on all CPUs and in all
//! contexts at once without a lock, and can be wrapped in
//! [`filter`](super::filter)s. None knows how calls are caught.

use crate::sync::number::Number;
use crate::sync::{AtomicUsize, Ordering};
use crate::{Callback, Entry, Exit};

use super::filter::{Filter, Switch};
use super::table::{self, Keyed};

mod latency;
mod stack;
mod tree;
mod worst;

pub use latency::{MaxLatency, Measure};
pub use stack::{Deepest, StackUse, StackWatch};
pub use tree::{Tree, TreeCall, TreeCalls};
pub use worst::WorstTree;

/// Turns a [`Switch`] when a function is called: the way to stop a trace right
/// after the moment of interest, or to begin it there.
///
/// It costs frames nothing. Callbacks that are registered before this one see
/// the call that turns the switch as it was before, those that are registered
/// after it as it is then.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::filter::{Filtered, Predicate, Switch};
/// use fgraph::tracer::profile::Row;
/// use fgraph::tracer::trigger::Trigger;
#[doc = example_kernel!()]
///
/// static TRACING: Switch = Switch::new(true);
/// static STOP: Trigger<Predicate> = Trigger::new(Predicate(|func| func == 0x666), &TRACING, false);
/// static ROWS: [Row; 16] = [const { Row::new() }; 16];
/// static PROFILE: Filtered<Profile<Kernel>, &Switch> = Filtered::new(Profile::new(&ROWS), &TRACING);
///
/// FGRAPH.register(&STOP)?;
/// FGRAPH.register(&PROFILE)?;
/// for func in [0x1000, 0x666, 0x1000] {
///     drop(FGRAPH.scope(func, 0));
/// }
/// assert_eq!(PROFILE.callback().get(0x1000).unwrap().hits, 1);
/// assert_eq!(STOP.hits(), 1);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Trigger<F> {
    filter: F,
    switch: &'static Switch,
    on: bool,
    skip: usize,
    times: usize,
    /// Stays at its largest value.
    hits: AtomicUsize,
}

impl<F> Trigger<F> {
    /// At each call that `filter` accepts, `switch` is turned `on` or off.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Predicate, Switch};
    /// use fgraph::tracer::trigger::Trigger;
    #[doc = example_kernel!()]
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static START: Trigger<Predicate> =
    ///     Trigger::new(Predicate::new(|func| func == 0x1000), &SWITCH, true);
    /// FGRAPH.register(&START)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert!(SWITCH.is_on());
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn new(filter: F, switch: &'static Switch, on: bool) -> Self {
        Self {
            filter,
            switch,
            on,
            skip: 0,
            times: usize::MAX,
            hits: AtomicUsize::new(0),
        }
    }

    /// Lets the first `calls` of the accepted calls pass.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Predicate, Switch};
    /// use fgraph::tracer::trigger::Trigger;
    #[doc = example_kernel!()]
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static START: Trigger<Predicate> =
    ///     Trigger::new(Predicate::new(|func| func == 0x1000), &SWITCH, true).skip(1);
    /// FGRAPH.register(&START)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert!(!SWITCH.is_on());
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert!(SWITCH.is_on());
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn skip(mut self, calls: usize) -> Self {
        self.skip = calls;
        self
    }

    /// Acts at most so many times.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Predicate, Switch};
    /// use fgraph::tracer::trigger::Trigger;
    #[doc = example_kernel!()]
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static START: Trigger<Predicate> =
    ///     Trigger::new(Predicate::new(|func| func == 0x1000), &SWITCH, true).times(1);
    /// FGRAPH.register(&START)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// // Once is enough: what is switched off by hand stays off.
    /// SWITCH.set(false);
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert!(!SWITCH.is_on());
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// How many calls were accepted, those that passed included.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Predicate, Switch};
    /// use fgraph::tracer::trigger::Trigger;
    #[doc = example_kernel!()]
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static START: Trigger<Predicate> =
    ///     Trigger::new(Predicate::new(|func| func == 0x1000), &SWITCH, true);
    /// FGRAPH.register(&START)?;
    /// drop((FGRAPH.scope(0x1000, 0), FGRAPH.scope(0x2000, 0)));
    /// assert_eq!(START.hits(), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }

    /// Begins to count from 0 again. Any context.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::{Predicate, Switch};
    /// use fgraph::tracer::trigger::Trigger;
    #[doc = example_kernel!()]
    ///
    /// static SWITCH: Switch = Switch::new(false);
    /// static START: Trigger<Predicate> =
    ///     Trigger::new(Predicate::new(|func| func == 0x1000), &SWITCH, true).times(1);
    /// FGRAPH.register(&START)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// SWITCH.set(false);
    /// START.rearm();
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert!(SWITCH.is_on());
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn rearm(&self) {
        self.hits.store(0, Ordering::Relaxed);
    }
}

impl<F: Filter> Callback for Trigger<F> {
    type Frame = ();

    #[inline]
    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        if self.filter.accepts(&call) {
            // Relaxed: each call gets a number of its own, which is all.
            let next = |hits: usize| hits.checked_add(1);
            let (order, hits) = (Ordering::Relaxed, &self.hits);
            let number = hits.fetch_update(order, order, next).unwrap_or(usize::MAX);
            if number
                .checked_sub(self.skip)
                .is_some_and(|n| n < self.times)
            {
                self.switch.set(self.on);
            }
        }
        None
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

/// One function's count in the memory of [`Counts`].
///
/// # Example
///
/// ```
/// use fgraph::tracer::trigger::Tally;
///
/// static TALLIES: [Tally; 64] = [const { Tally::new() }; 64];
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!(size_of_val(&TALLIES), 64 * 16);
/// ```
#[derive(Debug)]
pub struct Tally {
    func: AtomicUsize,
    hits: Number,
}

impl Tally {
    /// An empty one.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::{Counts, Tally};
    ///
    /// static TALLIES: [Tally; 4] = [const { Tally::new() }; 4];
    /// assert_eq!(Counts::new(&TALLIES).iter().count(), 0);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            func: AtomicUsize::new(0),
            hits: Number::new(),
        }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Keyed for Tally {
    fn key(&self) -> &AtomicUsize {
        &self.func
    }
}

/// Counts the calls of each function, and nothing else: no clock is read and
/// no return awaited. A call costs a search of its row, of 16 at most, and an
/// addition. What finds no row is counted together.
///
/// # Example
///
/// ```
/// use fgraph::tracer::trigger::{Counts, Tally};
#[doc = example_kernel!()]
///
/// static TALLIES: [Tally; 64] = [const { Tally::new() }; 64];
/// static COUNTS: Counts = Counts::new(&TALLIES);
///
/// FGRAPH.register(&COUNTS)?;
/// for func in [0x1000, 0x2000, 0x1000] {
///     drop(FGRAPH.scope(func, 0));
/// }
/// assert_eq!((COUNTS.get(0x1000), COUNTS.get(0x2000)), (2, 1));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Counts {
    tallies: &'static [Tally],
    others: Number,
}

impl Counts {
    /// Counts in these tallies, which nobody else uses.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::Counts;
    ///
    /// // All calls together.
    /// static COUNTS: Counts = Counts::new(&[]);
    /// assert_eq!(COUNTS.others(), 0);
    /// ```
    #[must_use]
    pub const fn new(tallies: &'static [Tally]) -> Self {
        Self {
            tallies,
            others: Number::new(),
        }
    }

    /// How often `func` was called.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::{Counts, Tally};
    #[doc = example_kernel!()]
    ///
    /// static TALLIES: [Tally; 64] = [const { Tally::new() }; 64];
    /// static COUNTS: Counts = Counts::new(&TALLIES);
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(COUNTS.get(0x1000), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn get(&self, func: usize) -> u64 {
        table::find(self.tallies, func).map_or(0, |tally| tally.hits.get())
    }

    /// Every function that was called and has a tally, and how often.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::{Counts, Tally};
    #[doc = example_kernel!()]
    ///
    /// static TALLIES: [Tally; 64] = [const { Tally::new() }; 64];
    /// static COUNTS: Counts = Counts::new(&TALLIES);
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(COUNTS.iter().collect::<Vec<_>>(), [(0x1000, 1)]);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let counts = self.tallies.iter();
        let counts = counts.map(|tally| (tally.func.load(Ordering::Relaxed), tally.hits.get()));
        counts.filter(|&(_, hits)| hits > 0)
    }

    /// How many calls found no tally, or were of the address 0.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::Counts;
    #[doc = example_kernel!()]
    ///
    /// static COUNTS: Counts = Counts::new(&[]);
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(COUNTS.others(), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others.get()
    }

    /// Begins again from 0. Functions keep their tallies. Any context.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::{Counts, Tally};
    #[doc = example_kernel!()]
    ///
    /// static TALLIES: [Tally; 64] = [const { Tally::new() }; 64];
    /// static COUNTS: Counts = Counts::new(&TALLIES);
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// COUNTS.clear();
    /// assert_eq!(COUNTS.get(0x1000), 0);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn clear(&self) {
        self.tallies.iter().for_each(|tally| tally.hits.set(0));
        self.others.set(0);
    }
}

impl Callback for Counts {
    type Frame = ();

    #[inline]
    fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
        let tally = table::claim(self.tallies, call.func());
        tally.map_or(&self.others, |tally| &tally.hits).add(1);
        None
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}
