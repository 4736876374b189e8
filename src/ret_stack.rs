//! The shadow stack of one task: frames as words, pushed and popped by the
//! task and its interrupts, read by anybody.
//!
//! This module knows no callback, no architecture and no platform. What the
//! bits of a word mean is `word`'s; reading without owning is `walk`'s.
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
use core::ptr::{self, NonNull};

use static_assertions::const_assert;

use crate::sync::{self, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence, count};

mod aside;
mod inline;
mod view;
pub(crate) mod walk;
pub(crate) mod word;

pub use inline::InlineStack;
pub(crate) use view::{Claim, Found, NotNear, View, put_data};
pub use walk::{Frame, Frames};
pub use word::{MAX_DATA_WORDS, MAX_WORDS, NEAR_WORDS, WIDE_WORDS};
use word::{State, Window};

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
    /// else is set, loaded with acquire by [`view`](Self::view).
    words: AtomicPtr<AtomicUsize>,
    /// How many words.
    len: AtomicU32,
    /// Bytes of the task's real stack, 0 where it is not known.
    span: AtomicU32,
    /// The base of the window in which near frames tell their slots: the lowest
    /// address of the task's real stack is in its middle.
    window: AtomicUsize,
    slept: Ticks,
    left: Ticks,
    overruns: AtomicU32,
    recursions: AtomicU32,
    unwound: AtomicU32,
    strays: AtomicU32,
}

const_assert!(cfg!(loom) || size_of::<RetStack>() == 64);

/// A tick count that only the CPU which switches the task touches.
struct Ticks([AtomicUsize; (u64::BITS / usize::BITS) as usize]);

impl Ticks {
    const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; (u64::BITS / usize::BITS) as usize])
    }

    // Relaxed: the scheduler's own hand-over orders one CPU's accesses with
    // the next one's.
    fn get(&self) -> u64 {
        let mut value = 0;
        for part in self.0.iter().rev() {
            value = value << (usize::BITS - 1) << 1 | part.load(Ordering::Relaxed) as u64;
        }
        value
    }

    fn set(&self, mut value: u64) {
        for part in &self.0 {
            part.store(value as usize, Ordering::Relaxed);
            value = value >> (usize::BITS - 1) >> 1;
        }
    }
}

/// Why words were not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachError {
    /// The shadow stack has words already: detach them first.
    Attached,
    /// More than [`MAX_WORDS`] words: attach fewer.
    TooLong,
    /// The real stack's range is reversed or spans 4 GiB or more: give the
    /// task's own stack, or an empty range at an address in it.
    StackRange,
}

/// Why words were not detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachError {
    /// There are none.
    Detached,
    /// Traced calls are in flight: let them return, or end them with
    /// [`Fgraph::exit_task`](crate::Fgraph::exit_task).
    InUse,
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Attached => "the shadow stack has words already; detach them first",
            Self::TooLong => "more words than a shadow stack can use; attach fewer",
            Self::StackRange => "the real stack's range is reversed or spans 4 GiB or more",
        })
    }
}

impl core::fmt::Display for DetachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Detached => "the shadow stack has no words",
            Self::InUse => "traced calls are in flight; let them return or end the task's frames",
        })
    }
}

impl core::error::Error for AttachError {}
impl core::error::Error for DetachError {}

