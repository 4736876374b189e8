//! The callback's side: the trait that a tracer implements, and what it sees
//! of a call at its entry and at its return.
//!
//! This file knows frames as values. It does not know slots being taken or
//! freed, nor how a call was caught.

use core::marker::PhantomData;

use super::dispatch::{Dispatch, Place};
use crate::hook::Registers;
use crate::platform::Context;
use crate::ret_stack::{MAX_DATA_WORDS, RetStack};

mod nested;

pub use nested::Joined;

/// What a callback keeps in a frame between a call's entry and its return, as
/// words. Zero words for `()`.
///
/// Implemented for integers and arrays of words; implement it for a struct of
/// your own by naming its words. Callbacks that wrap others keep pairs
/// `(own, wrapped)`, or `Option<wrapped>` where they have frames in which the
/// wrapped one takes no part.
///
/// # Example
///
/// ```
/// use fgraph::FrameData;
///
/// #[derive(Clone, Copy)]
/// struct Timing {
///     start: usize,
///     in_children: usize,
/// }
///
/// impl FrameData for Timing {
///     type Words = [usize; 2];
///     fn to_words(self) -> [usize; 2] {
///         [self.start, self.in_children]
///     }
///     fn from_words([start, in_children]: [usize; 2]) -> Self {
///         Self { start, in_children }
///     }
/// }
/// ```
pub trait FrameData: Copy + 'static {
    /// An array of 0 to [`MAX_DATA_WORDS`] words.
    type Words: WordArray;

    /// The words to keep.
    fn to_words(self) -> Self::Words;

    /// The value that was kept.
    fn from_words(words: Self::Words) -> Self;
}

/// An array of words: `[usize; N]` with `N` up to [`MAX_DATA_WORDS`]. A longer
/// one does not compile:
///
/// ```compile_fail,E0080
/// # use fgraph::{Callback, Entry, Exit, Fgraph, Platform, RetStack};
/// # struct Kernel;
/// # // SAFETY: it has no task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> { None }
/// #     fn clock() -> u64 { 0 }
/// # }
/// # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
/// struct Much;
///
/// impl Callback for Much {
///     type Frame = [usize; 16];
///     fn entry(&self, _: Entry<'_, [usize; 16]>) -> Option<[usize; 16]> {
///         None
///     }
///     fn exit(&self, _: Exit<'_, [usize; 16]>, _: [usize; 16]) {}
/// }
/// let _ = FGRAPH.register(&Much);
/// ```
pub trait WordArray: Copy + sealed::Sealed {
    #[doc(hidden)]
    const LEN: usize;
    #[doc(hidden)]
    const ZERO: Self;
    #[doc(hidden)]
    fn as_slice(&self) -> &[usize];
    #[doc(hidden)]
    fn as_mut_slice(&mut self) -> &mut [usize];
}

mod sealed {
    pub trait Sealed {}
    impl<const N: usize> Sealed for [usize; N] {}
}

impl<const N: usize> WordArray for [usize; N] {
    const LEN: usize = {
        assert!(
            N <= MAX_DATA_WORDS,
            "a frame keeps at most 15 words of one callback"
        );
        N
    };
    const ZERO: Self = [0; N];

    #[inline(always)]
    fn as_slice(&self) -> &[usize] {
        self
    }

    #[inline(always)]
    fn as_mut_slice(&mut self) -> &mut [usize] {
        self
    }
}

impl<const N: usize> FrameData for [usize; N] {
    type Words = Self;

    #[inline(always)]
    fn to_words(self) -> Self {
        self
    }

    #[inline(always)]
    fn from_words(words: Self) -> Self {
        words
    }
}

impl FrameData for () {
    type Words = [usize; 0];

    #[inline(always)]
    fn to_words(self) -> [usize; 0] {
        []
    }

    #[inline(always)]
    fn from_words([]: [usize; 0]) {}
}

macro_rules! one_word {
    ($($int:ty),*) => {$(
        impl FrameData for $int {
            type Words = [usize; 1];

            #[inline(always)]
            fn to_words(self) -> [usize; 1] {
                [self as usize]
            }

            #[inline(always)]
            fn from_words([word]: [usize; 1]) -> Self {
                word as Self
            }
        }
    )*};
}

