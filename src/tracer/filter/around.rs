//! Filters that remember: what lies around a call, or when it began.
//!
//! What they remember, they keep in their own words of the frame, before those
//! of the callback that they wrap. They never look at that one's.

use core::marker::PhantomData;

use super::{Deferred, Filter};
use crate::sync::{AtomicU32, AtomicUsize, Ordering, count};
use crate::{Callback, Entry, Exit, Platform};

/// Passes on the calls of the functions that `F` accepts, and all calls inside
/// them; `F` is not asked again there.
///
/// What the wrapped callback refuses in between changes nothing for the calls
/// inside: also if it refuses the chosen function itself. A word a frame.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::filter::{OnlyBelow, Predicate};
/// use fgraph::tracer::profile::Row;
#[doc = example_kernel!()]
///
/// static ROWS: [Row; 16] = [const { Row::new() }; 16];
/// static PROFILE: OnlyBelow<Profile<Kernel>, Predicate> =
///     OnlyBelow::new(Profile::new(&ROWS), Predicate(|func| func == 0x2000));
///
/// FGRAPH.register(&PROFILE)?;
/// // Each inside the one before.
/// let scopes = [0x1000, 0x2000, 0x3000].map(|func| FGRAPH.scope(func, 0));
/// scopes.into_iter().rev().for_each(drop);
/// let hits = |func| PROFILE.callback().get(func).map_or(0, |summary| summary.hits);
/// assert_eq!([0x1000, 0x2000, 0x3000].map(hits), [0, 1, 1]);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct OnlyBelow<C, F> {
    callback: C,
    filter: F,
}

/// Passes on all calls but those of the functions that `F` accepts and all
/// inside them. `F` is asked for every call that has none of those around it.
/// A word a frame.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::filter::{NotBelow, Predicate};
/// use fgraph::tracer::profile::Row;
#[doc = example_kernel!()]
///
/// static ROWS: [Row; 16] = [const { Row::new() }; 16];
/// static PROFILE: NotBelow<Profile<Kernel>, Predicate> =
///     NotBelow::new(Profile::new(&ROWS), Predicate(|func| func == 0x2000));
///
/// FGRAPH.register(&PROFILE)?;
/// // Each inside the one before.
/// let scopes = [0x1000, 0x2000, 0x3000].map(|func| FGRAPH.scope(func, 0));
/// scopes.into_iter().rev().for_each(drop);
/// let hits = |func| PROFILE.callback().get(func).map_or(0, |summary| summary.hits);
/// assert_eq!([0x1000, 0x2000, 0x3000].map(hits), [1, 0, 0]);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct NotBelow<C, F> {
    callback: C,
    filter: F,
}

wraps!(OnlyBelow, NotBelow);

/// A frame with `None` is that of a chosen function which the wrapped callback
/// refused. Any frame at all says: inside.
impl<C: Callback, F: Filter> Callback for OnlyBelow<C, F> {
    type Frame = Option<C::Frame>;

    #[inline]
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        if call.parent().is_some() {
            return self.callback.entry(call.inner()).map(Some);
        }
        if !self.filter.accepts(&call) {
            return None;
        }
        Some(self.callback.entry(call.inner()))
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        if let Some(data) = data {
            self.callback.exit(call.inner(), data);
        }
    }
}

impl<C: Deferred, F: Filter> Deferred for OnlyBelow<C, F> {
    fn discard(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        if let Some(data) = data {
            self.callback.discard(call.inner(), data);
        }
    }
}

/// A frame with `None` is that of a chosen function: what is inside is refused
/// and has no frame, so that the nearest frame tells.
impl<C: Callback, F: Filter> Callback for NotBelow<C, F> {
    type Frame = Option<C::Frame>;

    #[inline]
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        if call.parent().is_some_and(|parent| parent.get().is_none()) {
            return None;
        }
        if self.filter.accepts(&call) {
            return Some(None);
        }
        self.callback.entry(call.inner()).map(Some)
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        if let Some(data) = data {
            self.callback.exit(call.inner(), data);
        }
    }
}

impl<C: Deferred, F: Filter> Deferred for NotBelow<C, F> {
    fn discard(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        if let Some(data) = data {
            self.callback.discard(call.inner(), data);
        }
    }
}

/// Passes on calls that have fewer than `limit` calls around them which it has
/// passed on and the callback has accepted. Calls that only others follow do
/// not count, nor does what is refused in between. A word a frame.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::filter::Depth;
/// use fgraph::tracer::profile::Row;
#[doc = example_kernel!()]
///
/// static ROWS: [Row; 16] = [const { Row::new() }; 16];
/// static OUTERMOST: Depth<Profile<Kernel>> = Depth::new(Profile::new(&ROWS), 1);
///
/// FGRAPH.register(&OUTERMOST)?;
/// let outer = FGRAPH.scope(0x1000, 0);
/// drop(FGRAPH.scope(0x2000, 0));
/// drop(outer);
/// assert_eq!(OUTERMOST.callback().summaries().count(), 1);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct Depth<C> {
    callback: C,
    limit: AtomicUsize,
}

impl<C> Depth<C> {
    /// Wraps `callback`. With a limit of 1 it sees no call inside another of
    /// its own, with 0 none at all.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Depth;
    ///
    /// let depth = Depth::new("callback", 3);
    /// assert_eq!(*depth.callback(), "callback");
    /// ```
    #[must_use]
    pub const fn new(callback: C, limit: usize) -> Self {
        Self {
            callback,
            limit: AtomicUsize::new(limit),
        }
    }