/// What one task's shadow stack could not do, since it was attached. Each
/// saturates nowhere and wraps at 2³².
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Calls that went untraced because the stack was full.
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
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicUsize::new(State::EMPTY.word()),
            words: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU32::new(0),
            span: AtomicU32::new(0),
            window: AtomicUsize::new(0),
            slept: Ticks::new(),
            left: Ticks::new(),
            overruns: AtomicU32::new(0),
            recursions: AtomicU32::new(0),
            unwound: AtomicU32::new(0),
            strays: AtomicU32::new(0),
        }
    }

    /// Gives the task its words; from then on its calls are traced. Any CPU,
    /// any context, also while the task runs: it sees the stack empty and
    /// whole, or not at all.
    ///
    /// `stack` is the range of the task's real stack. Within it, order proves
    /// which frames a jump left behind; an empty range at an address in the
    /// stack is right where the bounds are not known. Where the range has no
    /// sense for the kernel, near frames are those within 2 GiB of its start.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; nothing is changed, and the words are lost to the
    /// caller only in the sense of the borrow: a failed attach zeroes nothing.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::RetStack;
    ///
    /// let stack = RetStack::new();
    /// let words = Box::leak(vec![0; 128].into_boxed_slice());
    /// stack.attach(words, 0x7000_0000..0x7001_0000)?;
    /// assert!(stack.is_attached());
    /// # Ok::<(), fgraph::ret_stack::AttachError>(())
    /// ```
    pub fn attach(
        &self,
        words: &'static mut [usize],
        stack: Range<usize>,
    ) -> Result<(), AttachError> {
        // SAFETY: the words are borrowed for ever and uniquely.
        unsafe { self.attach_local(words, stack) }
    }

    /// # Safety
    ///
    /// `words` are `len` initialised words that stay valid until they are
    /// detached or this stack is dropped, and nobody else uses them meanwhile.
    unsafe fn attach_raw(
        &self,
        words: *mut AtomicUsize,
        len: usize,
        stack: Range<usize>,
    ) -> Result<(), AttachError> {
        if len > MAX_WORDS {
            return Err(AttachError::TooLong);
        }
        let span = stack.end.checked_sub(stack.start);
        let span = span.and_then(|span| u32::try_from(span).ok());
        let span = span.ok_or(AttachError::StackRange)?;
        // Slots are told in units of eight bytes from the window's base.
        let low = stack.start.wrapping_add(7) & !7;
        let span = span.saturating_sub(low.wrapping_sub(stack.start) as u32);
        // The claim: of two that attach at once, one gets it. Acquire pairs
        // with the release of a `detach` on another CPU.
        if self
            .words
            .compare_exchange(
                ptr::null_mut(),
                Self::claimed(),
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .is_err()
        {
            return Err(AttachError::Attached);
        }
        for i in 0..len {
            // SAFETY: `i < len`. Zeroed words carry no frame of a former task.
            unsafe { &*words.add(i) }.store(0, Ordering::Relaxed);
        }
        self.state.store(State::EMPTY.word(), Ordering::Relaxed);
        self.len.store(len as u32, Ordering::Relaxed);
        self.span.store(span, Ordering::Relaxed);
        let window = Window::around(low).base();
        self.window.store(window, Ordering::Relaxed);
        self.slept.set(0);
        for counter in [
            &self.overruns,
            &self.recursions,
            &self.unwound,
            &self.strays,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        // Publishes all of the above to `view` on any CPU.
        self.words.store(words, Ordering::Release);
        Ok(())
    }

    /// Attaches words that need not live for ever.
    ///
    /// # Safety
    ///
    /// The stack is not used after the words' end, unless what it had before is
    /// [put back](Self::put_back) by then, and they are not used beside it.
    pub(crate) unsafe fn attach_local(
        &self,
        words: &mut [usize],
        stack: Range<usize>,
    ) -> Result<(), AttachError> {
        let len = words.len();
        // SAFETY: the caller's.
        unsafe { self.attach_raw(sync::words(words), len, stack) }
    }

    /// What `words` holds while somebody attaches: not null, and not the
    /// address of any words.
    #[inline(always)]
    fn claimed() -> *mut AtomicUsize {
        ptr::without_provenance_mut(1)
    }

    /// Takes the words back; the task is no longer traced.
    ///
    /// # Errors
    ///
    /// [`DetachError`], and nothing is changed.
    ///
    /// # Safety
    ///
    /// The task of this stack does not run on another CPU meanwhile: either
    /// the caller is the task, or the task is held (not running, not yet or no
    /// longer scheduled). Nobody walks the stack, or the words stay valid
    /// memory until no walk is under way. Words that were attached [inline](InlineStack) are
    /// not given out as `'static`: use that type's own `detach`.
    pub unsafe fn detach(&self) -> Result<&'static mut [usize], DetachError> {
        let (words, len) = self.detach_raw()?;
        // SAFETY: `attach` got them as `&'static mut`, and they are
        // unreachable from here on: `words` is null, and the caller promises
        // that nobody runs who had read it before.
        Ok(unsafe { core::slice::from_raw_parts_mut(words.cast(), len) })
    }

    fn detach_raw(&self) -> Result<(*mut AtomicUsize, usize), DetachError> {
        let View { words, .. } = self.view().ok_or(DetachError::Detached)?;
        if self.state() != State::EMPTY {
            return Err(DetachError::InUse);
        }
        // The stack becomes unreachable before the words are given back: an
        // interrupt from here on is not traced. Of two that detach at once, one
        // gets them. Release pairs with the acquire in `attach_raw`.
        self.words
            .compare_exchange(words, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| DetachError::Detached)?;
        Ok((words, self.len.load(Ordering::Relaxed) as usize))
    }

    /// Takes the words away from a stack that its owner has emptied, whatever
    /// its guards are.
    pub(crate) fn give_back(&self) -> Result<NonNull<[usize]>, DetachError> {
        // As in `detach_raw`.
        let words = self.words.swap(ptr::null_mut(), Ordering::AcqRel);
        // Nobody waits for a task that has ended. Not before the swap: an
        // interrupt must not find words and nobody inside.
        self.set_state(State::EMPTY);
        let len = self.len.load(Ordering::Relaxed) as usize;
        NonNull::new(words.cast::<usize>())
            .map(|words| NonNull::slice_from_raw_parts(words, len))
            .ok_or(DetachError::Detached)
    }

    /// Whether the task has words, and so is traced.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.view().is_some()
    }

    /// How many words are attached.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.view().map_or(0, |view| view.len())
    }

    /// The largest number of words that were in use since the words were
    /// attached. Found by looking for the highest word that was ever written,
    /// so it costs the hot path nothing and this call a scan from the end.
    #[must_use]
    pub fn high_water(&self) -> usize {
        self.view().map_or(0, |view| {
            let written = |&i: &usize| view.get(i) != 0;
            (0..view.len()).rev().find(written).map_or(0, |i| i + 1)
        })
    }

    /// What could not be done, see [`Counters`]. Any CPU.
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
    /// callback, or about to call one. Any CPU; for
    /// [`Platform::synchronize`](crate::Platform::synchronize) and for
    /// schedulers that do not preempt there.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.state().is_any_guarded()
    }

    /// Ticks that the task has spent switched out since it was attached, as
    /// told by [`Fgraph::switch`](crate::Fgraph::switch).
    #[must_use]
    pub fn slept(&self) -> u64 {
        self.slept.get()
    }

    pub(crate) fn switched_out(&self, now: u64) {
        self.left.set(now);
    }

    pub(crate) fn switched_in(&self, now: u64) {
        let left = self.left.get();
        if left != 0 {
            // A clock that went backwards adds nothing.
            let slept = now.saturating_sub(left);
            self.slept.set(self.slept.get().saturating_add(slept));
            self.left.set(0);
        }
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

    /// The stack with its words, if it has any.
    #[inline(always)]
    pub(crate) fn view(&self) -> Option<View<'_>> {
        // Acquire pairs with the release in `attach_raw`.
        let words = self.words.load(Ordering::Acquire);
        if words.addr() <= Self::claimed().addr() {
            return None;
        }
        Some(View { stack: self, words })
    }

    #[inline(always)]
    pub(crate) fn window(&self) -> Window {
        Window::from_base(self.window.load(Ordering::Relaxed))
    }

    /// Whether `slot` lies in the task's real stack, as far as that is known.
    pub(crate) fn owns(&self, slot: usize) -> bool {
        self.real_stack().contains(&slot)
    }

    /// The task's real stack; empty where its bounds are not known.
    pub(crate) fn real_stack(&self) -> Range<usize> {
        let low = self.window().middle();
        let span = self.span.load(Ordering::Relaxed) as usize;
        low..low.saturating_add(span)
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
