//! A call ends: the short way, which nearly all take, and the others.
//!
//! This file finds the frame of a return. What becomes of frames above it is
//! `end`'s.

use core::marker::PhantomData;

use super::dispatch::Dispatch;
use super::{Cause, Fgraph};
use crate::hook::Registers;
use crate::ret_stack::word::State;
use crate::ret_stack::{Found, Near, RetStack, View};
use crate::{Context, Platform};

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// A call ends: it runs the exits of the callbacks that wanted its return
    /// and returns the address to go to. Frames that lie above its own were
    /// jumped over: they end first, as unwound.
    ///
    /// The return slot gets the address before the frame is gone, so that an
    /// interrupt's unwinder finds it in the one or in the other.
    ///
    /// If no frame is found, here or on the stack that the platform names as
    /// the slot's [owner](Platform::owner), the loss is counted and
    /// [`Platform::lost_return`] decides; `None` if it has no answer.
    ///
    /// Any context, on the CPU that runs the call's task. `registers` are the
    /// saved ones, for [`Exit::return_value`](crate::Exit::return_value).
    ///
    /// # Example
    ///
    /// A return that was never entered is counted, and leads nowhere:
    ///
    /// ```
    #[doc = example_kernel!()]
    /// let slot = &raw const SLOTS[40] as usize;
    /// // SAFETY: not entered, as a broken hook would do it: nothing is written.
    /// assert_eq!(unsafe { FGRAPH.leave(slot, None) }, None);
    /// assert!(STACK.counters().strays > 0);
    /// ```
    ///
    /// # Safety
    ///
    /// [`enter`](Self::enter) returned true for this slot, and the call has
    /// ended: nothing of its stack frame is in use, and the slot may be
    /// written.
    #[inline(always)]
    #[must_use]
    pub unsafe fn leave(&self, slot: usize, registers: Option<&Registers>) -> Option<usize> {
        let mut ret = 0;
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_on(stack, slot, registers, &mut ret) };
        if P::current(leave) == Some(true) {
            return Some(ret);
        }
        // SAFETY: the caller's.
        unsafe { self.leave_otherwise(slot, registers) }
    }

    /// As [`leave`](Self::leave), with an address to go to if there is none.
    /// What it returns is in the slot, too.
    ///
    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[inline(always)]
    pub(crate) unsafe fn leave_or(
        &self,
        slot: usize,
        registers: Option<&Registers>,
        lost: fn() -> usize,
    ) -> usize {
        let mut ret = 0;
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_on(stack, slot, registers, &mut ret) };
        if P::current(leave) == Some(true) {
            return ret;
        }
        // SAFETY: the caller's.
        unsafe { self.leave_otherwise_or(slot, registers, lost) }
    }

    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn leave_otherwise_or(
        &self,
        slot: usize,
        registers: Option<&Registers>,
        lost: fn() -> usize,
    ) -> usize {
        // SAFETY: the caller's: the slot may be written.
        unsafe {
            let ret = self.leave_otherwise(slot, registers).unwrap_or_else(lost);
            put_back(slot, ret);
            ret
        }
    }

    /// The short way: on a stack at rest, whose newest frame is a near one on
    /// `slot`. Returns whether it is, and where to go in `ret`; if it is not,
    /// no more than the slot has changed.
    ///
    /// # Safety
    ///
    /// As for [`leave`](Self::leave), but for a slot without a frame.
    #[inline(always)]
    pub(super) unsafe fn leave_on(
        &self,
        stack: &RetStack,
        slot: usize,
        registers: Option<&Registers>,
        ret: &mut usize,
    ) -> bool {
        let context = P::context();
        let state = stack.state();
        let Some(view) = stack.filled_at_rest(state) else {
            return false;
        };
        // SAFETY: as it was found.
        let Some((newest, back)) = (unsafe { view.near_on_slot(state, slot) }) else {
            return false;
        };
        // SAFETY: the caller's: the slot may be written.
        unsafe { put_back(slot, back) };
        match self.end_near(view, state, newest, back, context, registers) {
            Some(back) => {
                *ret = back;
                true
            }
            None => false,
        }
    }

    /// Ends a near frame, the newest of a stack at rest, as both were found, of
    /// a call that goes back to `ret`. Returns that; `None`, and nothing has
    /// changed: an interrupt came between.
    #[inline(always)]
    pub(super) fn end_near(
        &self,
        view: View<'_>,
        state: State,
        newest: Near,
        ret: usize,
        context: Context,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        let stack = view.stack();
        let (start, end) = (newest.start(), state.resting_top());
        let without = State::resting(start);
        let during = without.claiming(end - start, context as usize);
        // From here on nothing that runs is traced.
        if !stack.replace_state(state, during) {
            return None;
        }
        // An interrupt may have come between that ended the frame and left
        // another, which ends where it did.
        // SAFETY: as it was found.
        if !unsafe { view.is_still(newest) } {
            self.back_out(stack, state, context);
            return None;
        }
        let mut leaving = Leaving {
            dispatch: Dispatch {
                stack,
                index: newest.index(),
                registers,
                during,
                without,
                context,
                cause: Cause::Returned,
                not_sync: PhantomData,
            },
            ret,
        };
        let (set, epoch) = newest.wanted();
        self.table.run_exits(&mut leaving.dispatch, set, epoch, end);
        Some(leaving.ret)
    }

    /// The other ways: asks for the stack anew, so that the short way need not
    /// keep what they need.
    ///
    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn leave_otherwise(
        &self,
        slot: usize,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        // SAFETY: the caller's.
        let leave = |stack: &RetStack| unsafe { self.leave_slowly(stack, slot, registers) };
        match P::current(leave) {
            Some(Some(ret)) => Some(ret),
            // SAFETY: the caller's.
            _ => unsafe { self.leave_elsewhere(slot, registers) },
        }
    }

    /// Leaves where others are inside the tracer, or the frame is wide, or
    /// not the newest.
    ///
    /// # Safety
    ///
    /// As for [`leave_on`](Self::leave_on).
    pub(super) unsafe fn leave_slowly(
        &self,
        stack: &RetStack,
        slot: usize,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        let view = stack.view()?;
        let context = P::context();
        let is = |found: &Found| found.record.slot == slot && self.table.is_genuine(found);
        let mut state = stack.state();
        // A wide frame, the newest: nothing has to end before it.
        if stack.filled_at_rest(state).is_some()
            && let Some(newest) = view.frame_below(state.top()).filter(is)
        {
            let after = view.state_below(&newest, state);
            // SAFETY: the caller's.
            let ended =
                unsafe { self.leave_found(view, state, after, &newest, context, registers) };
            if ended {
                return Some(newest.record.ret);
            }
        }
        loop {
            let seen = stack.state();
            state = seen;
            if seen.is_guarded(context as usize) {
                // No call enters while this context is inside a callback, so
                // this one is older: the callback was left by a jump.
                view.find_slot(seen, slot)?;
                state = seen.abandoned(context as usize);
            }
            if stack.replace_state(seen, state.guarded(context as usize)) {
                if seen.is_guarded(context as usize) {
                    stack.count_stray();
                }
                break;
            }
        }
        loop {
            let (now, found) = self.end_above(view, state, context, is);
            let Some(found) = found else {
                stack.set_guards_of(state);
                return None;
            };
            let after = view.state_below(&found, now.with_guards_of(state));
            // SAFETY: the caller's.
            if unsafe { self.leave_found(view, now, after, &found, context, registers) } {
                return Some(found.record.ret);
            }
        }
    }

    /// Ends the newest frame, that of the call that returns: the state is `now`,
    /// and `after` once it is gone. False, and no more than the slot has changed:
    /// an interrupt came between.
    ///
    /// # Safety
    ///
    /// As for [`leave_on`](Self::leave_on), for the frame's slot.
    unsafe fn leave_found(
        &self,
        view: View<'_>,
        now: State,
        after: State,
        found: &Found,
        context: Context,
        registers: Option<&Registers>,
    ) -> bool {
        // SAFETY: the caller's: the slot may be written.
        unsafe { put_back(found.record.slot, found.record.ret) };
        let cause = Cause::Returned;
        self.table
            .end_any(view, now, after, found, context, cause, registers)
    }

    /// # Safety
    ///
    /// As for [`leave`](Self::leave).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn leave_elsewhere(
        &self,
        slot: usize,
        registers: Option<&Registers>,
    ) -> Option<usize> {
        let leave = |stack: &RetStack| {
            stack.count_stray();
            // SAFETY: the caller's.
            unsafe { self.leave_slowly(stack, slot, registers) }
        };
        if let Some(ret) = P::owner(slot, leave).flatten() {
            return Some(ret);
        }
        let _ = P::current(RetStack::count_stray);
        P::lost_return(slot)
    }
}

/// Gives a return slot its address back.
///
/// # Safety
///
/// It is a frame's, and a live return slot on the running stack, or one whose
/// call has just ended.
#[inline(always)]
pub(super) unsafe fn put_back(slot: usize, ret: usize) {
    // SAFETY: the caller's; hooks refuse slots that are null or not aligned.
    unsafe { (slot as *mut usize).write_volatile(ret) };
}

/// An exit, and where the call goes back to: in one piece of memory, as that
/// is not needed until all callbacks have been called.
struct Leaving<'a> {
    dispatch: Dispatch<'a>,
    ret: usize,
}
