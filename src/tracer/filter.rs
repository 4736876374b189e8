//! Filters: callbacks that wrap another and let it see some calls only.
//!
//! Each is part of the callback that it wraps: it takes nothing from the
//! callbacks in other slots, and costs nothing where it is not used. What a
//! filter must remember lies in the frames of the calls that it remembers it
//! for, so it is right for every task, and gone when the call is, however it
//! ends.
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
//! # use fgraph::{Fgraph, Platform, RetStack};
//! # static STACK: RetStack = RetStack::new();
//! # struct Kernel;
//! # // SAFETY: one CPU, one task.
//! # unsafe impl Platform for Kernel {
//! #     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
//! #     fn clock() -> u64 { 0 }
//! # }
//! # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
//! # STACK.attach(Box::leak(Box::new([0; 64])), 0..0)?;
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

mod around;
mod by;

pub use around::{Depth, MinDuration, NotBelow, OnlyBelow};
pub use by::{Contexts, Cpus, Functions, Not, Predicate, Switch, Tasks, UnsortedError};

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

/// A callback that leaves no record of a call before the call's end, so that
/// it can still be told to leave none: then
/// [`discard`](Deferred::discard) runs in the place of
/// [`exit`](Callback::exit).
///
/// A callback that writes at entry can not be this: what is written, perhaps
/// read already, does not go away.
pub trait Deferred: Callback {
    /// A call ended that is to leave no record. Runs where `exit` would have.
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
#[derive(Debug)]
pub struct Filtered<C, F> {
    callback: C,
    filter: F,
}

impl<C, F> Filtered<C, F> {
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
