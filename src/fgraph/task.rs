//! A task's life as the tracer sees it: switched, ended, restored.
//!
//! What a kernel calls outside of any traced call's entry and return.

use core::ptr::NonNull;

use super::{Cause, Fgraph};
use crate::Platform;
use crate::arch::chain;
use crate::ret_stack::word::State;
use crate::ret_stack::{DetachError, RetStack};
use crate::sync::{AtomicUsize, Ordering};

mod fate;
mod restore;

/// The addresses to which hooked calls return while their slots are replaced:
/// one for each kind of hook. Zero while a kind is not in use. Relaxed: each is
/// set to one value for good, before the first call is hooked.
#[derive(Debug)]
pub(super) struct Returns {
    patched: AtomicUsize,
    classic: AtomicUsize,
}

impl Returns {
    pub(super) const fn new() -> Self {
        Self {
            patched: AtomicUsize::new(0),
            classic: AtomicUsize::new(0),
        }
    }

    /// Whether any address is ever replaced.
    fn are_known(&self) -> bool {
        (self.patched.load(Ordering::Relaxed) | self.classic.load(Ordering::Relaxed)) != 0
    }

    fn hold(&self, address: usize) -> bool {
        address != 0
            && (address == self.patched.load(Ordering::Relaxed)
                || address == self.classic.load(Ordering::Relaxed))
    }
}

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Says where patched calls return to.
    pub(crate) fn set_patched_return(&self, address: usize) {
        self.returns.patched.store(address, Ordering::Relaxed);
    }

    /// Says where calls of the classic hooks return to.
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    pub(crate) fn set_classic_return(&self, address: usize) {
        if self.returns.classic.load(Ordering::Relaxed) != address {
            self.returns.classic.store(address, Ordering::Relaxed);
        }
    }

    /// Whether a classic hook has been called: what the tracer calls may then
    /// be hooked so.
    #[inline(always)]
    pub(super) fn is_classic(&self) -> bool {
        self.returns.classic.load(Ordering::Relaxed) != 0
    }

    /// Whether a return slot that holds `address` is hooked.
    pub(crate) fn is_hooked_return(&self, address: usize) -> bool {
        self.returns.hold(address)
    }

    /// The scheduler leaves `prev` and goes on with `next`, on this CPU: the
    /// time that a task is switched out is added up in its
    /// [`slept`](RetStack::slept), so that tracers can leave it out. Called by
    /// the scheduler, with interrupts off.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_kernel!()]
    /// # Kernel::clock();
    /// static OTHER: fgraph::RetStack = fgraph::RetStack::new();
    ///
    /// FGRAPH.switch(Some(&STACK), Some(&OTHER));
    /// // 1,000 ticks pass between two readings of this kernel's clock.
    /// FGRAPH.switch(Some(&OTHER), Some(&STACK));
    /// assert_eq!(STACK.slept(), 1000);
    /// ```
    pub fn switch(&self, prev: Option<&RetStack>, next: Option<&RetStack>) {
        let now = P::clock();
        if let Some(prev) = prev {
            prev.switched_out(now);
        }
        if let Some(next) = next {
            next.switched_in(now);
        }
    }

    /// Ends a task: its calls in flight end with [`Cause::TaskExit`], newest
    /// first, and its words are unreachable before they are given back. Called
    /// by the task itself, in the function that never returns, or for a task
    /// that will not run again. The tracer is quiet on this CPU meanwhile.
    ///
    /// The words are those that were [attached](RetStack::attach).
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// #     type Frame = ();
    /// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
    /// fn exit(&self, call: Exit<'_, ()>, (): ()) {
    ///     assert_eq!(call.cause(), fgraph::Cause::TaskExit);
    ///     see(call.func());
    /// }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// # let _main =
    /// FGRAPH.scope(0x1000, 0);
    /// # let _inner =
    /// FGRAPH.scope(0x2000, 0);
    /// // SAFETY: none of the calls returns any more, and nobody walks the stack.
    /// let words = unsafe { FGRAPH.exit_task(&STACK)? };
    /// assert_eq!(seen(), [0x2000, 0x1000]);
    /// assert_eq!(words.len(), 256, "to be freed, or used again");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DetachError::Detached`] if there are none; [`DetachError::InUse`], and
    /// nothing has changed, if this is called from a callback of the task's
    /// own.
    ///
    /// # Safety
    ///
    /// The task does not run on another CPU, and no call that is in flight on
    /// `stack` will return, but for this one and those of the task's own that
    /// led to it: they get their return addresses back, for which the contract
    /// of [`restore`](Self::restore) holds. Nobody walks the stack, or the words
    /// stay valid memory until no walk is under way.
    pub unsafe fn exit_task(&self, stack: &RetStack) -> Result<NonNull<[usize]>, DetachError> {
        let _inside = crate::arch::inside_if!(self.is_classic());
        let context = P::context();
        let running = P::current(|current| core::ptr::eq(current, stack)).unwrap_or(false);
        if running && stack.state().is_guarded(context as usize) {
            return Err(DetachError::InUse);
        }
        let view = stack.view().ok_or(DetachError::Detached)?;
        let end = || {
            // An interrupt from here on finds every context inside the tracer.
            let ending = |state: State| state.at(state.top()).all_guarded();
            let seen = stack.change_state(ending);
            if seen.has_claim() {
                // It was killed inside an entry: what that had claimed is void.
                stack.count_stray();
            }
            let state = ending(seen);
            if running && self.returns.are_known() {
                // This function and its callers up to the one that never
                // returns may be traced, and still have to return.
                // SAFETY: the caller's.
                unsafe { self.put_all_back(stack, view, chain::frame_pointer()) };
            }
            self.table
                .end_newest(view, state, context, Cause::TaskExit, |_| true);
            stack.give_back()
        };
        // Another task's exits run under this task's guard too.
        match self.quietly(end) {
            Some(words) => words,
            None => Err(DetachError::InUse),
        }
    }

    /// Runs `f` with every context of the running task inside the tracer, so
    /// that nothing it calls is traced; `None`, and `f` is not run, if this
    /// context already is.
    pub(crate) fn quietly<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let _inside = crate::arch::inside_if!(self.is_classic());
        let context = P::context();
        let mut f = Some(f);
        let quiet = |stack: &RetStack| {
            let before = stack.state();
            if stack.view().is_some() && before.is_guarded(context as usize) {
                return None;
            }
            let _guards = Guards::hold(stack);
            f.take().map(|f| f())
        };
        match P::current(quiet) {
            Some(result) => result,
            // No stack, so nothing is traced.
            None => f.take().map(|f| f()),
        }
    }
}

/// Puts guards back, also when what ran under them panics.
pub(super) struct Guards<'a> {
    pub(super) stack: &'a RetStack,
    pub(super) before: State,
}

impl<'a> Guards<'a> {
    /// Puts every context of the task inside the tracer until the drop. In
    /// line: the return of a call that is traced would lift the guards.
    #[inline(always)]
    pub(super) fn hold(stack: &'a RetStack) -> Self {
        let before = stack.change_state(State::all_guarded);
        Self { stack, before }
    }
}

impl Drop for Guards<'_> {
    fn drop(&mut self) {
        self.stack.set_guards_of(self.before);
    }
}
