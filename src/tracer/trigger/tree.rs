//! One tree of calls: its memory, its order, and how it looks.
//!
//! This file does not know when a tree is kept.

use core::fmt;

use crate::sync::number::Number;
use crate::sync::{AtomicU32, AtomicUsize, Ordering, count};
use crate::tracer::names::Name;
use crate::tracer::scale::Microseconds;
use crate::tracer::{Scale, Symbols};
use crate::{Cause, Context, Entry};

/// Memory for one tree of up to `CALLS` calls, for a [`MaxLatency`](super::MaxLatency).
///
/// # Example
///
/// ```
/// use fgraph::tracer::trigger::Tree;
///
/// // The worst, a reader's, and two CPUs'.
/// static TREES: [Tree<200>; 4] = [const { Tree::new() }; 4];
/// # assert_eq!(TREES.len(), 4);
/// ```
#[derive(Debug)]
pub struct Tree<const CALLS: usize> {
    /// Not 0 while a call or a reader has it. Acquire when it is claimed and
    /// release when it is given up: what the former owner wrote comes first.
    busy: AtomicUsize,
    /// Places taken, of `CALLS` at most. Relaxed, as all below: the tree is
    /// passed on by `busy`, and by `worst` of its owner.
    used: AtomicUsize,
    /// Calls that found no place.
    pub(super) lost: AtomicU32,
    pub(super) score: Number,
    pub(super) task: AtomicUsize,
    pub(super) calls: [Place; CALLS],
}

/// One call. Relaxed, all, as in its tree.
#[derive(Debug)]
pub(super) struct Place {
    func: AtomicUsize,
    caller: AtomicUsize,
    /// The place of the call around it.
    parent: AtomicUsize,
    depth: AtomicUsize,
    /// [`RUNNING`], or one more than the cause of its end.
    ending: AtomicUsize,
    context: AtomicUsize,
    start: Number,
    duration: Number,
}

/// `ending` of a call that runs.
const RUNNING: usize = 0;

impl Place {
    const fn new() -> Self {
        Self {
            func: AtomicUsize::new(0),
            caller: AtomicUsize::new(0),
            parent: AtomicUsize::new(0),
            depth: AtomicUsize::new(0),
            ending: AtomicUsize::new(RUNNING),
            context: AtomicUsize::new(0),
            start: Number::new(),
            duration: Number::new(),
        }
    }

    /// A call begins here. The root is inside itself: `parent` is its own place.
    pub(super) fn begin(
        &self,
        call: &Entry<'_, usize>,
        parent: usize,
        depth: usize,
        now: impl FnOnce() -> u64,
    ) {
        for (word, value) in [
            (&self.func, call.func()),
            (&self.caller, call.caller()),
            (&self.parent, parent),
            (&self.depth, depth),
            (&self.ending, RUNNING),
            (&self.context, call.context() as usize),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        self.duration.set(0);
        self.start.set(now());
    }

    /// It ends.
    pub(super) fn end(&self, duration: u64, cause: Cause) {
        self.duration.set(duration);
        self.ending.store(cause as usize + 1, Ordering::Relaxed);
    }

    pub(super) fn start(&self) -> u64 {
        self.start.get()
    }

    pub(super) fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    fn call(&self) -> TreeCall {
        let get = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        TreeCall {
            func: get(&self.func),
            caller: get(&self.caller),
            depth: get(&self.depth),
            context: Context::from_code(get(&self.context)),
            start: self.start.get(),
            duration: self.duration.get(),
            cause: get(&self.ending).checked_sub(1).map(Cause::from_code),
        }
    }
}

impl<const CALLS: usize> Default for Tree<CALLS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CALLS: usize> Tree<CALLS> {
    /// A free one.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::trigger::Tree;
    ///
    /// static TREE: Tree<8> = Tree::new();
    /// # #[cfg(target_pointer_width = "64")]
    /// assert!(size_of_val(&TREE) < 9 * 64);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            busy: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            lost: AtomicU32::new(0),
            score: Number::new(),
            task: AtomicUsize::new(0),
            calls: [const { Place::new() }; CALLS],
        }
    }

    pub(super) fn claim(&self) -> bool {
        self.busy
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    pub(super) fn release(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// Empties it for a call of `task`.
    pub(super) fn begin(&self, task: usize) {
        self.used.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
        self.score.set(0);
        self.task.store(task, Ordering::Relaxed);
    }

    /// How many calls were inside each other.
    pub(super) fn depth(&self) -> u64 {
        let depths = self.used().iter().map(|place| place.depth() + 1);
        depths.max().unwrap_or(0) as u64
    }

    /// The next free place. One step, as an interrupt may want one too.
    pub(super) fn take_place(&self) -> Option<usize> {
        let order = Ordering::Relaxed;
        let next = |used: usize| (used < CALLS).then(|| used + 1);
        let place = self.used.fetch_update(order, order, next).ok();
        if place.is_none() {
            count(&self.lost, 1);
        }
        place
    }

    pub(super) fn used(&self) -> &[Place] {
        let used = self.used.load(Ordering::Relaxed);
        self.calls.get(..used).unwrap_or(&self.calls)
    }
}

/// A call in a tree.
///
/// # Example
///
/// ```
#[doc = example_worst!()]
/// let worst = WORST.worst().unwrap();
/// let call = worst.calls().next().unwrap();
/// assert_eq!((call.func, call.depth, call.duration), (0x1000, 0, 1000));
/// assert_eq!(call.cause, Some(fgraph::Cause::Returned));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeCall {
    /// The function.
    pub func: usize,
    /// The address that it returns to.
    pub caller: usize,
    /// How many of the tree's calls are around it.
    pub depth: usize,
    /// Where it ran.
    pub context: Context,
    /// When it began, by [`Platform::clock`](crate::Platform::clock).
    pub start: u64,
    /// How many ticks it took.
    pub duration: u64,
    /// How it ended; `None` if that was not seen.
    pub cause: Option<Cause>,
}

