//! A call that encloses another, as their callback sees it from inside: its
//! data can be read and changed.

use core::marker::PhantomData;

use super::{FrameData, WordArray};
use crate::fgraph::dispatch::Dispatch;

/// A callback's frame that encloses the call: its data can be read and
/// written, so that sums over the calls inside need no table.
///
/// # Example
///
/// A callback that counts the calls which each call makes:
///
/// ```
#[doc = example_callback!()]
/// # impl Callback for Mine {
/// type Frame = usize;
///
/// fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
///     if let Some(parent) = call.parent() {
///         parent.add(0, 1);
///     }
///     Some(0)
/// }
/// fn exit(&self, _: Exit<'_, usize>, calls: usize) {
///     see(calls);
/// }
/// # }
/// # FGRAPH.register(&MINE)?;
/// let outer = FGRAPH.scope(0x1000, 0);
/// drop(FGRAPH.scope(0x2000, 0));
/// drop(FGRAPH.scope(0x2000, 0));
/// drop(outer);
/// assert_eq!(seen(), [0, 0, 2]);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
pub struct Parent<'a, F> {
    pub(super) dispatch: &'a Dispatch<'a>,
    pub(super) func: usize,
    /// The position of the data's first word.
    pub(super) data: usize,
    pub(super) frame: PhantomData<fn() -> F>,
}

impl<F: FrameData> Parent<'_, F> {
    /// The address of the enclosing function, as [`Entry::func`](crate::Entry::func) told it.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_parent!("see(parent.func());")]
    /// assert_eq!(seen(), [0x1000, 0x2000, 0x1000], "the parent, then both ends");
    /// ```
    #[must_use]
    pub fn func(&self) -> usize {
        self.func
    }

    /// The data that the callback keeps there. In more than one word they may
    /// be those of two [`set`](Self::set)s, where an interrupt came between.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_parent!("see(parent.get());")]
    /// assert_eq!(seen(), [0x1000, 0x2000, 0x1000], "the parent's, then at both ends");
    /// ```
    #[must_use]
    #[inline]
    pub fn get(&self) -> F {
        let mut words = F::Words::ZERO;
        for (i, word) in words.as_mut_slice().iter_mut().enumerate() {
            *word = self.dispatch.view().get(self.data + i);
        }
        F::from_words(words)
    }

    /// Replaces the data: the call's exit gets these.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_parent!("parent.set(7);")]
    /// assert_eq!(seen(), [0x2000, 7]);
    /// ```
    #[inline]
    pub fn set(&self, data: F) {
        for (i, &word) in data.to_words().as_slice().iter().enumerate() {
            self.dispatch.view().set(self.data + i, word);
        }
    }

    /// Adds to one word of the data, wrapping, and returns what it held; `None`
    /// if the data have no such word. One step to interrupts: of two sums that
    /// meet in a frame, none is lost, as it might be between
    /// [`get`](Self::get) and [`set`](Self::set). `word` counts from 0, in the
    /// order of [`FrameData::to_words`].
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_parent!("see(parent.add(0, 5).unwrap_or(0));")]
    /// assert_eq!(seen(), [0x1000, 0x2000, 0x1005]);
    /// ```
    #[inline]
    pub fn add(&self, word: usize, by: usize) -> Option<usize> {
        let at = (word < F::Words::LEN).then(|| self.data + word)?;
        self.dispatch.view().add(at, by)
    }
}

impl<F: FrameData> core::fmt::Debug for Parent<'_, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Parent")
            .field("func", &format_args!("{:#x}", self.func))
            .finish_non_exhaustive()
    }
}
