//! The slowest or deepest call so far, with all calls inside it.
//!
//! A call is known to be the worst only when it ends, so every candidate is
//! taken down in a [`Tree`] of its own while it runs. When it ends, its tree is
//! the new worst, or free for the next:
//!
//! ```text
//!         claim              finish, worse than the worst
//!  free ────────▶ running ─────────────────────────────────▶ worst
//!   ▲                │ finish, not worse                       │ │ ▲
//!   ├────────────────┘                  another is worse       │ │ │ put back
//!   ├──────────────────────────────────────────────────────────┘ │ │
//!   └─── put back, another is worse ─── being read ◀── worst() ──┘ ┘
//! ```
//!
//! Which tree a call belongs to, its frame says: there is no table of tasks. A
//! tree is written by its task and that task's interrupts; each call takes the
//! next place by one step. It is passed on through the one word `worst`.

use core::marker::PhantomData;

use crate::sync::{AtomicU32, AtomicUsize, Ordering, count};
use crate::tracer::filter::Filter;
use crate::{Callback, Entry, Exit, Platform};

use super::tree::Tree;
use super::worst::{Owner, Worst, WorstTree};

/// What makes one tree worse than another.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::Predicate;
/// use fgraph::tracer::trigger::{MaxLatency, Measure, Tree};
#[doc = example_kernel!()]
///
/// static TREES: [Tree<16>; 3] = [const { Tree::new() }; 3];
/// static WORST: MaxLatency<Kernel, Predicate, 16> =
///     MaxLatency::new(&TREES, Predicate::new(|func| func == 0x1000), Measure::Deepest);
/// FGRAPH.register(&WORST)?;
///
/// let scopes = [0x1000, 0x2000, 0x3000].map(|func| FGRAPH.scope(func, 0));
/// scopes.into_iter().rev().for_each(drop);
/// assert_eq!(WORST.worst().unwrap().score(), 3);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The time that its outermost call took, in ticks.
    Slowest,
    /// How many calls were inside each other, the outermost included.
    Deepest,
}

