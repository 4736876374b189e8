//! The shadow stack of one task: frames as words, pushed and popped by the
//! task and its interrupts, read by anybody.
//!
//! A kernel puts a [`RetStack`] into each task, [attaches](RetStack::attach) as
//! many words as [`words_for`] tells when the task is to be traced, and may read
//! the [frames](RetStack::frames) of its calls at any time. The tracer does the
//! rest.
//!
//! This module knows no callback, no architecture and no platform. What the
//! bits of a word mean is `word`'s; words are given and taken back in `attach`,
//! written and read in `view` and, the short way, in `near`, and read by others
//! in `walk`.
//!
//! # Interruptible anywhere
//!
//! One `State` word tells how far the stack is filled (*top*) and how much is
//! claimed above that, up to *reserved*. An owner pushes in three steps:
//!
//! ```text
//!  1. claim   state := top = t, reserved = r      one store
//!  2. write   words t .. e                        e ≤ r
//!  3. commit  state := top = e, reserved = e      one store
//! ```
//!
//! An interrupt before 1 or after 3 finds a whole stack. One between them
//! starts at *reserved*, above whatever is half-written, and puts a *gap* word
//! under its first frame, which leads every reader from there to *top*, below
//! the claimed words. Its last pop puts both positions back as it found them.
//! Nothing is written twice, nothing is retried, and no reader ever meets a
//! half-written word as the newest of a frame.

use core::ops::Range;
use core::ptr;

use static_assertions::const_assert;

use crate::sync::number::Number;
use crate::sync::{self, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, count};

mod aside;
mod attach;
mod ended;
mod inline;
mod near;
mod slept;
mod view;
pub(crate) mod walk;
pub(crate) mod word;

pub use attach::{AttachError, DetachError};
pub use inline::InlineStack;
pub(crate) use near::Near;
pub(crate) use view::{Claim, Found, NotNear, View};
pub use walk::{Frame, Frames};
pub use word::{MAX_DATA_WORDS, MAX_WORDS, NEAR_WORDS, WIDE_WORDS};
use word::{Slots, State};

/// The control block of a task's shadow stack: one cache line in the task
/// struct. The words themselves are [attached](RetStack::attach) when tracing
/// starts, so that a task costs no more while nobody traces.
///
/// # Example
///
/// ```
/// use fgraph::RetStack;
///
/// struct Task {
///     shadow: RetStack,
///     // …
/// }
/// static TASK: Task = Task { shadow: RetStack::new() };
/// assert!(!TASK.shadow.is_attached());
/// ```
#[repr(C, align(64))]
pub struct RetStack {
    /// A [`State`]. Written by the running task and its interrupts alone, by
    /// plain stores; relaxed, because another CPU that reads it is told that
    /// what it sees may be stale.
    state: AtomicUsize,
    /// The first word; null while detached. Stored with release when all
    /// but the length is set, loaded with acquire by [`view`](Self::view).
    words: AtomicPtr<AtomicUsize>,
    /// How many words; 0 while detached, for the task and its interrupts to
    /// see that by one look: stored last of all with release when attached,
    /// and first of all when detached.
    len: AtomicU32,
    /// Bytes of the task's real stack, 0 where it is not known. Relaxed, as the
    /// next: `words` publishes them.
    span: AtomicU32,
    /// The [`Slots`] of near frames: up to the end of the task's real stack, so
    /// that no call on an interrupt stack above it passes for one of its own.
    slots: AtomicUsize,
    /// Ticks, as the next. Only the CPU that switches the task writes them: the
    /// scheduler's own hand-over orders one CPU's accesses with the next one's.
    slept: Number,
    left: Number,
    /// Relaxed, as the next three: counts order nothing.
    overruns: AtomicU32,
    recursions: AtomicU32,
    unwound: AtomicU32,
    strays: AtomicU32,
}

const_assert!(cfg!(loom) || size_of::<RetStack>() == 64);

/// What one task's shadow stack could not do, since it was attached. Each
/// wraps at 2³².
///
/// # Example
///
/// ```
#[doc = example_callback!()]
/// # impl Callback for Mine {
/// #     type Frame = ();
/// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
/// #     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// # }
/// # FGRAPH.register(&MINE)?;
/// let mut calls = Vec::new();
/// while STACK.counters().overruns == 0 {
///     calls.push(FGRAPH.scope(0x1000, 0));
/// }
/// // The call that found no room went untraced, and is counted.
/// assert_eq!(STACK.counters().overruns, 1);
/// assert_eq!(STACK.depth(), calls.len() - 1);
/// # while calls.pop().is_some() {}
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Calls of which something was lost because the stack was full, each counted
    /// once: they went untraced, or some callback's data found no room, so that
    /// it takes no part in the call. While this is 0, there was room for
    /// everything. Whose the loss was, [`Fgraph::missed`](crate::Fgraph::missed)
    /// tells.
    pub overruns: u32,
    /// Calls that went untraced because their context was inside the tracer.
    pub recursions: u32,
    /// Frames that ended without a return: jumped over, or restored.
    pub unwound: u32,
    /// Returns that found no frame on this stack, and words that did not read
    /// as a frame where one had to be.
    pub strays: u32,
}