one_word!(usize, isize, u8, i8, u16, i16, u32, i32);

const U64_WORDS: usize = (u64::BITS / usize::BITS) as usize;

impl FrameData for u64 {
    type Words = [usize; U64_WORDS];

    #[inline(always)]
    fn to_words(self) -> [usize; U64_WORDS] {
        core::array::from_fn(|i| (self >> (i as u32 * usize::BITS)) as usize)
    }

    #[inline(always)]
    fn from_words(words: [usize; U64_WORDS]) -> Self {
        let part = |(i, &word): (usize, &usize)| (word as u64) << (i as u32 * usize::BITS);
        words.iter().enumerate().map(part).fold(0, |a, b| a | b)
    }
}

/// A tracer: sees each call of the functions that it follows, at entry and at
/// return.
///
/// Both functions run in whatever context the call was made in, interrupts and
/// NMIs included, on any CPU, several at once. They must not sleep. What they
/// call is not traced in their own context; an interrupt that arrives inside
/// them is. In a kernel they must not panic.
///
/// An entry that returned `Some` is followed by exactly one
/// [`exit`](Callback::exit) with that data and the [cause](Exit::cause), unless
/// the callback is unregistered first. `exit` is called after nothing else.
///
/// # Example
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use fgraph::{Callback, Entry, Exit};
///
/// /// Counts calls, and those that came back.
/// struct Count {
///     calls: AtomicU64,
///     returns: AtomicU64,
/// }
///
/// impl Callback for Count {
///     type Frame = ();
///
///     fn entry(&self, _call: Entry<'_, ()>) -> Option<()> {
///         self.calls.fetch_add(1, Relaxed);
///         Some(())
///     }
///
///     fn exit(&self, _call: Exit<'_, ()>, (): ()) {
///         self.returns.fetch_add(1, Relaxed);
///     }
/// }
/// ```
///
/// All CPUs call it at once, so it must be `Sync`:
///
/// ```compile_fail,E0277
/// # use fgraph::{Callback, Entry, Exit};
/// struct Count(core::cell::Cell<u64>);
///
/// impl Callback for Count {
///     type Frame = ();
///     fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
///         self.0.set(self.0.get() + 1);
///         None
///     }
///     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// }
/// ```
pub trait Callback: Sync + 'static {
    /// What this callback keeps in a frame.
    type Frame: FrameData;

    /// A traced function was entered. `Some(data)` asks for its return.
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame>;

    /// A call ended whose entry returned `Some(data)`.
    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame);
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It returned.
    Returned,
    /// It was jumped over by a `longjmp` or a panic, or its return slot was
    /// restored.
    Unwound,
    /// Its task ended inside it.
    TaskExit,
}

/// A call at its entry, as one callback sees it.
pub struct Entry<'a, F> {
    dispatch: &'a Dispatch<'a>,
    place: Place,
    frame: PhantomData<fn() -> F>,
}

/// A call at its end, as one callback sees it.
pub struct Exit<'a, F> {
    dispatch: &'a Dispatch<'a>,
    place: Place,
    frame: PhantomData<fn() -> F>,
}

impl<F> Clone for Entry<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Entry<'_, F> {}

impl<F> Clone for Exit<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Exit<'_, F> {}