    /// The wrapped callback.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Depth;
    /// use fgraph::tracer::trigger::Counts;
    ///
    /// static COUNTS: Depth<Counts> = Depth::new(Counts::new(&[]), 3);
    /// assert_eq!(COUNTS.callback().others(), 0);
    /// ```
    #[must_use]
    pub const fn callback(&self) -> &C {
        &self.callback
    }

    /// Sets another limit, for calls that begin from now on. Any context.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Depth;
    /// use fgraph::tracer::trigger::Counts;
    #[doc = example_kernel!()]
    ///
    /// static COUNTS: Depth<Counts> = Depth::new(Counts::new(&[]), 0);
    /// FGRAPH.register(&COUNTS)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// COUNTS.set_limit(1);
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(COUNTS.callback().others(), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    pub fn set_limit(&self, limit: usize) {
        // Relaxed: nothing else is published with it.
        self.limit.store(limit, Ordering::Relaxed);
    }
}

impl<C: Callback> Callback for Depth<C> {
    type Frame = (usize, C::Frame);

    #[inline]
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        let limit = self.limit.load(Ordering::Relaxed);
        let depth = match call.parent() {
            Some(parent) => parent.get().0.saturating_add(1),
            None => 0,
        };
        if depth >= limit {
            return None;
        }
        Some((depth, self.callback.entry(call.inner())?))
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Self::Frame>, (_, data): Self::Frame) {
        self.callback.exit(call.inner(), data);
    }
}

impl<C: Deferred> Deferred for Depth<C> {
    fn discard(&self, call: Exit<'_, Self::Frame>, (_, data): Self::Frame) {
        self.callback.discard(call.inner(), data);
    }
}

/// Passes on calls that took at least `minimum` ticks: a quicker one leaves no
/// record.
///
/// How long a call takes is known at its end, so the wrapped callback must be
/// [`Deferred`]: one that records nothing before, as a
/// [`LateGraph`](crate::tracer::LateGraph). It sees every entry, and
/// the end of a quick call as [`discard`](Deferred::discard). A call that the
/// clock says ended before it began took 0 ticks, and is counted. The time
/// that a task sleeps counts as taken. A 64-bit number a frame.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Profile;
/// use fgraph::tracer::filter::MinDuration;
/// use fgraph::tracer::profile::Row;
#[doc = example_kernel!()]
///
/// static ROWS: [Row; 16] = [const { Row::new() }; 16];
/// // The clock here moves by 1,000 whenever it is read.
/// static SLOW: MinDuration<Kernel, Profile<Kernel>> = MinDuration::new(Profile::new(&ROWS), 4000);
///
/// FGRAPH.register(&SLOW)?;
/// let outer = FGRAPH.scope(0x1000, 0);
/// drop(FGRAPH.scope(0x2000, 0));
/// drop(outer);
/// assert!(SLOW.callback().get(0x1000).is_some());
/// assert!(SLOW.callback().get(0x2000).is_none());
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct MinDuration<P, C> {
    callback: C,
    minimum: u64,
    backwards: AtomicU32,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform, C> MinDuration<P, C> {
    /// Wraps `callback`; `minimum` is in ticks of the platform's clock.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Profile;
    /// use fgraph::tracer::filter::MinDuration;
    #[doc = example_kernel!()]
    ///
    /// // Of a clock of 2.4 GHz, the ticks of 10 µs.
    /// static SLOW: MinDuration<Kernel, Profile<Kernel>> = MinDuration::new(Profile::new(&[]), 24_000);
    /// # assert_eq!(SLOW.backwards(), 0);
    /// ```
    #[must_use]
    pub const fn new(callback: C, minimum: u64) -> Self {
        Self {
            callback,
            minimum,
            backwards: AtomicU32::new(0),
            platform: PhantomData,
        }
    }

    /// The wrapped callback.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Profile;
    /// use fgraph::tracer::filter::MinDuration;
    #[doc = example_kernel!()]
    ///
    /// static SLOW: MinDuration<Kernel, Profile<Kernel>> = MinDuration::new(Profile::new(&[]), 4000);
    /// assert_eq!(SLOW.callback().summaries().count(), 0);
    /// ```
    #[must_use]
    pub const fn callback(&self) -> &C {
        &self.callback
    }

    /// How many calls ended before they began.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Profile;
    /// use fgraph::tracer::filter::MinDuration;
    #[doc = example_kernel!()]
    ///
    /// static SLOW: MinDuration<Kernel, Profile<Kernel>> = MinDuration::new(Profile::new(&[]), 4000);
    ///
    /// FGRAPH.register(&SLOW)?;
    /// CLOCK.store(5000, std::sync::atomic::Ordering::Relaxed);
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// CLOCK.store(0, std::sync::atomic::Ordering::Relaxed);
    /// drop(scope);
    /// assert_eq!(SLOW.backwards(), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn backwards(&self) -> u32 {
        self.backwards.load(Ordering::Relaxed)
    }

    fn is_quick(&self, start: u64, end: u64) -> bool {
        let taken = end.checked_sub(start).unwrap_or_else(|| {
            count(&self.backwards, 1);
            0
        });
        taken < self.minimum
    }
}

impl<P: Platform, C: Deferred> Callback for MinDuration<P, C> {
    type Frame = (u64, C::Frame);

    #[inline]
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        let start = P::clock();
        Some((start, self.callback.entry(call.inner())?))
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Self::Frame>, (start, data): Self::Frame) {
        if self.is_quick(start, P::clock()) {
            self.callback.discard(call.inner(), data);
        } else {
            self.callback.exit(call.inner(), data);
        }
    }
}

impl<P: Platform, C: Deferred> Deferred for MinDuration<P, C> {
    fn discard(&self, call: Exit<'_, Self::Frame>, (_, data): Self::Frame) {
        self.callback.discard(call.inner(), data);
    }
}
