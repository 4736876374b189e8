//! A shadow stack and its words in one object.

use core::marker::PhantomPinned;
use core::ops::Range;
use core::pin::Pin;

use super::{AttachError, DetachError, RetStack};
use crate::sync::AtomicUsize;

/// A shadow stack with its words inline: for kernels that put both into the
/// task struct and attach when tracing starts.
///
/// # Example
///
/// ```
/// use core::pin::Pin;
/// use fgraph::ret_stack::{InlineStack, words_for};
///
/// static STACK: InlineStack<{ words_for(50, &[1]) }> = InlineStack::new();
/// Pin::static_ref(&STACK).attach(0x7000_0000..0x7001_0000)?;
/// assert_eq!(STACK.control().capacity(), words_for(50, &[1]));
/// # Ok::<(), fgraph::ret_stack::AttachError>(())
/// ```
#[repr(C)]
pub struct InlineStack<const WORDS: usize> {
    control: RetStack,
    words: [AtomicUsize; WORDS],
    /// The control block points at the words.
    _pinned: PhantomPinned,
}

impl<const WORDS: usize> InlineStack<WORDS> {
    /// A shadow stack that is not attached to its words yet: its task is not
    /// traced.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::ret_stack::InlineStack;
    ///
    /// static STACK: InlineStack<256> = InlineStack::new();
    /// assert!(!STACK.control().is_attached());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            control: RetStack::new(),
            words: [const { AtomicUsize::new(0) }; WORDS],
            _pinned: PhantomPinned,
        }
    }

    /// The control block, for [`Platform::current`](crate::Platform::current)
    /// and all else that takes a [`RetStack`].
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::{RetStack, ret_stack::InlineStack};
    ///
    /// struct Task { shadow: InlineStack<256> }
    /// static TASK: Task = Task { shadow: InlineStack::new() };
    ///
    /// fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
    ///     Some(f(TASK.shadow.control()))
    /// }
    /// assert_eq!(current(RetStack::depth), Some(0));
    /// ```
    #[must_use]
    pub const fn control(&self) -> &RetStack {
        &self.control
    }

    /// Attaches the inline words; see [`RetStack::attach`]. Any CPU, any
    /// context. Pinned, because the control block points at them from then on.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; nothing has changed.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::ret_stack::InlineStack;
    ///
    /// let stack = Box::pin(InlineStack::<256>::new());
    /// stack.as_ref().attach(0x7000_0000..0x7001_0000)?;
    /// assert_eq!(stack.control().capacity(), 256);
    /// # Ok::<(), fgraph::ret_stack::AttachError>(())
    /// ```
    pub fn attach(self: Pin<&Self>, stack: Range<usize>) -> Result<(), AttachError> {
        let words = self.words.as_ptr().cast_mut();
        // SAFETY: pinned, so the words stay where they are until the drop of
        // the control block beside them; they are private, so nobody else
        // uses them.
        unsafe { self.control.attach_raw(words, WORDS, stack) }
    }

    /// Detaches the inline words; see [`RetStack::detach`]. Any context.
    ///
    /// # Errors
    ///
    /// [`DetachError`]; nothing has changed.
    ///
    /// # Example
    ///
    /// ```
    /// # use fgraph::ret_stack::InlineStack;
    /// # let stack = Box::pin(InlineStack::<256>::new());
    /// # stack.as_ref().attach(0x7000_0000..0x7001_0000)?;
    /// // SAFETY: no task runs on this stack, and nobody walks it.
    /// unsafe { stack.detach()? };
    /// assert!(!stack.control().is_attached());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`RetStack::detach`]: the task does not run on another CPU.
    pub unsafe fn detach(&self) -> Result<(), DetachError> {
        self.control.detach_raw().map(drop)
    }
}

impl<const WORDS: usize> Default for InlineStack<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const WORDS: usize> core::fmt::Debug for InlineStack<WORDS> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("InlineStack").field(&self.control).finish()
    }
}