macro_rules! call_accessors {
    ($($name:ident),*) => {$(
        impl<'a, F: FrameData> $name<'a, F> {
            #[inline(always)]
            pub(super) fn new(dispatch: &'a Dispatch<'a>, slot: usize) -> Self {
                Self { dispatch, place: Place::owner(slot), frame: PhantomData }
            }

            /// The address of the function.
            #[must_use]
            #[inline]
            pub fn func(&self) -> usize {
                self.dispatch.record().func
            }

            /// The address to which the function returns: in its caller, also
            /// where it was tail-called by other traced functions.
            #[must_use]
            pub fn caller(&self) -> usize {
                self.dispatch.caller()
            }

            /// The address of the return slot on the real stack; 0 for a
            /// scope.
            #[must_use]
            #[inline]
            pub fn return_slot(&self) -> usize {
                self.dispatch.record().slot
            }

            /// How many calls that this callback follows enclose this one;
            /// those of other callbacks do not count. A walk: a callback that
            /// needs it at each call had better keep it in its frame.
            #[must_use]
            pub fn depth(&self) -> usize {
                self.dispatch.depth(self.place, F::Words::LEN)
            }

            /// The context in which the call runs.
            #[must_use]
            #[inline]
            pub fn context(&self) -> Context {
                self.dispatch.context
            }

            /// The saved registers, where the hook has them: arguments at
            /// entry, return values at return.
            #[must_use]
            #[inline]
            pub fn registers(&self) -> Option<&'a Registers> {
                self.dispatch.registers
            }

            /// The shadow stack that the call is on.
            #[must_use]
            #[inline]
            pub fn stack(&self) -> &'a RetStack {
                self.dispatch.view.stack()
            }

            /// This callback's nearest enclosing frame, with its data.
            #[must_use]
            #[inline]
            pub fn parent(&self) -> Option<Parent<'a, F>> {
                let dispatch = self.dispatch;
                dispatch
                    .parent(self.place, F::Words::LEN)
                    .map(|(func, data)| Parent { dispatch, func, data, frame: PhantomData })
            }

            /// This callback's enclosing frames, nearest first.
            pub fn parents(&self) -> impl Iterator<Item = Parent<'a, F>> + use<'a, F> {
                let dispatch = self.dispatch;
                dispatch
                    .parents(self.place, F::Words::LEN)
                    .map(move |(func, data)| Parent { dispatch, func, data, frame: PhantomData })
            }
        }

        impl<F: FrameData> core::fmt::Debug for $name<'_, F> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("func", &format_args!("{:#x}", self.func()))
                    .field("caller", &format_args!("{:#x}", self.caller()))
                    .field("return_slot", &format_args!("{:#x}", self.return_slot()))
                    .field("context", &self.context())
                    .finish()
            }
        }
    )*};
}

call_accessors!(Entry, Exit);

impl<F> Exit<'_, F> {
    /// How the call ended.
    #[must_use]
    #[inline]
    pub fn cause(&self) -> Cause {
        self.dispatch.cause
    }

    /// The first return register, where the hook has it and the call
    /// [returned](Cause::Returned).
    #[must_use]
    #[inline]
    pub fn return_value(&self) -> Option<usize> {
        self.dispatch.registers.map(Registers::return_value)
    }
}

/// A callback's frame that encloses the call: its data can be read and
/// written, so that sums over the calls inside need no table.
pub struct Parent<'a, F> {
    dispatch: &'a Dispatch<'a>,
    func: usize,
    /// The position of the data's first word.
    data: usize,
    frame: PhantomData<fn() -> F>,
}

impl<F: FrameData> Parent<'_, F> {
    /// The address of the enclosing function.
    #[must_use]
    pub fn func(&self) -> usize {
        self.func
    }

    /// The data that the callback keeps there.
    #[must_use]
    #[inline]
    pub fn get(&self) -> F {
        let mut words = F::Words::ZERO;
        for (i, word) in words.as_mut_slice().iter_mut().enumerate() {
            *word = self.dispatch.view.get(self.data + i);
        }
        F::from_words(words)
    }

    /// Replaces the data.
    #[inline]
    pub fn set(&self, data: F) {
        for (i, &word) in data.to_words().as_slice().iter().enumerate() {
            self.dispatch.view.set(self.data + i, word);
        }
    }

    /// Adds to one word of the data, wrapping, and returns what it held; `None`
    /// if the data have no such word. One step to interrupts: of two sums that
    /// meet in a frame, none is lost, as it might be between
    /// [`get`](Self::get) and [`set`](Self::set).
    #[inline]
    pub fn add(&self, word: usize, by: usize) -> Option<usize> {
        let at = (word < F::Words::LEN).then(|| self.data + word)?;
        self.dispatch.view.add(at, by)
    }
}

impl<F: FrameData> core::fmt::Debug for Parent<'_, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Parent")
            .field("func", &format_args!("{:#x}", self.func))
            .finish_non_exhaustive()
    }
}
