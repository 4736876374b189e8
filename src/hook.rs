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
//! On a target that a hook does not support, 32-bit ones and RISC-V among them,
//! its module is absent, and all else is there.

use crate::{Fgraph, Platform};

pub use crate::arch::Registers;

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
