//! A call as a callback sees it, at its entry and at its end.
//!
//! This file reads a frame through the dispatch that is under way. It decides
//! nothing.

use core::marker::PhantomData;

use super::{Cause, FrameData, Parent, WordArray};
use crate::fgraph::dispatch::{Dispatch, Place};
use crate::fgraph::table::Table;
use crate::hook::Registers;
use crate::platform::Context;
use crate::ret_stack::RetStack;

/// A call at its entry, as one callback sees it: the argument of
/// [`Callback::entry`](crate::Callback::entry). Not to be kept: what it tells
/// is read from the frame when it is asked.
///
/// # Example
///
/// ```
#[doc = example_callback!()]
/// # impl Callback for Mine {
/// type Frame = ();
///
/// fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
///     // Only what is called from elsewhere than itself.
///     let outermost = call.parent().is_none_or(|parent| parent.func() != call.func());
///     outermost.then(|| see(call.func()))
/// }
/// # fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// # }
/// # FGRAPH.register(&MINE)?;
/// let outer = FGRAPH.scope(0x1000, 0);
/// drop(FGRAPH.scope(0x1000, 0));
/// drop(outer);
/// assert_eq!(seen(), [0x1000]);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
pub struct Entry<'a, F> {
    pub(super) dispatch: &'a Dispatch<'a>,
    pub(super) table: &'a Table,
    pub(super) place: Place,
    pub(super) frame: PhantomData<fn() -> F>,
}

