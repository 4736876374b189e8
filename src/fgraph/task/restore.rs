//! Return addresses that a hook has replaced: told to unwinders, and given
//! back.
//!
//! Where a call stores its return address itself, the replaced one is in its
//! slot. Where it comes in a register, the body stores it in a frame record of
//! its own, whose place only the chain of records tells. What a record looks
//! like is [`arch`](crate::arch)'s.

use crate::arch::chain;
use crate::fgraph::leave::put_back;
use crate::fgraph::task::Guards;
use crate::fgraph::task::fate::{Fate, Here};
use crate::fgraph::{Cause, Fgraph};
use crate::ret_stack::word::State;
use crate::ret_stack::{Frame, RetStack, View};
use crate::sync::{Ordering, compiler_fence};
use crate::{Context, Platform};

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Gives the running task's hooked calls their true return addresses back;
    /// the frames end as [unwound](crate::Cause::Unwound). From then on an
    /// ordinary unwinder works: for panics, oopses and debuggers. Calls that
    /// begin later are traced again. Returns how many frames ended.
    ///
    /// Any context. From an interrupt or a callback, which may have come in the
    /// middle of an entry, the addresses are restored and the frames stay, to
    /// end as unwound by the next event that proves them gone.
    ///
    /// Nothing is written for a frame that a jump left behind on a stack that is
    /// an interrupt's: another CPU may run there by now, with a call on the same
    /// slot. [`Platform::interrupt_stack`] tells which stacks these are. A frame
    /// on another stack than the task's own, the one that runs and those that it
    /// names may be one of these or a call in flight: then *all* frames stay,
    /// and 0 is returned; the same holds for an interrupt's that is interrupted
    /// by one on a further stack.
    ///
    /// On AArch64 the addresses are found by following the caller's chain of
    /// frame records: see [`restore_from`](Self::restore_from).
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// #     type Frame = ();
    /// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
    /// #     fn exit(&self, call: Exit<'_, ()>, (): ()) {
    /// #         assert_eq!(call.cause(), fgraph::Cause::Unwound);
    /// #         see(call.func());
    /// #     }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// # let _scope = FGRAPH.scope(0x1000, 0);
    /// fn my_panic_handler() {
    ///     // SAFETY: the task's stack is mapped, and the frame pointer is one.
    ///     let ended = unsafe { FGRAPH.restore() };
    ///     assert_eq!(ended, 1);
    ///     // … print a backtrace, by an unwinder that knows nothing of this.
    /// }
    /// # my_panic_handler();
    /// assert_eq!(seen(), [0x1000], "its exit: unwound");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The running task's stack memory from its oldest traced call's return
    /// slot on is mapped: no stack with frames on it was freed. Further, on
    /// AArch64, the caller's frame pointer is one for
    /// [`restore_from`](Self::restore_from).
    pub unsafe fn restore(&self) -> usize {
        // SAFETY: the caller's.
        unsafe { self.restore_following(None) }
    }

    /// As [`restore`](Self::restore), for a handler whose own frame records do
    /// not lead on to those of what it interrupted: `fp` is the interrupted
    /// frame pointer. Where calls store their return addresses on the stack
    /// (x86-64), it is not used.
    ///
    /// On AArch64 a traced function's return address is in the frame record
    /// that its prologue made, and the chain of records from `fp` on is
    /// followed, as far as it goes up, and over a few changes of stack. A
    /// function without a record keeps the hook's address: one that was
    /// interrupted before its prologue was done, or in a leaf function, whose
    /// address is still in the interrupted `x30`; one that was compiled without
    /// frame pointers. Then *all* frames stay, and 0 is returned: such a
    /// function still returns to the hook, which finds its frame. An address
    /// that is signed is signed again, with the key that signed it.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// #     type Frame = ();
    /// #     fn entry(&self, _: Entry<'_, ()>) -> Option<()> { Some(()) }
    /// #     fn exit(&self, call: Exit<'_, ()>, (): ()) {
    /// #         assert_eq!(call.cause(), fgraph::Cause::Unwound);
    /// #         see(call.func());
    /// #     }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// # let _scope = FGRAPH.scope(0x1000, 0);
    /// # struct TrapFrame { fp: usize }
    /// fn my_fault_handler(frame: &TrapFrame) {
    ///     // SAFETY: the task's stack is mapped, and `fp` is what it held when
    ///     // the task was interrupted, or 0.
    ///     assert_eq!(unsafe { FGRAPH.restore_from(frame.fp) }, 1);
    /// }
    /// my_fault_handler(&TrapFrame { fp: 0 });
    /// assert_eq!(seen(), [0x1000], "its exit: unwound");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`restore`](Self::restore), and on AArch64: `fp` is 0, or the
    /// address of a frame record on a stack of the running task, and each
    /// record that it leads to is readable and may be written, up to that of
    /// the oldest traced call, or one that leads to 0.
    pub unsafe fn restore_from(&self, fp: usize) -> usize {
        // SAFETY: the caller's.
        unsafe { self.restore_following(Some(fp)) }
    }

    /// Without a frame pointer, the chain begins here.
    ///
    /// # Safety
    ///
    /// As for [`restore_from`](Self::restore_from), or without a frame pointer
    /// as for [`restore`](Self::restore).
    unsafe fn restore_following(&self, fp: Option<usize>) -> usize {
        let _inside = crate::arch::inside_if!(self.is_classic());
        P::current(|stack| {
            let Some(view) = stack.view() else {
                return 0;
            };
            // Read where the chain is followed, and not by a caller, which may
            // be gone: a call that is its last is a jump, and its frame record
            // is overwritten.
            let fp = match fp {
                Some(fp) => fp,
                None => chain::frame_pointer(),
            };
            let all = {
                // What the platform is asked may be traced: not now.
                let context = P::context() as usize;
                let before = stack.change_state(|state| state.guarded(context));
                let _guards = Guards { stack, before };
                // SAFETY: the caller's.
                unsafe { self.put_all_back(stack, view, fp) }
            };
            // An interrupt may have come between a call's frame and its slot.
            // Only a task is not in the middle of anything.
            let state = stack.state();
            let Context::Task = P::context() else {
                return 0;
            };
            if !all || state.is_guarded(Context::Task as usize) {
                return 0;
            }
            let ended = stack.depth();
            let before = stack.change_state(|state| state.guarded(Context::Task as usize));
            self.table
                .end_newest(view, before, Context::Task, Cause::Unwound, |_| true);
            stack.set_guards_of(before);
            ended
        })
        .unwrap_or(0)
    }

    /// The true return address of a call, for unwinders: `seen` is what the
    /// unwinder read at the address `slot` of the real stack of the task that
    /// owns `stack`. Returns `seen` unless a hook has replaced it. Any
    /// context, any CPU, any task; a walk down to the frame, the newest being
    /// the nearest.
    ///
    /// On AArch64 `slot` is the address of the word in the frame record. For an
    /// address that is still in `x30`, where a function was interrupted before
    /// it stored it, `slot` is the interrupted stack pointer less eight. `seen`
    /// may be signed; what is returned in its place is not, unless the caller's
    /// was.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_kernel!()]
    /// // An address that no hook has put there is returned as it is.
    /// assert_eq!(FGRAPH.real_return(&STACK, 0x7000_0008, 0x40_1000), 0x40_1000);
    /// ```
    #[must_use]
    pub fn real_return(&self, stack: &RetStack, slot: usize, seen: usize) -> usize {
        if !self.returns.hold(chain::strip(seen)) {
            return seen;
        }
        let _inside = crate::arch::inside_if!(self.is_classic());
        self.returning(stack, slot).map_or(seen, |frame| frame.ret)
    }

    /// The frame with the true return address of the call whose replaced one
    /// is at `at`; `None` where that is not certain.
    fn returning(&self, stack: &RetStack, at: usize) -> Option<Frame> {
        // In a run of tail calls the newer ones were returned to the hook.
        let callers = || {
            let is = |frame: &Frame| frame.slot != 0 && !self.returns.hold(frame.ret);
            stack.frames().filter(is)
        };
        if self.returns_on_stack() {
            return callers().find(|frame| frame.slot == at);
        }
        // The record is in the body's frame, which ends right above the slot.
        // What was called later on the same stack lies below the record, dead
        // or alive, so of the frames above it the newest is the one: an older
        // one inside of the body's frame is dead.
        let newest = |end: usize| callers().find(|frame| (at..end).contains(&frame.slot));
        let real = stack.real_stack();
        let on = match real.contains(&at) {
            true => Some(real.clone()),
            false => P::interrupt_stack(at),
        };
        if let Some(on) = on {
            return newest(on.end);
        }
        // It is not known where the stack ends, but that others are no part of
        // it. Each turn leaves less.
        let mut end = if at < real.start {
            real.start
        } else {
            usize::MAX
        };
        loop {
            let frame = newest(end)?;
            match P::interrupt_stack(frame.slot) {
                Some(other) if at < other.start && other.start < end => end = other.start,
                Some(_) => return None,
                None => {
                    // An older one between is dead, or this one is elsewhere.
                    let is_between = |other: Frame| (at..frame.slot).contains(&other.slot);
                    return (!callers().any(is_between)).then_some(frame);
                }
            }
        }
    }

    /// Whether each replaced address is in its slot. The classic hooks' are.
    fn returns_on_stack(&self) -> bool {
        chain::RETURN_ON_STACK || self.returns.patched.load(Ordering::Relaxed) == 0
    }

    /// Gives the calls in flight on the running task's `stack` their return
    /// addresses back. Returns whether all were found.
    ///
    /// # Safety
    ///
    /// As for [`restore_from`](Self::restore_from).
    #[inline(always)]
    pub(super) unsafe fn put_all_back(&self, stack: &RetStack, view: View<'_>, fp: usize) -> bool {
        let here = Here::new::<P>(stack);
        // SAFETY: the caller's.
        unsafe {
            match self.returns_on_stack() {
                true => self.restore_slots(view, &here),
                false => self.restore_records(stack, &here, fp),
            }
        }
    }

    /// Restores what the slots of calls in flight hold. Returns whether it is
    /// certain of each frame that it was restored or is dead.
    ///
    /// # Safety
    ///
    /// As for [`restore`](Self::restore).
    unsafe fn restore_slots(&self, view: View<'_>, here: &Here<'_>) -> bool {
        let mut all = true;
        // Newest first: of a run of tail calls on one slot the oldest has the
        // caller.
        let mut begun = view.stack().state();
        let mut top = begun.top();
        while let Some(frame) = view.frame_below(top) {
            if has_changed(view.stack(), begun) {
                // What was read may be no frame.
                begun = view.stack().state();
                top = begun.top();
                continue;
            }
            top = frame.start;
            let slot = frame.record.slot as *mut usize;
            // SAFETY: mapped, by the caller.
            if slot.is_null() || !self.returns.hold(unsafe { slot.read_volatile() }) {
                // Not, or no longer, one of ours.
                continue;
            }
            match here.fate::<P>(frame.record.slot) {
                // SAFETY: as above, and nobody else runs on that stack.
                Fate::Lives => unsafe { put_back(frame.record.slot, frame.record.ret) },
                Fate::Dead => {}
                Fate::Unknown => all = false,
            }
        }
        all
    }

    /// Restores what the records from `fp` on hold. Returns whether the
    /// addresses of all calls in flight were found.
    ///
    /// # Safety
    ///
    /// As for [`restore_from`](Self::restore_from).
    unsafe fn restore_records(&self, stack: &RetStack, here: &Here<'_>, fp: usize) -> bool {
        let hooked = |frame: &Frame| {
            frame.slot != 0
                && !self.returns.hold(frame.ret)
                && here.fate::<P>(frame.slot) != Fate::Dead
        };
        let mut left = steadily(stack, || stack.frames().filter(hooked).count());
        let mut records = Records::new(stack, fp);
        while left != 0
            // SAFETY: the caller's.
            && let Some(at) = unsafe { records.next() }
        {
            // SAFETY: the caller's: a record.
            let seen = unsafe { (at as *const usize).read_volatile() };
            if !self.returns.hold(chain::strip(seen)) {
                continue;
            }
            let Some(frame) = steadily(stack, || self.returning(stack, at)) else {
                continue;
            };
            let sp = frame.slot.wrapping_add(size_of::<usize>());
            if let Some(ret) = chain::replaced(seen, frame.ret, sp) {
                // SAFETY: the caller's: a record, of a call in flight.
                unsafe { (at as *mut usize).write_volatile(ret) };
                left -= 1;
            }
        }
        left == 0
    }
}