/// The words that a depth takes: `depth` near frames, in each of which the
/// callbacks of `data` keep that many data words (0 costs nothing).
///
/// A *wide* frame, whose function, return address or slot lies outside its
/// 4 GiB window, takes [`WIDE_WORDS`] instead of [`NEAR_WORDS`].
///
/// # Example
///
/// ```
/// use fgraph::ret_stack::words_for;
///
/// // Fifty calls, for callbacks that keep no data.
/// const WORDS: usize = words_for(50, &[]);
/// // With one callback that keeps a start time.
/// const TIMED: usize = words_for(50, &[1]);
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!((WORDS * size_of::<usize>(), TIMED * size_of::<usize>()), (800, 1600));
/// ```
#[must_use]
pub const fn words_for(depth: usize, data: &[usize]) -> usize {
    let mut frame = NEAR_WORDS;
    let mut i = 0;
    while i < data.len() {
        if data[i] > 0 {
            frame = frame.saturating_add(data[i]).saturating_add(1);
        }
        i += 1;
    }
    depth.saturating_mul(frame)
}

impl Default for RetStack {
    fn default() -> Self {
        Self::new()
    }
}

impl RetStack {
    /// A shadow stack without words: its task is not traced.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::RetStack;
    ///
    /// let stack = RetStack::new();
    /// assert_eq!(stack.capacity(), 0);
    /// assert_eq!(stack.frames().count(), 0);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicUsize::new(State::EMPTY.word()),
            words: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU32::new(0),
            span: AtomicU32::new(0),
            slots: AtomicUsize::new(0),
            slept: Number::new(),
            left: Number::new(),
            overruns: AtomicU32::new(0),
            recursions: AtomicU32::new(0),
            unwound: AtomicU32::new(0),
            strays: AtomicU32::new(0),
        }
    }

    /// Whether the task has words, and so is traced. Any context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    /// # let stack = fgraph::RetStack::new();
    /// if !stack.is_attached() {
    ///     stack.attach(Box::leak(Box::new([0; 128])), 0x7000_0000..0x7001_0000)?;
    /// }
    /// assert!(stack.is_attached());
    /// # Ok::<(), fgraph::ret_stack::AttachError>(())
    /// ```
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.view().is_some()
    }

    /// How many words are attached; 0 if none are. Any context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    /// # let stack = fgraph::RetStack::new();
    /// stack.attach(Box::leak(Box::new([0; 128])), 0x7000_0000..0x7001_0000)?;
    /// assert_eq!(stack.capacity(), 128);
    /// # Ok::<(), fgraph::ret_stack::AttachError>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.view().map_or(0, |view| view.len())
    }

    /// The largest number of words that were in use since the words were
    /// attached. Found by looking for the highest word that was ever written,
    /// so it costs the hot path nothing and this call a scan from the end. Any
    /// context, any CPU; for choosing [how many words](words_for) a task gets.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::ret_stack::words_for;
    ///
    #[doc = example_traced!()]
    /// let outer = FGRAPH.scope(0x1000, 0);
    /// drop(FGRAPH.scope(0x2000, 0));
    /// let deepest = STACK.high_water();
    /// drop(outer);
    /// assert!(deepest >= words_for(2, &[]));
    /// assert_eq!(STACK.high_water(), deepest, "no less when the calls are gone");
    /// ```
    #[must_use]
    pub fn high_water(&self) -> usize {
        self.view().map_or(0, |view| {
            let written = |&i: &usize| view.get(i) != 0;
            (0..view.len()).rev().find(written).map_or(0, |i| i + 1)
        })
    }

    /// What could not be done since the words were attached. Any context, any
    /// CPU; another CPU's look may be stale.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::{RetStack, ret_stack::Counters};
    ///
    /// let stack = RetStack::new();
    /// assert_eq!(stack.counters(), Counters::default());
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            overruns: self.overruns.load(Ordering::Relaxed),
            recursions: self.recursions.load(Ordering::Relaxed),
            unwound: self.unwound.load(Ordering::Relaxed),
            strays: self.strays.load(Ordering::Relaxed),
        }
    }

    /// Whether a context of the task is inside the tracer at this moment: in a
    /// callback, or about to call one. Any context, any CPU; for
    /// [`Platform::synchronize`](crate::Platform::synchronize) and for
    /// schedulers that do not preempt there.
    ///
    /// # Example
    ///
    /// ```
    /// # use fgraph::{Callback, Entry, Exit};
    #[doc = example_kernel!()]
    /// # struct Look;
    /// # impl Callback for Look {
    /// # type Frame = ();
    /// fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
    ///     assert!(call.stack().is_inside());
    ///     Some(())
    /// }
    /// # fn exit(&self, call: Exit<'_, ()>, (): ()) { assert!(call.stack().is_inside()); }
    /// # }
    /// # static LOOK: Look = Look;
    /// # FGRAPH.register(&LOOK)?;
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// assert!(!STACK.is_inside());
    /// # drop(scope);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.state().is_any_guarded()
    }

    /// Relaxed: the owner reads what it or an interrupt on its own CPU wrote.
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        State::from_word(self.state.load(Ordering::Relaxed))
    }

    /// Moves the positions and the guards, by one store. The fences are for
    /// interrupts on this CPU, so they bind the compiler alone: words written
    /// before a commit are seen by an interrupt that sees the commit, and none
    /// is written before its claim.
    #[inline(always)]
    pub(crate) fn set_state(&self, state: State) {
        compiler_fence(Ordering::SeqCst);
        self.state.store(state.word(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Moves them from `from` to `to`, if they still are `from`: no interrupt
    /// has left frames since that was read, or ended some. Other CPUs only read.
    #[inline(always)]
    pub(crate) fn replace_state(&self, from: State, to: State) -> bool {
        compiler_fence(Ordering::SeqCst);
        let replaced = sync::replace(&self.state, from.word(), to.word());
        compiler_fence(Ordering::SeqCst);
        replaced
    }

    /// Makes of them what `to` says, in one step, and returns what they were;
    /// if it says nothing, nothing changes, and that is the error. In line: see
    /// `Guards::hold`.
    #[inline(always)]
    pub(crate) fn update_state(&self, to: impl Fn(State) -> Option<State>) -> Result<State, State> {
        loop {
            let seen = self.state();
            let Some(new) = to(seen) else {
                return Err(seen);
            };
            if self.replace_state(seen, new) {
                return Ok(seen);
            }
        }
    }

    /// As [`update_state`](Self::update_state), where it always says something.
    #[inline(always)]
    pub(crate) fn change_state(&self, to: impl Fn(State) -> State) -> State {
        let (Ok(before) | Err(before)) = self.update_state(|state| Some(to(state)));
        before
    }

    /// The context goes inside the tracer. Returns what the state was; `None`, and
    /// nothing has changed, if it is inside.
    #[inline(always)]
    pub(crate) fn take_guard(&self, context: usize) -> Option<State> {
        let guarded = |state: State| (!state.is_guarded(context)).then(|| state.guarded(context));
        self.update_state(guarded).ok()
    }

    /// Gives the guards back that there were `before`.
    #[inline(always)]
    pub(crate) fn set_guards_of(&self, before: State) {
        self.change_state(|now| now.with_guards_of(before));
    }

    /// The stack with its words, if it has any.
    #[inline(always)]
    pub(crate) fn view(&self) -> Option<View<'_>> {
        // Acquire pairs with the release in `attach_raw`.
        let words = self.words.load(Ordering::Acquire);
        if words.addr() <= Self::claimed().addr() || self.room() == 0 && words != Self::no_words() {
            return None;
        }
        Some(View { stack: self, words })
    }

    /// The stack with its words, which are attached: a frame is being entered
    /// or left.
    #[inline(always)]
    pub(crate) fn view_in_use(&self) -> View<'_> {
        // Relaxed: whoever entered has acquired them.
        let words = self.words.load(Ordering::Relaxed);
        View { stack: self, words }
    }

    /// How many words, 0 while detached. Acquire pairs with the release in
    /// `attach_raw`: who finds a length finds its words.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    #[inline(always)]
    pub(crate) fn slots(&self) -> Slots {
        Slots::from_word(self.slots.load(Ordering::Relaxed))
    }

    /// Whether `slot` lies in the task's real stack, as far as that is known.
    pub(crate) fn owns(&self, slot: usize) -> bool {
        self.real_stack().contains(&slot)
    }

    /// The task's real stack; empty where its bounds are not known.
    pub(crate) fn real_stack(&self) -> Range<usize> {
        let span = self.span.load(Ordering::Relaxed) as usize;
        let end = match span {
            0 => 0,
            _ => self.slots().end(),
        };
        end.saturating_sub(span)..end
    }

    pub(crate) fn count_overrun(&self) {
        count(&self.overruns, 1);
    }

    pub(crate) fn count_recursion(&self) {
        count(&self.recursions, 1);
    }

    pub(crate) fn count_unwound(&self) {
        count(&self.unwound, 1);
    }

    pub(crate) fn count_stray(&self) {
        count(&self.strays, 1);
    }
}

impl core::fmt::Debug for RetStack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RetStack")
            .field("attached", &self.is_attached())
            .field("capacity", &self.capacity())
            .field("state", &self.state())
            .field("counters", &self.counters())
            .finish()
    }
}