/// A call at its end, as one callback sees it: the argument of
/// [`Callback::exit`](crate::Callback::exit).
///
/// # Example
///
/// ```
#[doc = example_callback!()]
/// # impl Callback for Mine {
/// type Frame = u64;
///
/// fn entry(&self, _: Entry<'_, u64>) -> Option<u64> {
///     Some(Kernel::clock())
/// }
/// fn exit(&self, call: Exit<'_, u64>, start: u64) {
///     if call.cause() == fgraph::Cause::Returned {
///         see((Kernel::clock() - start) as usize);
///     }
/// }
/// # }
/// # FGRAPH.register(&MINE)?;
/// drop(FGRAPH.scope(0x1000, 0));
/// assert_eq!(seen(), [1000]);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
pub struct Exit<'a, F> {
    pub(super) dispatch: &'a Dispatch<'a>,
    pub(super) table: &'a Table,
    pub(super) place: Place,
    pub(super) frame: PhantomData<fn() -> F>,
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
            pub(in crate::fgraph) fn new(dispatch: &'a Dispatch<'a>, table: &'a Table, slot: usize) -> Self {
                Self { dispatch, table, place: Place::owner(slot), frame: PhantomData }
            }

            /// The address of the function: of its first instruction, or with
            /// hooks that are called behind a prologue, of one in it.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.func()")]
            /// assert_eq!(seen(), [0x1000, 0x2000, 0x2000, 0x1000]);
            /// ```
            #[must_use]
            #[inline]
            pub fn func(&self) -> usize {
                self.dispatch.func()
            }

            /// The address to which the function returns: in its caller, also
            /// where it was tail-called by other traced functions. For a scope
            /// what its maker said.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.caller()")]
            /// assert_eq!(seen(), [0, 0x1004, 0x1004, 0]);
            /// ```
            #[must_use]
            pub fn caller(&self) -> usize {
                self.dispatch.caller()
            }

            /// The address of the return slot on the real stack; 0 for a
            /// scope. The depth of a call in the task's stack, in bytes, is
            /// what lies between this and the stack's end.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.return_slot()")]
            /// assert_eq!(seen(), [0; 4], "a scope has none");
            /// ```
            #[must_use]
            #[inline]
            pub fn return_slot(&self) -> usize {
                self.dispatch.record().slot
            }

            /// How many calls that this callback follows enclose this one;
            /// those of other callbacks do not count. A walk: a callback that
            /// needs it at each call had better keep it in its frame.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.depth()")]
            /// assert_eq!(seen(), [0, 1, 1, 0]);
            /// ```
            #[must_use]
            pub fn depth(&self) -> usize {
                self.dispatch.depth(self.table, self.place, F::Words::LEN)
            }

            /// The context in which this callback runs: that of the call, but
            /// for an exit whose call was found to be gone in another.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.context() as usize")]
            /// assert_eq!(seen(), [fgraph::Context::Task as usize; 4]);
            /// ```
            #[must_use]
            #[inline]
            pub fn context(&self) -> Context {
                self.dispatch.context
            }

            /// The saved registers, where the hook has them: arguments at
            /// entry, return values at return. A scope has none, nor has a call
            /// that was jumped over.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.registers().map_or(0, |registers| registers.argument(0).unwrap_or(0))")]
            /// assert_eq!(seen(), [0; 4], "a scope has no registers");
            /// ```
            #[must_use]
            #[inline]
            pub fn registers(&self) -> Option<&'a Registers> {
                self.dispatch.registers
            }

            /// The shadow stack that the call is on: the running task's, or at
            /// an exit that of a task that [has ended](crate::Fgraph::exit_task).
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.stack().depth()")]
            /// assert_eq!(seen(), [0, 1, 1, 0], "the calls that enclose it");
            /// ```
            #[must_use]
            #[inline]
            pub fn stack(&self) -> &'a RetStack {
                self.dispatch.stack
            }

            /// This callback's nearest enclosing frame, with its data; `None`
            /// for an outermost call.
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.parent().map_or(0, |parent| parent.func())")]
            /// assert_eq!(seen(), [0, 0x1000, 0x1000, 0]);
            /// ```
            #[must_use]
            #[inline]
            pub fn parent(&self) -> Option<Parent<'a, F>> {
                let dispatch = self.dispatch;
                dispatch
                    .parent(self.table, self.place, F::Words::LEN)
                    .map(|(func, data)| Parent { dispatch, func, data, frame: PhantomData })
            }

            /// This callback's enclosing frames, nearest first. Their number is
            /// the [depth](Self::depth).
            ///
            /// # Example
            ///
            /// ```
            #[doc = example_seen!("call.parents().map(|parent| parent.func()).sum()")]
            /// assert_eq!(seen(), [0, 0x1000, 0x1000, 0]);
            /// ```
            pub fn parents(&self) -> impl Iterator<Item = Parent<'a, F>> + use<'a, F> {
                let dispatch = self.dispatch;
                dispatch
                    .parents(self.table, self.place, F::Words::LEN)
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
    /// How the call ended. [`Cause`] has an example of the others.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine { type Frame = ();
    /// # fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
    /// fn exit(&self, call: Exit<'_, ()>, (): ()) {
    ///     see(usize::from(call.cause() == fgraph::Cause::Returned));
    /// }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(seen(), [1]);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn cause(&self) -> Cause {
        self.dispatch.cause
    }

    /// The first return register, where the hook has it and the call
    /// [returned](Cause::Returned). What a function of another type than an
    /// integer or pointer leaves there has no meaning.
    ///
    /// # Example
    ///
    #[cfg_attr(
        all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            target_pointer_width = "64"
        ),
        doc = "```"
    )]
    #[cfg_attr(
        not(all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            target_pointer_width = "64"
        )),
        doc = "```text"
    )]
    /// # use fgraph::{Callback, Entry, Exit};
    #[doc = example_patch!()]
    /// # static SEEN: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
    /// # fn see(value: usize) { SEEN.store(value, core::sync::atomic::Ordering::Relaxed) }
    /// # struct Mine;
    /// # static MINE: Mine = Mine;
    /// # impl Callback for Mine { type Frame = ();
    /// # fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
    /// fn exit(&self, call: Exit<'_, ()>, (): ()) {
    ///     see(call.return_value().unwrap_or(0));
    /// }
    /// # }
    /// # // SAFETY: two patchable functions, which nobody else patches.
    /// # unsafe { PATCH.init(listed)? };
    /// # PATCH.enable(FGRAPH.register(&MINE)?, |_| true)?;
    /// // A function that returns 2.
    /// run(check);
    /// assert_eq!(SEEN.load(core::sync::atomic::Ordering::Relaxed), 2);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn return_value(&self) -> Option<usize> {
        self.dispatch.registers.map(Registers::return_value)
    }
}
