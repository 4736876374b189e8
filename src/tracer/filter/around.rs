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
#[derive(Debug)]
pub struct OnlyBelow<C, F> {
    callback: C,
    filter: F,
}

/// Passes on all calls but those of the functions that `F` accepts and all
/// inside them. `F` is asked for every call that has none of those around it.
/// A word a frame.
#[derive(Debug)]
pub struct NotBelow<C, F> {
    callback: C,
    filter: F,
}

macro_rules! wraps {
    ($($name:ident),*) => {$(
        impl<C, F> $name<C, F> {
            /// Wraps `callback`.
            #[must_use]
            pub const fn new(callback: C, filter: F) -> Self {
                Self { callback, filter }
            }

            /// The wrapped callback.
            #[must_use]
            pub const fn callback(&self) -> &C {
                &self.callback
            }

            /// The filter.
            #[must_use]
            pub const fn filter(&self) -> &F {
                &self.filter
            }
        }

        impl<C: Deferred, F: Filter> Deferred for $name<C, F> {
            fn discard(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
                if let Some(data) = data {
                    self.callback.discard(call.inner(), data);
                }
            }
        }
    )*};
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

/// Passes on calls that have fewer than `limit` calls around them which it has
/// passed on and the callback has accepted. Calls that only others follow do
/// not count, nor does what is refused in between. A word a frame.
#[derive(Debug)]
pub struct Depth<C> {
    callback: C,
    limit: AtomicUsize,
}

impl<C> Depth<C> {
    /// Wraps `callback`. With a limit of 1 it sees no call inside another of
    /// its own, with 0 none at all.
    #[must_use]
    pub const fn new(callback: C, limit: usize) -> Self {
        Self {
            callback,
            limit: AtomicUsize::new(limit),
        }
    }

    /// The wrapped callback.
    #[must_use]
    pub const fn callback(&self) -> &C {
        &self.callback
    }

    /// Sets another limit, for calls that begin from now on. Any context.
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
/// [`Deferred`]: one that records nothing before. It sees every entry, and
/// the end of a quick call as [`discard`](Deferred::discard). A call that the
/// clock says ended before it began took 0 ticks, and is counted. The time
/// that a task sleeps counts as taken. A 64-bit number a frame.
#[derive(Debug)]
pub struct MinDuration<P, C> {
    callback: C,
    minimum: u64,
    backwards: AtomicU32,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform, C> MinDuration<P, C> {
    /// Wraps `callback`; `minimum` is in ticks of the platform's clock.
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
    #[must_use]
    pub const fn callback(&self) -> &C {
        &self.callback
    }

    /// How many calls ended before they began.
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
