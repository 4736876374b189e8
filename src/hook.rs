//! The ways in: how calls are caught and handed to a tracer.
//!
//! A hook knows registers and code; it does not know words or slots.
//!
//! | hook | needs | sees |
//! | --- | --- | --- |
//! | [`scope`] | nothing | what is annotated |
//! | `patch` | x86-64 or AArch64, `-Zpatchable-function-entry` | every function, chosen one by one at run time |
//! | `classic` | x86-64, `-pg` or `-Zinstrument-mcount` or stable flags | every function that is compiled so |
//!
//! # Targets without a hook
//!
//! Shadow stacks, callbacks, scopes, walks and tracers are there on every
//! target that has pointers of 32 or 64 bits and atomic compare-and-swap. A
//! hook that knows registers and instructions is there where the table says,
//! with pointers of 64 bits. Elsewhere its module does not exist, its macros are
//! compile errors that say so, and what [`Registers`] would tell is not known.
//! A kernel for several architectures asks by
//!
//! ```
//! #[cfg(all(
//!     any(target_arch = "x86_64", target_arch = "aarch64"),
//!     target_pointer_width = "64"
//! ))]
//! use fgraph::hook::patch::Patch;
//! ```
//!
//! A kernel on another architecture can have an entry hook of its own: a few
//! instructions that call a function which calls [`Fgraph::enter`], make the
//! traced function return to them if that says true, and then call one which
//! calls [`Fgraph::leave`] and go where that says. The slot is the word that
//! holds the call's return address, or, where that comes in a register, the
//! word below the stack pointer at the call, which `leave` writes too. To
//! [`restore`](Fgraph::restore) and to [unwind](Fgraph::real_return), the crate
//! has to know more: the comments in `src/arch.rs` tell how to add an
//! architecture to it.

use crate::{Fgraph, Platform};

/// The registers of a traced call, as the hook's stub saved them: the arguments
/// at its entry, what it returns at its return.
///
/// # Example
///
/// A callback reads them where a hook has saved some; a scope has none.
///
/// ```
/// use fgraph::{Callback, Entry, Exit};
///
/// struct Opened;
/// impl Callback for Opened {
///     type Frame = ();
///     fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
///         let flags = call.registers()?.argument(1)?;
///         (flags != 0).then_some(())
///     }
///     fn exit(&self, call: Exit<'_, ()>, (): ()) {
///         let _file = call.registers().map(|registers| registers.return_value());
///     }
/// }
/// ```
pub use crate::arch::Registers;

mod absent;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
pub mod classic;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
))]
pub mod patch;
pub mod scope;

/// A platform's one tracer for the hooks that have no argument to tell it by:
/// those that the compiler calls, or that are entered by a jump.
///
/// # Example
///
/// ```
/// # use fgraph::{Fgraph, Platform, RetStack};
/// # static STACK: RetStack = RetStack::new();
/// # struct Kernel;
/// # // SAFETY: one CPU, one task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
/// #     fn clock() -> u64 { 0 }
/// # }
/// static FGRAPH: Fgraph<Kernel> = Fgraph::new();
///
/// impl fgraph::hook::Global for Kernel {
///     fn fgraph() -> &'static Fgraph<Self> {
///         &FGRAPH
///     }
/// }
/// assert!(std::ptr::eq(<Kernel as fgraph::hook::Global>::fgraph(), &FGRAPH));
/// ```
pub trait Global<const N: usize = 16>: Platform + Sized {
    /// The tracer: always the same. Runs before the recursion guard is set, as
    /// all of [`Platform`] does.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_kernel!()]
    /// # use fgraph::{Fgraph, hook::Global};
    /// # impl Global for Kernel {
    /// fn fgraph() -> &'static Fgraph<Self> {
    ///     &FGRAPH
    /// }
    /// # }
    /// assert!(std::ptr::eq(Kernel::fgraph(), Kernel::fgraph()));
    /// ```
    fn fgraph() -> &'static Fgraph<Self, N>;
}
