//! The callback's side: the trait that a tracer implements, and what it keeps
//! in a frame. What it sees of a call is `event`'s, and of
//! those that enclose it `parent`'s.
//!
//! This file knows frames as values. It does not know slots being taken or
//! freed, nor how a call was caught.

use crate::bits::{U64_WORDS, join, split};
use crate::ret_stack::MAX_DATA_WORDS;

mod event;
mod nested;
mod parent;

pub use event::{Entry, Exit};
pub use nested::Joined;
pub use parent::Parent;

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
///
/// // What was kept comes back.
/// let kept = Timing { start: 12, in_children: 5 }.to_words();
/// assert_eq!(Timing::from_words(kept).in_children, 5);
/// ```
pub trait FrameData: Copy + 'static {
    /// An array of 0 to [`MAX_DATA_WORDS`] words.
    type Words: WordArray;

    /// The words to keep. Called in the tracer's hottest path, as
    /// [`from_words`](Self::from_words) is: at each entry that returns `Some`.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::FrameData;
    ///
    /// assert_eq!(7_u32.to_words(), [7]);
    /// assert_eq!([2_usize, 3].to_words(), [2, 3]);
    /// ```
    fn to_words(self) -> Self::Words;

    /// The value that was kept: for words that [`to_words`](Self::to_words)
    /// gave, the one that it gave them for.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::FrameData;
    ///
    /// assert_eq!(i32::from_words((-7_i32).to_words()), -7);
    /// ```
    fn from_words(words: Self::Words) -> Self;
}

/// An array of words: `[usize; N]` with `N` up to [`MAX_DATA_WORDS`], or what
/// pairs of callbacks keep, as long together. No other type can be one.
///
/// # Example
///
/// ```
/// use fgraph::FrameData;
///
/// fn words<D: FrameData>(data: D) -> usize {
///     size_of::<D::Words>() / size_of::<usize>()
/// }
/// assert_eq!(words(()), 0);
/// assert_eq!(words([1_usize, 2, 3]), 3);
/// assert_eq!(words((1_usize, [2_usize, 3])), 3);
/// ```
///
/// A longer one does not compile:
///
/// ```compile_fail,E0080
/// # use fgraph::{Callback, Entry, Exit};
#[doc = example_kernel!()]
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

impl FrameData for u64 {
    type Words = [usize; U64_WORDS];

    #[inline(always)]
    fn to_words(self) -> [usize; U64_WORDS] {
        split(self)
    }

    #[inline(always)]
    fn from_words(words: [usize; U64_WORDS]) -> Self {
        join(words)
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
///
#[doc = example_kernel!()]
/// static COUNT: Count = Count { calls: AtomicU64::new(0), returns: AtomicU64::new(0) };
/// FGRAPH.register(&COUNT)?;
/// let scope = FGRAPH.scope(0x1000, 0);
/// assert_eq!((COUNT.calls.load(Relaxed), COUNT.returns.load(Relaxed)), (1, 0));
/// drop(scope);
/// assert_eq!((COUNT.calls.load(Relaxed), COUNT.returns.load(Relaxed)), (1, 1));
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
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

    /// A traced function was entered. `Some(data)` asks for its return, and
    /// keeps the data until then; `None` lets it go, and costs the frame
    /// nothing. Any context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// # type Frame = ();
    /// fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
    ///     // The calls from one function alone.
    ///     (call.caller() == 0x2000).then_some(())
    /// }
    /// # fn exit(&self, call: Exit<'_, ()>, (): ()) { see(call.func()) }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// drop(FGRAPH.scope(0x1000, 0x2000));
    /// drop(FGRAPH.scope(0x1008, 0x3000));
    /// assert_eq!(seen(), [0x1000], "one exit");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame>;

    /// A call ended whose entry returned `Some(data)`; where that callback has
    /// changed the data [meanwhile](Parent::set), these are the changed ones.
    /// In the context of the call, or in that of the event which has shown that
    /// the call is gone.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// # type Frame = usize;
    /// # fn entry(&self, call: Entry<'_, usize>) -> Option<usize> { Some(call.caller()) }
    /// fn exit(&self, call: Exit<'_, usize>, caller: usize) {
    ///     // What the entry gave.
    ///     assert_eq!(call.caller(), caller);
    ///     see(caller);
    /// }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// drop(FGRAPH.scope(0x1000, 0x2000));
    /// assert_eq!(seen(), [0x2000]);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame);
}

/// How a call ended: what [`Exit::cause`] tells.
///
/// # Example
///
/// ```
#[doc = example_callback!()]
/// use fgraph::Cause;
///
/// # impl Callback for Mine { type Frame = ();
/// # fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
/// fn exit(&self, call: Exit<'_, ()>, (): ()) {
///     see(call.cause() as usize);
/// }
/// # }
/// # FGRAPH.register(&MINE)?;
/// drop(FGRAPH.scope(0x1000, 0));
/// let under_way = FGRAPH.scope(0x2000, 0);
/// // SAFETY: no call on this stack returns any more.
/// unsafe { FGRAPH.exit_task(&STACK)? };
/// assert_eq!(seen(), [Cause::Returned as usize, Cause::TaskExit as usize]);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cause {
    /// It returned.
    Returned = 0,
    /// It was jumped over by a `longjmp` or a panic, or its return slot was
    /// restored.
    Unwound = 1,
    /// Its task ended inside it.
    TaskExit = 2,
}

impl Cause {
    /// The cause whose discriminant this is; the highest for none.
    pub(crate) const fn from_code(code: usize) -> Self {
        match code {
            0 => Self::Returned,
            1 => Self::Unwound,
            _ => Self::TaskExit,
        }
    }
}