/// Whether an interrupt has ended frames, or left some, since the state of the
/// running task's `stack` was `before`.
fn has_changed(stack: &RetStack, before: State) -> bool {
    // For interrupts on this CPU, as where the state is written: the words were
    // read before the state is read again.
    compiler_fence(Ordering::SeqCst);
    stack.state() != before
}

/// What `look` finds on the running task's `stack`, while nothing changed it.
fn steadily<R>(stack: &RetStack, look: impl Fn() -> R) -> R {
    loop {
        let before = stack.state();
        compiler_fence(Ordering::SeqCst);
        let seen = look();
        if !has_changed(stack, before) {
            return seen;
        }
    }
}

/// How often a chain of records may go to another stack: a handler's to the
/// one that was interrupted.
const CHANGES: usize = 8;

/// A chain of frame records. It ends, whatever it reads: it goes up, but for a
/// few changes of stack.
struct Records<'a> {
    stack: &'a RetStack,
    fp: usize,
    /// The last record, 0 before the first.
    last: usize,
    changes: usize,
}

impl<'a> Records<'a> {
    fn new(stack: &'a RetStack, fp: usize) -> Self {
        Self {
            stack,
            fp,
            last: 0,
            changes: CHANGES,
        }
    }

    /// The address of the next record's return address.
    ///
    /// # Safety
    ///
    /// As for [`Fgraph::restore_from`].
    unsafe fn next(&mut self) -> Option<usize> {
        let fp = self.fp;
        if fp == 0 || !fp.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        let owned = self.stack.owns(fp);
        if fp <= self.last || self.stack.owns(self.last) != owned {
            // From the task's own stack there is no other to go to.
            let leaves = self.last != 0 && self.stack.owns(self.last);
            self.changes = self.changes.checked_sub(1).filter(|_| !leaves)?;
        }
        self.last = fp;
        // SAFETY: the caller's.
        self.fp = unsafe { (fp.wrapping_add(chain::CALLER) as *const usize).read_volatile() };
        Some(fp.wrapping_add(chain::RETURN))
    }
}

#[cfg(test)]
mod tests;
