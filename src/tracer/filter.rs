//! Filters: callbacks that wrap another and let it see some calls only.
//!
//! Each is part of the callback that it wraps: it takes nothing from the
//! callbacks in other slots, and costs nothing where it is not used. What a
//! filter must remember lies in the frames of the calls that it remembers it
//! for, so it is right for every task, and gone when the call is, however it
//! ends. It knows calls as any callback does: neither words nor slots.
//!
//! | filter | passes on |
//! | --- | --- |
//! | [`Filtered`] | calls that a [`Filter`] accepts: by function, task, CPU, context, or a kernel's own |
//! | [`OnlyBelow`] | calls of certain functions and all inside them |
//! | [`NotBelow`] | all but those |
//! | [`Depth`] | calls with few enough of the callback's own calls around them |
//! | [`MinDuration`] | calls that took long enough; of a [`Deferred`] callback |
//!
//! Filters nest. The outer one decides first; what it refuses, the inner one
//! does not see: `OnlyBelow(Depth(…))` counts depth from the chosen functions,
//! `Depth(OnlyBelow(…))` from the bottom.
//!
//! The calls of an interrupt are inside the call that they interrupt; to
//! leave them out, refuse their [context](Contexts).
//!
//! # Example
//!
//! What runs inside the function at `0x2000`, three calls deep, in tasks only,
//! as a profile:
//!
//! ```
//! use fgraph::tracer::Profile;
//! use fgraph::tracer::filter::{Contexts, Depth, Filtered, OnlyBelow, Predicate};
//! use fgraph::tracer::profile::Row;
#![doc = example_kernel!()]
//!
//! type Below = OnlyBelow<Depth<Filtered<Profile<Kernel>, Contexts>>, Predicate>;
//!
//! static ROWS: [Row; 64] = [const { Row::new() }; 64];
//! static PROFILE: Below = OnlyBelow::new(
//!     Depth::new(Filtered::new(Profile::new(&ROWS), Contexts::TASK), 3),
//!     Predicate(|func| func == 0x2000),
//! );
//!
//! FGRAPH.register(&PROFILE)?;
//! for func in [0x1000, 0x2000] {
//!     let _scope = FGRAPH.scope(func, 0);
//!     let _inner = FGRAPH.scope(0x3000, 0);
//! }
//! let profile = PROFILE.callback().callback().callback();
//! assert!(profile.get(0x1000).is_none());
//! assert_eq!(profile.get(0x3000).unwrap().hits, 1);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

use crate::{Callback, Entry, Exit, FrameData};

/// The making and the parts of filters that hold a callback and a [`Filter`].
macro_rules! wraps {
    ($($name:ident),*) => {$(
        impl<C, F> $name<C, F> {
            /// Wraps `callback`.
            ///
            /// # Example
            ///
            /// ```
            #[doc = concat!("use fgraph::tracer::filter::{Contexts, ", stringify!($name), "};")]
            /// use fgraph::tracer::trigger::Counts;
            ///
            #[doc = concat!("static COUNTS: ", stringify!($name), "<Counts, Contexts> =")]
            #[doc = concat!("    ", stringify!($name), "::new(Counts::new(&[]), Contexts::TASK);")]
            /// assert_eq!(COUNTS.callback().others(), 0);
            /// ```
            #[must_use]
            pub const fn new(callback: C, filter: F) -> Self {
                Self { callback, filter }
            }

            /// The wrapped callback.
            ///
            /// # Example
            ///
            /// ```
            #[doc = concat!("use fgraph::tracer::filter::", stringify!($name), ";")]
            ///
            #[doc = concat!("let wraps = ", stringify!($name), "::new(1, 2);")]
            /// assert_eq!(*wraps.callback(), 1);
            /// ```
            #[must_use]
            pub const fn callback(&self) -> &C {
                &self.callback
            }

            /// The filter.
            ///
            /// # Example
            ///
            /// ```
            #[doc = concat!("use fgraph::tracer::filter::", stringify!($name), ";")]
            ///
            #[doc = concat!("let wraps = ", stringify!($name), "::new(1, 2);")]
            /// assert_eq!(*wraps.filter(), 2);
            /// ```
            #[must_use]
            pub const fn filter(&self) -> &F {
                &self.filter
            }
        }
    )*};
}

mod around;
mod functions;
mod place;
mod switch;

pub use around::{Depth, MinDuration, NotBelow, OnlyBelow};
pub use functions::{Functions, Predicate, UnsortedError};
pub use place::{Contexts, Cpus, Tasks};
pub use switch::Switch;

/// Decides which calls a callback sees, by the call alone.
///
/// Runs at each entry, in every context; as a [`Callback`], it must not sleep
/// or panic. Pairs `(a, b)` accept what both accept.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::Filter;
/// use fgraph::{Entry, FrameData};
///
/// /// Calls from one function only.
/// struct CalledFrom(core::ops::Range<usize>);
///
/// impl Filter for CalledFrom {
///     fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
///         self.0.contains(&call.caller())
///     }
/// }
/// ```
pub trait Filter: Sync + 'static {
    /// Whether the callback sees this call.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Filter;
    /// use fgraph::{Context, Entry, FrameData};
    ///
    /// /// Calls of tasks with few traced calls around them.
    /// struct Shallow;
    ///
    /// impl Filter for Shallow {
    ///     fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
    ///         call.context() == Context::Task && call.depth() < 4
    ///     }
    /// }
    /// # use fgraph::tracer::{filter::Filtered, trigger::Counts};
    #[doc = example_kernel!()]
    /// # static COUNTS: Filtered<Counts, Shallow> = Filtered::new(Counts::new(&[]), Shallow);
    /// # FGRAPH.register(&COUNTS).unwrap();
    /// # drop(FGRAPH.scope(0x1000, 0));
    /// # assert_eq!(COUNTS.callback().others(), 1);
    /// ```
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool;
}

