//! Scopes: a guard that enters and, dropped, leaves. Any toolchain, no
//! assembly; a panic's unwinding drops it too.
//!
//! A scope has no return slot. Its frame is known by its place on the shadow
//! stack. This file knows neither words nor registers.

use core::marker::PhantomData;

use crate::{Fgraph, Platform};

/// A call in flight, made by [`Fgraph::scope`]. Dropping it leaves.
///
/// It belongs to the task that made it and can not be sent to another. If the
/// traced function that encloses it returns first, the scope's frame ends then,
/// as unwound, and the drop does nothing. If it is dropped inside a traced call
/// that it was given to, it ends there, and the call goes on.
///
/// # Example
///
/// A guard that is dropped early ends its call there.
///
/// ```
#[doc = example_kernel!()]
/// # static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
/// # FGRAPH.register(&PROFILE).unwrap();
/// let scope = FGRAPH.scope(0x3000, 0);
/// assert_eq!(STACK.depth(), 1);
/// drop(scope);
/// assert_eq!(STACK.depth(), 0);
/// ```
///
/// It stays with its task:
///
/// ```compile_fail,E0277
#[doc = example_kernel!()]
/// let scope = FGRAPH.scope(0, 0);
/// // Another thread is another task.
/// std::thread::spawn(move || drop(scope));
/// ```
#[must_use = "the scope ends when the guard is dropped"]
#[derive(Debug)]
pub struct Scope<'a, P: Platform, const N: usize> {
    fgraph: &'a Fgraph<P, N>,
    func: usize,
    /// The place of the frame, if a callback wanted the return.
    frame: Option<usize>,
    not_send: PhantomData<*const ()>,
}

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Enters a scope: a call of `func` from `caller`, both told by addresses
    /// that a symbol table resolves. All registered callbacks see it. Any
    /// context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_kernel!()]
    /// fn read_block(number: u64) {
    ///     // Not `let _ =`, which drops at once.
    ///     let _scope = FGRAPH.scope(read_block as fn(u64) as usize, 0);
    ///     // …
    /// }
    ///
    /// # static COUNTS: fgraph::tracer::trigger::Counts =
    /// #     fgraph::tracer::trigger::Counts::new(&[]);
    /// FGRAPH.register(&COUNTS)?;
    /// read_block(7);
    /// assert_eq!(COUNTS.others(), 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[inline]
    pub fn scope(&self, func: usize, caller: usize) -> Scope<'_, P, N> {
        Scope {
            fgraph: self,
            func,
            frame: self.enter_scope(func, caller),
            not_send: PhantomData,
        }
    }
}

impl<P: Platform, const N: usize> Drop for Scope<'_, P, N> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame {
            self.fgraph.leave_scope(self.func, frame);
        }
    }
}