/// Keeps the worst call so far of some functions as a tree: that call and all
/// calls inside it, with their times.
///
/// Memory is given as trees: one for the worst, one for a reader, and one for
/// each call of the chosen functions that may run at the same time, on several
/// CPUs or in tasks that sleep in it. A call that finds no tree is
/// [counted](Self::missed) and not followed. Chosen functions inside a followed
/// call are part of its tree. A frame costs a word.
///
/// # Example
///
/// ```
/// use fgraph::tracer::filter::Predicate;
/// use fgraph::tracer::trigger::{MaxLatency, Measure, Tree};
#[doc = example_kernel!()]
///
/// const READ: usize = 0x1000;
/// static TREES: [Tree<100>; 3] = [const { Tree::new() }; 3];
/// static WORST: MaxLatency<Kernel, Predicate, 100> =
///     MaxLatency::new(&TREES, Predicate(|func| func == READ), Measure::Slowest);
///
/// FGRAPH.register(&WORST)?;
/// for inside in 0..3 {
///     let _read = FGRAPH.scope(READ, 0);
///     for _ in 0..inside {
///         drop(FGRAPH.scope(0x2000, 0x1004));
///     }
/// }
/// let tree = WORST.worst().unwrap();
/// assert_eq!(tree.score(), 5000);
/// assert_eq!(
///     tree.display((), fgraph::tracer::Scale::NANOSECONDS).to_string(),
///     "\
/// 5.000 us  0x1000
/// 1.000 us    0x2000
/// 1.000 us    0x2000
/// "
/// );
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MaxLatency<P, F, const CALLS: usize> {
    trees: &'static [Tree<CALLS>],
    roots: F,
    measure: Measure,
    at_least: u64,
    /// See [`Worst`].
    worst: AtomicUsize,
    missed: AtomicU32,
    backwards: AtomicU32,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform, F: Filter, const CALLS: usize> MaxLatency<P, F, CALLS> {
    /// Follows the calls that `roots` accepts, in these trees, which nobody
    /// else uses.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Predicate;
    /// use fgraph::tracer::trigger::{MaxLatency, Measure, Tree};
    #[doc = example_kernel!()]
    ///
    /// static TREES: [Tree<16>; 3] = [const { Tree::new() }; 3];
    /// static WORST: MaxLatency<Kernel, Predicate, 16> =
    ///     MaxLatency::new(&TREES, Predicate::new(|func| func == 0x1000), Measure::Slowest);
    /// assert!(WORST.worst().is_none());
    /// ```
    #[must_use]
    pub const fn new(trees: &'static [Tree<CALLS>], roots: F, measure: Measure) -> Self {
        Self {
            trees,
            roots,
            measure,
            at_least: 0,
            worst: AtomicUsize::new(0),
            missed: AtomicU32::new(0),
            backwards: AtomicU32::new(0),
            platform: PhantomData,
        }
    }

    /// Keeps no tree whose [score](WorstTree::score) is less.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Predicate;
    /// use fgraph::tracer::trigger::{MaxLatency, Measure, Tree};
    #[doc = example_kernel!()]
    ///
    /// static TREES: [Tree<16>; 3] = [const { Tree::new() }; 3];
    /// static WORST: MaxLatency<Kernel, Predicate, 16> =
    ///     MaxLatency::new(&TREES, Predicate::new(|func| func == 0x1000), Measure::Slowest)
    ///         .at_least(2000);
    /// FGRAPH.register(&WORST)?;
    ///
    /// // A thousand ticks, here.
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert!(WORST.worst().is_none());
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn at_least(mut self, score: u64) -> Self {
        self.at_least = score;
        self
    }

    /// How many calls of the chosen functions were not followed because no
    /// tree was free.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Predicate;
    /// use fgraph::tracer::trigger::{MaxLatency, Measure, Tree};
    #[doc = example_kernel!()]
    ///
    /// static TREES: [Tree<16>; 0] = [];
    /// static WORST: MaxLatency<Kernel, Predicate, 16> =
    ///     MaxLatency::new(&TREES, Predicate::new(|func| func == 0x1000), Measure::Slowest);
    /// FGRAPH.register(&WORST)?;
    ///
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(WORST.missed(), 1, "there are no trees");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed.load(Ordering::Relaxed)
    }

    /// How many calls ended before they began, by the clock; each is told to
    /// have taken no time.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// CLOCK.store(0, std::sync::atomic::Ordering::Relaxed);
    /// drop(scope);
    /// assert_eq!(WORST.backwards(), 1);
    /// ```
    #[must_use]
    pub fn backwards(&self) -> u32 {
        self.backwards.load(Ordering::Relaxed)
    }

    /// The worst tree so far, to be read at leisure; it is put back when it is
    /// dropped, unless a worse one has come meanwhile. Any context; `None`
    /// while there is none, or another reads it.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let worst = WORST.worst().unwrap();
    /// assert_eq!(worst.score(), 1000);
    /// assert!(WORST.worst().is_none(), "one reader at a time");
    /// ```
    #[must_use]
    pub fn worst(&self) -> Option<WorstTree<'_, CALLS>> {
        let tree = self.exchange(|worst| (worst != 0).then_some(0))?;
        let tree = self.trees.get(tree.checked_sub(1)?)?;
        Some(WorstTree { tree, owner: self })
    }

    /// Forgets the worst tree. Any context.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// WORST.clear();
    /// assert!(WORST.worst().is_none());
    /// ```
    pub fn clear(&self) {
        if let Some(tree) = self.exchange(|worst| (worst != 0).then_some(0))
            && let Some(tree) = tree.checked_sub(1).and_then(|tree| self.trees.get(tree))
        {
            tree.release();
        }
    }

    /// Gives all trees back, those too whose calls will not tell that they
    /// ended, because the callback was unregistered meanwhile. While it is not
    /// registered, and nobody reads.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// std::mem::forget(FGRAPH.scope(0x1000, 0));
    /// FGRAPH.unregister(id)?;
    /// // The call that will not tell its end had a tree.
    /// WORST.reset();
    /// assert_eq!(WORST.missed(), 0);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn reset(&self) {
        self.clear();
        self.trees.iter().for_each(Tree::release);
        self.missed.store(0, Ordering::Relaxed);
        self.backwards.store(0, Ordering::Relaxed);
    }

    /// Replaces the worst tree by what `with` says, and returns it; `None`,
    /// and nothing has changed, if it says `None`. Trees are told by `tree` of
    /// [`Worst`].
    fn exchange(&self, with: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let kinds = self.trees.len();
        let next = |word: usize| {
            let worst = Worst::from_word(word, kinds);
            Some(worst.next_word(with(worst.tree)?, kinds))
        };
        // Acquire: the tree that comes out is read, or written by its next
        // owner. Release: the tree that goes in is whole. Each turn that fails
        // means that another's succeeded.
        self.worst
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .ok()
            .map(|word| Worst::from_word(word, kinds).tree)
    }

    fn score_of(&self, tree: usize) -> Option<u64> {
        Some(self.trees.get(tree.checked_sub(1)?)?.score.get())
    }

    /// A tree with its score, which nobody else has, becomes the worst or free.
    fn offer(&self, tree: &Tree<CALLS>) {
        let score = tree.score.get();
        let number = self.trees.iter().position(|t| core::ptr::eq(t, tree));
        let number = number.map_or(0, |place| place + 1);
        // The first of equals stays. If the tree that is the worst is replaced
        // while its score is read, the exchange fails and looks again.
        let worse = |worst: usize| {
            let better = self.score_of(worst).is_none_or(|worst| worst < score);
            better.then_some(number)
        };
        let out = if score < self.at_least {
            None
        } else {
            self.exchange(worse)
        };
        let free = match out {
            Some(before) => before.checked_sub(1).and_then(|t| self.trees.get(t)),
            None => Some(tree),
        };
        if let Some(tree) = free {
            tree.release();
        }
    }

    /// A tree for a call that begins.
    fn begin(&self) -> Option<usize> {
        let tree = self.trees.iter().position(Tree::claim);
        let Some((tree, memory)) = tree.and_then(|t| Some((t, self.trees.get(t)?))) else {
            count(&self.missed, 1);
            return None;
        };
        memory.begin(P::task());
        Some(tree)
    }
}