impl<F: Filter> Filter for &'static F {
    #[inline]
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        F::accepts(self, call)
    }
}

impl<A: Filter, B: Filter> Filter for (A, B) {
    #[inline]
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        self.0.accepts(call) && self.1.accepts(call)
    }
}

/// Accepts what another filter refuses.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::{Filtered, Not, Predicate};
/// use fgraph::tracer::trigger::{Counts, Tally};
#[doc = example_kernel!()]
///
/// static TALLIES: [Tally; 16] = [const { Tally::new() }; 16];
/// static OTHERS: Filtered<Counts, Not<Predicate>> =
///     Filtered::new(Counts::new(&TALLIES), Not(Predicate(|func| func == 0x1000)));
///
/// FGRAPH.register(&OTHERS)?;
/// drop((FGRAPH.scope(0x1000, 0), FGRAPH.scope(0x2000, 0)));
/// assert_eq!(OTHERS.callback().iter().collect::<Vec<_>>(), [(0x2000, 1)]);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Not<F>(
    /// The other filter.
    pub F,
);

impl<F: Filter> Filter for Not<F> {
    #[inline]
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        !self.0.accepts(call)
    }
}

/// A callback that leaves no record of a call before the call's end, so that
/// it can still be told to leave none: then
/// [`discard`](Deferred::discard) runs in the place of
/// [`exit`](Callback::exit).
///
/// A callback that writes at entry can not be this: what is written, perhaps
/// read already, does not go away. A graph that writes at exit is
/// [`LateGraph`](super::LateGraph).
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use fgraph::tracer::filter::{Deferred, MinDuration};
/// use fgraph::{Callback, Entry, Exit};
///
/// /// Counts calls when they end.
/// struct Ended(AtomicU64);
///
/// impl Callback for Ended {
///     type Frame = ();
///
///     fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
///         Some(())
///     }
///
///     fn exit(&self, _: Exit<'_, ()>, (): ()) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// impl Deferred for Ended {}
///
#[doc = example_kernel!()]
/// // The clock here moves by 1,000 whenever it is read.
/// static SLOW: MinDuration<Kernel, Ended> = MinDuration::new(Ended(AtomicU64::new(0)), 2000);
///
/// FGRAPH.register(&SLOW)?;
/// let outer = FGRAPH.scope(0x1000, 0);
/// drop(FGRAPH.scope(0x2000, 0));
/// drop(outer);
/// assert_eq!(SLOW.callback().0.load(Ordering::Relaxed), 1);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
pub trait Deferred: Callback {
    /// A call ended that is to leave no record. Runs where `exit` would have.
    /// Default: does nothing.
    ///
    /// # Example
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use fgraph::tracer::filter::{Deferred, MinDuration};
    /// # use fgraph::{Callback, Entry, Exit};
    /// struct TooQuick(AtomicU64);
    /// # impl Callback for TooQuick {
    /// #     type Frame = ();
    /// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
    /// #     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
    /// # }
    ///
    /// impl Deferred for TooQuick {
    ///     fn discard(&self, _: Exit<'_, ()>, (): ()) {
    ///         self.0.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// }
    #[doc = example_kernel!()]
    /// # static QUICK: MinDuration<Kernel, TooQuick> =
    /// #     MinDuration::new(TooQuick(AtomicU64::new(0)), 2000);
    /// # FGRAPH.register(&QUICK).unwrap();
    /// # drop(FGRAPH.scope(0x1000, 0));
    /// # assert_eq!(QUICK.callback().0.load(Ordering::Relaxed), 1);
    /// ```
    fn discard(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        let _ = (call, data);
    }
}

/// A callback that is shared: by a filter and its kernel, or by several
/// filters. In each slot it has frames of its own.
impl<C: Callback> Callback for &'static C {
    type Frame = C::Frame;

    #[inline]
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        C::entry(self, call)
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        C::exit(self, call, data);
    }
}

impl<C: Deferred> Deferred for &'static C {
    fn discard(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        C::discard(self, call, data);
    }
}

/// Passes on the calls that `F` accepts. Keeps nothing of its own in frames.
///
/// The calls inside a refused one are judged by themselves; to the wrapped
/// callback they are inside the nearest accepted one.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::{Contexts, Filtered};
/// use fgraph::tracer::trigger::{Counts, Tally};
#[doc = example_kernel!()]
///
/// static TALLIES: [Tally; 16] = [const { Tally::new() }; 16];
/// static IN_INTERRUPTS: Filtered<Counts, Contexts> =
///     Filtered::new(Counts::new(&TALLIES), Contexts::INTERRUPT);
///
/// FGRAPH.register(&IN_INTERRUPTS)?;
/// drop(FGRAPH.scope(0x1000, 0));
/// assert_eq!(IN_INTERRUPTS.callback().get(0x1000), 0);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct Filtered<C, F> {
    callback: C,
    filter: F,
}

wraps!(Filtered);

impl<C: Callback, F: Filter> Callback for Filtered<C, F> {
    type Frame = C::Frame;

    #[inline]
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        if !self.filter.accepts(&call) {
            return None;
        }
        self.callback.entry(call)
    }

    #[inline]
    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        self.callback.exit(call, data);
    }
}

impl<C: Deferred, F: Filter> Deferred for Filtered<C, F> {
    fn discard(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        self.callback.discard(call, data);
    }
}
