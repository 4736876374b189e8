//! Callbacks in callbacks: how one that wraps another shares its frame with it.
//!
//! The wrapped one's words lie behind the wrapper's, and its view of the
//! enclosing frames is narrowed to them. This file knows no wrapper.

use core::slice;

use super::{Entry, Exit, FrameData, WordArray, sealed};
use crate::ret_stack::MAX_DATA_WORDS;

/// The words of two callbacks' data, one after the other: what pairs and
/// options of [`FrameData`] are kept as. Its fields are nobody's business.
///
/// # Example
///
/// ```
/// use fgraph::FrameData;
///
/// let data = (1_usize, Some([2_usize, 3]));
/// let words = data.to_words();
/// // One, the option's own, and two.
/// assert_eq!(size_of_val(&words) / size_of::<usize>(), 4);
/// assert_eq!(<(usize, Option<[usize; 2]>)>::from_words(words), data);
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Joined<A, B>(A, B);

impl<A: WordArray, B: WordArray> sealed::Sealed for Joined<A, B> {}

impl<A: WordArray, B: WordArray> WordArray for Joined<A, B> {
    const LEN: usize = {
        let len = A::LEN + B::LEN;
        assert!(
            len <= MAX_DATA_WORDS,
            "a frame keeps at most 15 words of one callback, with all that it wraps"
        );
        assert!(size_of::<Self>() == len * size_of::<usize>());
        len
    };
    const ZERO: Self = Self(A::ZERO, B::ZERO);

    #[inline(always)]
    fn as_slice(&self) -> &[usize] {
        // SAFETY: `WordArray` is sealed: both parts are words alone, arrays or
        // pairs of such, and the size says that nothing lies between them.
        unsafe { slice::from_raw_parts(core::ptr::from_ref(self).cast(), Self::LEN) }
    }

    #[inline(always)]
    fn as_mut_slice(&mut self) -> &mut [usize] {
        // SAFETY: as in `as_slice`; the borrow is unique.
        unsafe { slice::from_raw_parts_mut(core::ptr::from_mut(self).cast(), Self::LEN) }
    }
}

/// A wrapper's own data, then the wrapped one's.
impl<A: FrameData, B: FrameData> FrameData for (A, B) {
    type Words = Joined<A::Words, B::Words>;

    #[inline(always)]
    fn to_words(self) -> Self::Words {
        Joined(self.0.to_words(), self.1.to_words())
    }

    #[inline(always)]
    fn from_words(Joined(own, wrapped): Self::Words) -> Self {
        (A::from_words(own), B::from_words(wrapped))
    }
}

/// The wrapped one's data where it takes part. `None` keeps a frame that the
/// wrapped one does not see. Its words are zero, those of further wrappers
/// inside too.
impl<D: FrameData> FrameData for Option<D> {
    type Words = Joined<[usize; 1], D::Words>;

    #[inline(always)]
    fn to_words(self) -> Self::Words {
        match self {
            Some(data) => Joined([1], data.to_words()),
            None => Self::Words::ZERO,
        }
    }

    #[inline(always)]
    fn from_words(Joined([takes_part], words): Self::Words) -> Self {
        (takes_part != 0).then(|| D::from_words(words))
    }
}

macro_rules! narrowed {
    ($($name:ident),*) => {$(
        impl<'a, A: FrameData, B: FrameData> $name<'a, (A, B)> {
            /// The event as a wrapped callback sees it that keeps `B`: its
            /// enclosing frames are this callback's.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_callback!()]
            /// # impl Callback for Mine {
            /// type Frame = (u32, usize);
            ///
            /// fn entry(&self, call: Entry<'_, (u32, usize)>) -> Option<(u32, usize)> {
            ///     Some((7, inner_entry(call.inner())?))
            /// }
            /// fn exit(&self, call: Exit<'_, (u32, usize)>, (_, inner): (u32, usize)) {
            ///     inner_exit(call.inner(), inner);
            /// }
            /// # }
            /// # FGRAPH.register(&MINE)?;
            ///
            /// fn inner_entry(call: Entry<'_, usize>) -> Option<usize> {
            ///     // The enclosing call's own data, without the 7 before them.
            ///     Some(call.parent().map_or(0, |parent| parent.get()) + 1)
            /// }
            /// fn inner_exit(_: Exit<'_, usize>, depth: usize) {
            ///     see(depth);
            /// }
            /// let outer = FGRAPH.scope(0x1000, 0);
            /// drop(FGRAPH.scope(0x2000, 0));
            /// drop(outer);
            /// assert_eq!(seen(), [2, 1]);
            /// # Ok::<(), fgraph::fgraph::RegisterError>(())
            /// ```
            #[must_use]
            #[inline(always)]
            pub fn inner(self) -> $name<'a, B> {
                $name {
                    dispatch: self.dispatch,
                    table: self.table,
                    place: self.place.behind(A::Words::LEN),
                    frame: core::marker::PhantomData,
                }
            }
        }

        impl<'a, D: FrameData> $name<'a, Option<D>> {
            /// The event as a wrapped callback sees it that keeps `D`: its
            /// enclosing frames are those of this callback's which keep
            /// `Some`.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_callback!()]
            /// # impl Callback for Mine {
            /// type Frame = Option<usize>;
            ///
            /// fn entry(&self, call: Entry<'_, Option<usize>>) -> Option<Option<usize>> {
            ///     // Odd functions are none of the wrapped one's business.
            ///     Some(inner_entry(call.inner()).filter(|_| call.func() % 2 == 0))
            /// }
            /// fn exit(&self, call: Exit<'_, Option<usize>>, inner: Option<usize>) {
            ///     if let Some(depth) = inner {
            ///         inner_exit(call.inner(), depth);
            ///     }
            /// }
            /// # }
            /// # FGRAPH.register(&MINE)?;
            ///
            /// fn inner_entry(call: Entry<'_, usize>) -> Option<usize> {
            ///     Some(call.parent().map_or(0, |parent| parent.get()) + 1)
            /// }
            /// fn inner_exit(_: Exit<'_, usize>, depth: usize) {
            ///     see(depth);
            /// }
            /// let outer = FGRAPH.scope(0x1000, 0);
            /// let unseen = FGRAPH.scope(0x1001, 0);
            /// drop(FGRAPH.scope(0x2000, 0));
            /// drop(unseen);
            /// drop(outer);
            /// assert_eq!(seen(), [2, 1]);
            /// # Ok::<(), fgraph::fgraph::RegisterError>(())
            /// ```
            #[must_use]
            #[inline(always)]
            pub fn inner(self) -> $name<'a, D> {
                $name {
                    dispatch: self.dispatch,
                    table: self.table,
                    place: self.place.behind_gate(),
                    frame: core::marker::PhantomData,
                }
            }
        }
    )*};
}

narrowed!(Entry, Exit);