/// Where a call is taken down: the tree and the place in it, as one number.
fn at<const CALLS: usize>(tree: usize, place: usize) -> usize {
    tree * CALLS + place
}

impl<P: Platform, F: Filter, const CALLS: usize> Callback for MaxLatency<P, F, CALLS> {
    type Frame = usize;

    #[inline]
    fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
        let parent = call.parent().map(|parent| parent.get());
        let tree = match parent {
            Some(parent) => parent.checked_div(CALLS)?,
            None if CALLS == 0 || !self.roots.accepts(&call) => return None,
            None => self.begin()?,
        };
        let memory = self.trees.get(tree)?;
        let number = memory.take_place()?;
        let place = memory.calls.get(number)?;
        let parent = parent.map(|parent| parent % CALLS);
        let depth = match parent.and_then(|parent| memory.calls.get(parent)) {
            Some(parent) => parent.depth().saturating_add(1),
            None => 0,
        };
        place.begin(&call, parent.unwrap_or(number), depth, P::clock);
        Some(at::<CALLS>(tree, number))
    }

    #[inline]
    fn exit(&self, call: Exit<'_, usize>, data: usize) {
        let end = P::clock();
        let (Some(tree), Some(number)) = (data.checked_div(CALLS), data.checked_rem(CALLS)) else {
            return;
        };
        let Some(tree) = self.trees.get(tree) else {
            return;
        };
        let Some(place) = tree.calls.get(number) else {
            return;
        };
        let taken = end.checked_sub(place.start()).unwrap_or_else(|| {
            count(&self.backwards, 1);
            0
        });
        place.end(taken, call.cause());
        if number == 0 {
            tree.score.set(match self.measure {
                Measure::Slowest => taken,
                Measure::Deepest => tree.depth(),
            });
            self.offer(tree);
        }
    }
}

impl<P: Platform, F: Filter, const CALLS: usize> Owner<CALLS> for MaxLatency<P, F, CALLS> {
    fn put_back(&self, tree: &Tree<CALLS>) {
        self.offer(tree);
    }
}
