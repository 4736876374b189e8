//! Scopes: a guard that enters and, dropped, leaves. Any toolchain, no
//! assembly; a panic's unwinding drops it too.
//!
//! A scope has no return slot. Its frame is known by its place on the shadow
//! stack.

use core::marker::PhantomData;

use crate::{Fgraph, Platform};

/// A call in flight, made by [`Fgraph::scope`]. Dropping it leaves.
///
/// It belongs to the task that made it and can not be sent to another. If the
/// traced function that encloses it returns first, the scope's frame ends then,
/// as unwound, and the drop does nothing. If it is dropped inside a traced call
/// that it was given to, it ends there, and the call goes on.
///
/// ```compile_fail,E0277
/// # use fgraph::{Fgraph, Platform, RetStack};
/// # struct Kernel;
/// # // SAFETY: it has no task.
/// # unsafe impl Platform for Kernel {
/// #     fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> { None }
/// #     fn clock() -> u64 { 0 }
/// # }
/// # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
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
    /// # use fgraph::{Fgraph, Platform, RetStack};
    /// # static STACK: RetStack = RetStack::new();
    /// # struct Kernel;
    /// # // SAFETY: one CPU, one task.
    /// # unsafe impl Platform for Kernel {
    /// #     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
    /// #     fn clock() -> u64 { 0 }
    /// # }
    /// # static FGRAPH: Fgraph<Kernel> = Fgraph::new();
    /// fn read_block(number: u64) {
    ///     let _scope = FGRAPH.scope(read_block as fn(u64) as usize, 0);
    ///     // …
    /// }
    /// read_block(7);
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
