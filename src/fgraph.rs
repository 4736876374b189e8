//! The tracer: a kernel's one [`Fgraph`], at which callbacks are
//! [registered](Fgraph::register), and to which hooks tell that calls begin and
//! end.
//!
//! A call begins in `enter` and ends in `leave`, a scope does both in `scope`,
//! and either may end otherwise, in `end`; `dispatch` calls the callbacks, which
//! come and go in `register`.
//!
//! This module knows neither bits nor registers: words are
//! [`ret_stack`](crate::ret_stack)'s, ways of catching a call
//! [`hook`](crate::hook)'s.

use core::marker::PhantomData;

use crate::hook::Registers;
use crate::platform::Platform;
use crate::ret_stack::word::Record;
use crate::sync::{AtomicUsize, Mutex};

mod callback;
mod dispatch;
mod end;
mod enter;
mod leave;
mod register;
mod rehearse;
mod scope;
mod table;
mod task;

pub use callback::{Callback, Cause, Entry, Exit, FrameData, Joined, Parent, WordArray};
pub(crate) use register::NotRegistered;
pub use register::{CallbackId, RegisterError, UnregisterError};
pub(crate) use rehearse::RehearseError;
pub(crate) use table::ALL_CALLBACKS;
use table::{SLOTS, Table};
use task::Returns;

/// A function graph tracer over a platform, with `N` callback slots (1 to 16).
/// Kernels make one a `static`; several do not disturb each other as long as
/// each has shadow stacks of its own.
///
/// # Example
///
/// ```
/// use fgraph::{Callback, Entry, Exit, Fgraph, Platform, RetStack};
///
/// struct Kernel;
/// static STACK: RetStack = RetStack::new();
///
/// // SAFETY: one CPU, one task.
/// unsafe impl Platform for Kernel {
///     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
///         Some(f(&STACK))
///     }
///     fn clock() -> u64 {
///         0
///     }
/// }
///
/// struct Quiet;
/// impl Callback for Quiet {
///     type Frame = ();
///     fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
///         Some(())
///     }
///     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// }
///
/// static FGRAPH: Fgraph<Kernel> = Fgraph::new();
/// static QUIET: Quiet = Quiet;
///
/// let id = FGRAPH.register(&QUIET)?;
/// FGRAPH.unregister(id)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// With no slot, or with 17, it does not compile:
///
/// ```compile_fail,E0080
#[doc = example_kernel!()]
/// static SEVENTEEN: fgraph::Fgraph<Kernel, 17> = fgraph::Fgraph::new();
/// ```
///
/// ```compile_fail,E0080
#[doc = example_kernel!()]
/// static NONE: fgraph::Fgraph<Kernel, 0> = fgraph::Fgraph::new();
/// ```
///
/// Nor does a callback that may go before its tracer does:
///
/// ```compile_fail,E0597
/// # use fgraph::{Callback, Entry, Exit};
#[doc = example_kernel!()]
/// # struct Named(String);
/// # impl Callback for Named {
/// #     type Frame = ();
/// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { None }
/// #     fn exit(&self, _: Exit<'_, ()>, (): ()) {}
/// # }
/// let named = Named(String::from("short-lived"));
/// let _ = FGRAPH.register(&named);
/// ```
#[repr(C)]
pub struct Fgraph<P, const N: usize = SLOTS> {
    /// First, so that both have one address: calls go through one register.
    table: Table,
    /// Serialises registrations; what it protects is the table's writing side.
    lock: Mutex<()>,
    /// Slots that a hook's functions still name; they are not given out.
    /// Relaxed: it changes and is used under the lock.
    hooked: AtomicUsize,
    returns: Returns,
    platform: PhantomData<fn() -> P>,
}

/// A call, as a hook caught it: what a hook of one's own hands to
/// [`Fgraph::enter`], which has an example too.
///
/// # Example
///
/// ```
/// use fgraph::fgraph::Call;
///
/// // A slot in which the return address is, as on x86-64.
/// let slot = [0x40_2000_usize];
/// let call = Call {
///     func: 0x40_1000,
///     ret: slot[0],
///     slot: &raw const slot as usize,
///     tail: false,
///     registers: None,
/// };
/// assert_eq!(call.ret, 0x40_2000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The address of the function.
    pub func: usize,
    /// What the return slot holds.
    pub ret: usize,
    /// The address of the return slot; 0 for a scope, which has none.
    pub slot: usize,
    /// Whether `ret` is the address of a hook's own stub: a traced function
    /// tail-called this one. The hooks of this crate leave it false: their
    /// addresses are known, and looked at where it matters.
    pub tail: bool,
    /// The registers, where the hook saved them.
    pub registers: Option<&'a Registers>,
}

impl Call<'_> {
    #[inline(always)]
    fn record(&self, epoch: usize) -> Record {
        Record {
            func: self.func,
            ret: self.ret,
            slot: self.slot,
            epoch,
        }
    }
}

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// No callbacks. `N` is checked at compile time: 1 to 16.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::Fgraph;
    ///
    #[doc = example_kernel!()]
    /// // Four slots.
    /// static SMALL: Fgraph<Kernel, 4> = Fgraph::new();
    /// # static COUNTS: [fgraph::tracer::trigger::Counts; 5] =
    /// #     [const { fgraph::tracer::trigger::Counts::new(&[]) }; 5];
    /// let registered = COUNTS.iter().filter(|counts| SMALL.register(*counts).is_ok());
    /// assert_eq!(registered.count(), 4);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(1 <= N && N <= SLOTS, "an Fgraph has 1 to 16 callback slots");
        }
        Self {
            table: Table::new(),
            lock: Mutex::new(()),
            hooked: AtomicUsize::new(0),
            returns: Returns::new(),
            platform: PhantomData,
        }
    }

    /// The word that is zero while no callback is registered.
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    pub(crate) fn active_word(&self) -> &AtomicUsize {
        self.table.active_word()
    }
}

impl<P: Platform, const N: usize> Default for Fgraph<P, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, const N: usize> core::fmt::Debug for Fgraph<P, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fgraph")
            .field("active", &format_args!("{:#06x}", self.table.active()))
            .field("epoch", &self.table.epoch())
            .finish_non_exhaustive()
    }
}
