//! Which tree is the worst, as a word, and that tree while it is read.
//!
//! This file does not know what makes a tree worse than another.

use core::fmt;

use crate::sync::Ordering;
use crate::tracer::{Scale, Symbols};

use super::tree::{Shown, Tree, TreeCalls};

/// Which tree is the worst, and how often that has changed: of two words that
/// name the same tree, the count tells whether it was another's in between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Worst {
    /// One more than the tree's place; 0 for none.
    pub(super) tree: usize,
    changes: usize,
}

impl Worst {
    pub(super) fn from_word(word: usize, trees: usize) -> Self {
        let kinds = trees.saturating_add(1);
        Self {
            tree: word % kinds,
            changes: word / kinds,
        }
    }

    /// The word of the next state, with this tree.
    pub(super) fn next_word(self, tree: usize, trees: usize) -> usize {
        let kinds = trees.saturating_add(1);
        // The largest count whose words all fit is never reached: it wraps.
        let changes = (self.changes + 1) % (usize::MAX / kinds);
        changes * kinds + tree
    }
}

/// Takes trees back.
pub(super) trait Owner<const CALLS: usize> {
    fn put_back(&self, tree: &Tree<CALLS>);
}

/// The worst tree so far, held for reading.
///
/// # Example
///
/// ```
#[doc = example_worst!()]
/// {
///     let worst = WORST.worst().unwrap();
///     print!("{}", worst.display((), fgraph::tracer::Scale::NANOSECONDS));
/// }
/// assert!(WORST.worst().is_some(), "it was put back");
/// ```
pub struct WorstTree<'a, const CALLS: usize> {
    pub(super) tree: &'a Tree<CALLS>,
    pub(super) owner: &'a dyn Owner<CALLS>,
}

impl<const CALLS: usize> fmt::Debug for WorstTree<'_, CALLS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorstTree")
            .field("score", &self.score())
            .field("task", &self.task())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl<const CALLS: usize> Drop for WorstTree<'_, CALLS> {
    fn drop(&mut self) {
        self.owner.put_back(self.tree);
    }
}

impl<const CALLS: usize> WorstTree<'_, CALLS> {
    /// What made it the worst: ticks or calls, by [`Measure`](super::Measure).
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let worst = WORST.worst().unwrap();
    /// assert_eq!(worst.score(), 1000);
    /// ```
    #[must_use]
    pub fn score(&self) -> u64 {
        self.tree.score.get()
    }

    /// The task that it ran in, by [`Platform::task`](crate::Platform::task).
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let worst = WORST.worst().unwrap();
    /// assert_eq!(worst.task(), Kernel::task());
    /// ```
    #[must_use]
    pub fn task(&self) -> usize {
        self.tree.task.load(Ordering::Relaxed)
    }

    /// How many calls inside found no place in the tree. Nor have those inside
    /// them.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let worst = WORST.worst().unwrap();
    /// assert_eq!(worst.lost(), 0);
    /// ```
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.tree.lost.load(Ordering::Relaxed)
    }

    /// The calls, each followed by those inside it.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let worst = WORST.worst().unwrap();
    /// let funcs = worst.calls().map(|call| call.func);
    /// assert_eq!(funcs.collect::<Vec<_>>(), [0x1000]);
    /// ```
    #[must_use]
    pub fn calls(&self) -> TreeCalls<'_> {
        TreeCalls::new(self.tree)
    }

    /// To be displayed: a line a call, with its duration and, where it did not
    /// return, how it ended.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_worst!()]
    /// let worst = WORST.worst().unwrap();
    /// let scale = fgraph::tracer::Scale::NANOSECONDS;
    /// assert_eq!(worst.display((), scale).to_string(), "1.000 us  0x1000\n");
    /// ```
    pub fn display<S: Symbols>(&self, symbols: S, scale: Scale) -> impl fmt::Display {
        Shown {
            calls: self.calls(),
            lost: self.lost(),
            symbols,
            scale,
        }
    }
}
