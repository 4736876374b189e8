//! A call begins: the short way, which nearly all take, and the others.
//!
//! This file decides whether a call gets a frame. What becomes of older frames
//! that are in doubt is `end`'s.

use core::marker::PhantomData;

use super::dispatch::Dispatch;
use super::{Call, Cause, Fgraph, SLOTS};
use crate::hook::Registers;
use crate::ret_stack::word::{Progress, Record, State};
use crate::ret_stack::{Claim, RetStack, View};
use crate::{Context, Platform};

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// A call begins. Returns whether a callback wants its return: then the
    /// hook must call [`leave`](Self::leave) for the same slot when the call
    /// ends, and go where that says. Any context, any CPU.
    ///
    /// `wanted` is the set of callbacks that follow this function, one bit a
    /// slot; those that are not registered take no part. A hook whose sets
    /// change while calls enter sees to it that a slot gets no other owner
    /// between: this is asked with a set that holds now.
    ///
    /// # Example
    ///
    /// A hook that catches a call and its return:
    ///
    /// ```
    /// use fgraph::fgraph::Call;
    ///
    #[doc = example_callback!()]
    /// # impl Callback for Mine {
    /// #     type Frame = ();
    /// #     fn entry(&self, call: Entry<'_, ()>) -> Option<()> { Some(see(call.caller())) }
    /// #     fn exit(&self, call: Exit<'_, ()>, (): ()) { see(call.func()) }
    /// # }
    /// # FGRAPH.register(&MINE)?;
    /// let slot = &raw const SLOTS[40] as usize; // On the task's real stack.
    /// let call = Call { func: 0x1000, ret: 0x2000, slot, tail: false, registers: None };
    /// // SAFETY: the slot is this call's, and nobody tail-called.
    /// if unsafe { FGRAPH.enter(&call, usize::MAX) } {
    ///     // … the function runs, and:
    ///     // SAFETY: it was entered, and has ended.
    ///     let ret = unsafe { FGRAPH.leave(slot, None) };
    ///     assert_eq!(ret, Some(0x2000));
    /// }
    /// assert_eq!(seen(), [0x2000, 0x1000]);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `call.slot` is the call's return slot on the running stack, and
    /// `call.tail` is true exactly when `call.ret` is the address to which the
    /// calls of the caller's own hook return.
    #[inline(always)]
    #[must_use]
    pub unsafe fn enter(&self, call: &Call<'_>, wanted: usize) -> bool {
        // SAFETY: the caller's.
        unsafe { self.enter_if(call, || wanted) }
    }

    /// As [`enter`](Self::enter); who follows the function is asked when it is
    /// known who is registered, so that one who comes into a slot afterwards does
    /// not get a call that its former owner followed.
    ///
    /// # Safety
    ///
    /// As for [`enter`](Self::enter).
    #[inline(always)]
    pub(crate) unsafe fn enter_if(&self, call: &Call<'_>, wanted: impl FnOnce() -> usize) -> bool {
        // Before any slot is read: an owner that comes later takes no part.
        let epoch = self.table.epoch();
        let set = wanted() & self.table.active();
        if set == 0 {
            return false;
        }
        let call = *call;
        let enter = |stack: &RetStack| self.enter_on(stack, call, set, epoch, &mut 0);
        P::current(enter).unwrap_or(false)
    }

    /// Returns whether there is a frame, and its position in `place`.
    ///
    /// Written out here is the short way: on a stack at rest, with room for all,
    /// for a near frame that puts no other in doubt. Behind the callbacks it
    /// uses nothing but what the dispatch holds, so that no register has to be
    /// kept for it.
    #[inline(always)]
    pub(super) fn enter_on(
        &self,
        stack: &RetStack,
        call: Call<'_>,
        set: usize,
        epoch: usize,
        place: &mut usize,
    ) -> bool {
        let context = P::context();
        let before = stack.state();
        // From here on nothing that runs is traced.
        let claimed = stack.claim_at_rest(before, context as usize, self.table.need());
        let Some(claim) = claimed else {
            return self.enter_slowly(stack, call, set, epoch, place);
        };
        let mut dispatch = Dispatch {
            stack,
            index: claim.index,
            registers: call.registers,
            during: claim.claimed,
            without: before,
            context,
            cause: Cause::Returned,
            not_sync: PhantomData,
        };
        // SAFETY: it is claimed.
        if !unsafe { stack.put_near(before.resting_top(), &call.record(epoch), set) } {
            let index = self.enter_in_doubt(
                stack,
                call.func,
                call.ret,
                call.slot,
                call.tail,
                call.registers,
                set,
                epoch,
                before,
            );
            *place = index.unwrap_or(0);
            return index.is_some();
        }
        // SAFETY: the set is not empty, and part of the active one; what all
        // owners need was read after the epoch, and claimed.
        let progress = unsafe { self.table.enter(&mut dispatch, set, epoch, claim.index + 1) };
        *place = dispatch.index;
        if let Some(end) = progress.of_all()
            && dispatch
                .stack
                .replace_state(dispatch.during, State::resting(end))
        {
            return true;
        }
        self.settle(&dispatch, progress)
    }

    /// The other ways, where there may be no room, or others are inside the
    /// tracer, or the frame is wide, or older frames may be dead.
    #[inline(always)]
    pub(super) fn enter_slowly(
        &self,
        stack: &RetStack,
        call: Call<'_>,
        set: usize,
        epoch: usize,
        place: &mut usize,
    ) -> bool {
        // In parts, so that the short way needs no memory for the call.
        let index = self.enter_in_parts(
            stack,
            call.func,
            call.ret,
            call.slot,
            call.tail,
            call.registers,
            set,
            epoch,
        );
        *place = index.unwrap_or(0);
        index.is_some()
    }

    /// The short way ends with its claim above `before`: the frame is wide, or the
    /// newest one is, or a scope's, or some may be dead. Returns the position of
    /// the frame, if there is one.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a call in parts")]
    pub(super) fn enter_in_doubt(
        &self,
        stack: &RetStack,
        func: usize,
        ret: usize,
        slot: usize,
        tail: bool,
        registers: Option<&Registers>,
        set: usize,
        epoch: usize,
        before: State,
    ) -> Option<usize> {
        let context = P::context();
        let record = Record {
            func,
            ret,
            slot,
            epoch,
        };
        let view = stack.view_in_use();
        match self.claim_beside(view, before, context, &record, set, tail) {
            Some(claim) => self.enter_claimed(stack, before, claim, context, registers, set, epoch),
            None => {
                self.back_out(stack, before, context);
                self.enter_in_parts(stack, func, ret, slot, tail, registers, set, epoch)
            }
        }
    }

    /// Claims room for a frame on a stack that was at rest, `before`, and has a
    /// claim since then, which becomes this one. `None`, and nothing has changed,
    /// if there is less room than a frame needs, the newest frames are not all
    /// alive, or interrupts have left some.
    fn claim_beside(
        &self,
        view: View<'_>,
        before: State,
        context: Context,
        record: &Record,
        set: usize,
        tail: bool,
    ) -> Option<Claim> {
        let slot = record.slot;
        let during = view.stack().state();
        if !is_slot(slot) || during.top() != before.top() || view.ends_with_ended(before) {
            return None;
        }
        let dead = || {
            let tail = tail || self.is_hooked_return(record.ret);
            view.oldest_dead(before, slot, tail, P::interrupt_stack)
        };
        if slot != 0 && view.is_suspect(before, slot, P::interrupt_stack) && dead().is_some() {
            return None;
        }
        let data = self.table.data_words();
        let claim = view.claim(during, before, context as usize, record, set, data);
        claim.ok().flatten()
    }

    /// Returns the position of the frame, if there is one.
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a call in parts")]
    pub(super) fn enter_in_parts(
        &self,
        stack: &RetStack,
        func: usize,
        ret: usize,
        slot: usize,
        tail: bool,
        registers: Option<&Registers>,
        set: usize,
        epoch: usize,
    ) -> Option<usize> {
        let view = stack.view()?;
        if !is_slot(slot) {
            return None;
        }
        let context = P::context();
        let Some(state) = stack.take_guard(context as usize) else {
            stack.count_recursion();
            return None;
        };
        let record = Record {
            func,
            ret,
            slot,
            epoch,
        };
        let tail = tail || self.is_hooked_return(ret);
        let (state, claim) = self.claim_in_doubt(view, state, context, &record, set, tail)?;
        self.enter_claimed(stack, state, claim, context, registers, set, epoch)
    }

    /// Calls the entries for a frame that was written into its claim above
    /// `without`, which was made after `epoch` was read. Returns the frame's
    /// position, if it is kept.
    #[expect(clippy::too_many_arguments, reason = "a dispatch in parts")]
    fn enter_claimed(
        &self,
        stack: &RetStack,
        without: State,
        claim: Claim,
        context: Context,
        registers: Option<&Registers>,
        set: usize,
        epoch: usize,
    ) -> Option<usize> {
        let mut dispatch = Dispatch {
            stack,
            index: claim.index,
            registers,
            during: claim.claimed,
            without,
            context,
            cause: Cause::Returned,
            not_sync: PhantomData,
        };
        let (at, limit) = (claim.index + 1, claim.claimed.reserved());
        let progress = if self.table.data_words() <= limit.saturating_sub(at) {
            // SAFETY: as in `enter_on`.
            unsafe { self.table.enter(&mut dispatch, set, epoch, at) }
        } else {
            // SAFETY: the set as in `enter_on`; the claim reaches to its limit.
            unsafe { self.table.enter_tight(&mut dispatch, set, epoch, at, limit) }
        };
        self.settle(&dispatch, progress).then_some(claim.index)
    }

    /// Claims room for a frame, once those that it proves dead have ended. The
    /// guard is held above `state`. Returns the claim, and the state without it;
    /// `None` if there is no room, and then the guard is gone.
    fn claim_in_doubt(
        &self,
        view: View<'_>,
        mut state: State,
        context: Context,
        record: &Record,
        set: usize,
        tail: bool,
    ) -> Option<(State, Claim)> {
        let stack = view.stack();
        let &Record { slot, epoch, .. } = record;
        let data = self.table.data_words();
        loop {
            view.drop_ended();
            // Interrupts may have come between: all is looked at anew.
            state = stack.state().with_guards_of(state);
            if slot != 0
                && !state.has_claim()
                && view.is_suspect(state, slot, P::interrupt_stack)
                && self.end_dead(view, slot, tail, state, context)
            {
                continue;
            }
            let guarded = state.guarded(context as usize);
            match view.claim(guarded, state, context as usize, record, set, data) {
                Ok(Some(claim)) => return Some((state, claim)),
                Ok(None) => {}
                Err(_) => {
                    self.overrun(stack, set, epoch);
                    stack.set_guards_of(state);
                    return None;
                }
            }
        }
    }

    /// The callbacks have been called for an entry: keeps the frame if one wants
    /// the return.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(&self, dispatch: &Dispatch<'_>, progress: Progress) -> bool {
        let &Dispatch { index, without, .. } = dispatch;
        if dispatch.view().refuse(index, progress.refused()) == 0 {
            self.table.give_up(dispatch, without);
            return false;
        }
        self.table
            .give_up(dispatch, without.at(progress.position()));
        true
    }

    #[cold]
    pub(super) fn overrun(&self, stack: &RetStack, set: usize, epoch: usize) {
        stack.count_overrun();
        // The exits of dead frames may have changed who is in the slots.
        let there = |slot: &usize| set & (1 << slot) != 0 && self.table.since(*slot) <= epoch;
        for slot in (0..SLOTS).filter(there) {
            self.table.count_missed(slot);
        }
    }
}

/// Whether an address can be given back there: what is not aligned can not.
fn is_slot(slot: usize) -> bool {
    slot.is_multiple_of(size_of::<usize>())
}