/// The calls of a tree, each followed by those inside it.
///
/// Places are taken in the order in which calls begin, except that an
/// interrupt may take one between a call's place and its frame: it is not
/// inside that call. So the order is that of the tree, not of the places, and
/// a step looks through the places.
///
/// # Example
///
/// ```
#[doc = example_worst!()]
/// let worst = WORST.worst().unwrap();
/// for call in worst.calls() {
///     println!("{:1$}{2:#x}", "", 2 * call.depth, call.func);
/// }
/// assert_eq!(worst.calls().count(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct TreeCalls<'a> {
    places: &'a [Place],
    next: Option<usize>,
}

impl<'a> TreeCalls<'a> {
    pub(super) fn new<const CALLS: usize>(tree: &'a Tree<CALLS>) -> Self {
        Self {
            places: tree.used(),
            next: Some(0),
        }
    }
}

impl TreeCalls<'_> {
    fn parent(&self, of: usize) -> Option<usize> {
        let parent = self.places.get(of)?.parent.load(Ordering::Relaxed);
        // Strictly lower, so that every way up ends.
        (parent < of).then_some(parent)
    }

    /// The first call after the place `after` that is inside `parent`.
    fn child(&self, parent: usize, after: usize) -> Option<usize> {
        (after + 1..self.places.len()).find(|&place| self.parent(place) == Some(parent))
    }
}

impl Iterator for TreeCalls<'_> {
    type Item = TreeCall;

    fn next(&mut self) -> Option<TreeCall> {
        let current = self.next?;
        let call = self.places.get(current)?.call();
        self.next = self.child(current, current);
        let mut at = current;
        while self.next.is_none()
            && let Some(parent) = self.parent(at)
        {
            self.next = self.child(parent, at);
            at = parent;
        }
        Some(call)
    }
}

/// A tree, displayed.
pub(super) struct Shown<'a, S> {
    pub(super) calls: TreeCalls<'a>,
    pub(super) lost: u32,
    pub(super) symbols: S,
    pub(super) scale: Scale,
}

impl<S: Symbols> fmt::Display for Shown<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |call: &TreeCall| Microseconds(self.scale.nanoseconds(call.duration));
        let widths = self.calls.clone().map(|call| time(&call).width());
        let width = widths.max().unwrap_or(0);
        for call in self.calls.clone() {
            let before = width.saturating_sub(time(&call).width());
            let indent = call.depth.saturating_mul(2);
            write!(f, "{:before$}{} us  {:indent$}", "", time(&call), "")?;
            write!(f, "{}", Name(&self.symbols, call.func))?;
            f.write_str(match call.cause {
                Some(Cause::Returned) => "\n",
                Some(Cause::Unwound) => " (unwound)\n",
                Some(Cause::TaskExit) => " (task exit)\n",
                None => " (end not seen)\n",
            })?;
        }
        if self.lost > 0 {
            writeln!(f, "({} calls found no place)", self.lost)?;
        }
        Ok(())
    }
}
