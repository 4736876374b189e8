//! Frames that end, whoever says so, and claims that are given up.
//!
//! Interrupts may come between any two looks at a stack, and leave frames, or
//! end some: its state changes from what was seen in one step, or not at all,
//! and then the stack is looked at anew.

use core::marker::PhantomData;

use super::dispatch::Dispatch;
use super::table::Table;
use super::task::Guards;
use super::{Cause, Fgraph};
use crate::hook::Registers;
use crate::ret_stack::word::State;
use crate::ret_stack::{Found, RetStack, View};
use crate::{Context, Platform};

impl Table {
    /// Gives the claim of an entry or an exit up: the state is `to` from here on.
    /// What interrupts have left above the claim ends first.
    #[inline(always)]
    pub(super) fn give_up(&self, dispatch: &Dispatch<'_>, to: State) {
        if !dispatch.stack.replace_state(dispatch.during, to) {
            self.give_up_slowly(dispatch, to);
        }
    }

    #[cold]
    #[inline(never)]
    fn give_up_slowly(&self, dispatch: &Dispatch<'_>, to: State) {
        let &Dispatch {
            stack,
            without,
            context,
            ..
        } = dispatch;
        self.clear_up(stack, without, context, to);
    }

    /// Ends what interrupts have left above `below`; then the state is `to`.
    #[cold]
    #[inline(never)]
    pub(super) fn clear_up(&self, stack: &RetStack, below: State, context: Context, to: State) {
        let view = stack.view_in_use();
        let unwound = ClearingUnwound {
            table: self,
            stack,
            below,
            context,
            to,
        };
        loop {
            self.end_left_behind(view, below, context);
            let now = stack.state();
            let is_clear = view
                .frame_below(now.top())
                .is_none_or(|found| found.index < below.top());
            if is_clear && stack.replace_state(now, to) {
                core::mem::forget(unwound);
                return;
            }
        }
    }

    /// Ends the newest frame, whatever it is; the state is `now`, and `after`
    /// once it is gone. False, and nothing has changed: an interrupt came
    /// between, and the state is another.
    #[expect(clippy::too_many_arguments, reason = "a dispatch in parts")]
    pub(super) fn end_any(
        &self,
        view: View<'_>,
        now: State,
        after: State,
        found: &Found,
        context: Context,
        cause: Cause,
        registers: Option<&Registers>,
    ) -> bool {
        let ending = after.claimed(found.end).guarded(context as usize);
        if !view.stack().replace_state(now, ending) {
            return false;
        }
        // An interrupt may have come between that ended the frame and left
        // another, which ends where it did.
        if view.frame_below(now.top()) != Some(*found) {
            self.clear_up(view.stack(), now, context, now);
            return false;
        }
        // Those of a scope that has ended were told of it.
        if cause == Cause::Unwound && found.set != 0 {
            view.stack().count_unwound();
        }
        self.end(view, ending, after, found, context, cause, registers);
        true
    }

    /// Ends a frame. The state is `during`: the frame is off the stack, and its
    /// words stay claimed until the last exit, so it can not be ended twice,
    /// whatever interrupts.
    #[expect(clippy::too_many_arguments, reason = "a dispatch in parts")]
    pub(super) fn end(
        &self,
        view: View<'_>,
        during: State,
        without: State,
        found: &Found,
        context: Context,
        cause: Cause,
        registers: Option<&Registers>,
    ) {
        let mut dispatch = Dispatch {
            stack: view.stack(),
            index: found.index,
            registers,
            during,
            without,
            context,
            cause,
            not_sync: PhantomData,
        };
        self.run_exits(&mut dispatch, found.set, found.record.epoch, found.end);
    }

    /// Calls the exits of a frame that the state says is off the stack. As in
    /// [`enter_on`](Fgraph::enter_on), nothing is kept over the callbacks but what
    /// the dispatch holds.
    #[inline(always)]
    pub(super) fn run_exits(
        &self,
        dispatch: &mut Dispatch<'_>,
        set: usize,
        epoch: usize,
        end: usize,
    ) {
        self.leave(dispatch, set, epoch, end);
        self.give_up(dispatch, dispatch.without);
    }

    /// Interrupts that came inside of an entry or an exit have ended, and calls
    /// of theirs were jumped over: the frames above the top of `below` end,
    /// before others are put over their words.
    #[cold]
    #[inline(never)]
    pub(super) fn end_left_behind(&self, view: View<'_>, below: State, context: Context) {
        let above = |found: &Found| found.index >= below.top();
        self.end_newest(view, below, context, Cause::Unwound, above);
    }

    /// Ends the newest frames with `cause`, as long as they are `dead`, with the
    /// context's guard held; if a callback unwinds, the guards are `before`'s.
    pub(super) fn end_newest(
        &self,
        view: View<'_>,
        before: State,
        context: Context,
        cause: Cause,
        dead: impl Fn(&Found) -> bool,
    ) {
        let stack = view.stack();
        let guards = Guards { stack, before };
        loop {
            let now = stack.state();
            let Some(frame) = view.frame_below(now.top()).filter(&dead) else {
                break;
            };
            let after = view.state_below(&frame, now.guarded(context as usize));
            // If it does not end, an interrupt came between: the stack is looked
            // at anew.
            if self.is_genuine(&frame) {
                self.end_any(view, now, after, &frame, context, cause, None);
            } else if stack.replace_state(now, after) {
                stack.count_stray();
            }
        }
        core::mem::forget(guards);
    }

    /// Whether the frame can have been made by a call. Damaged words, or a
    /// callback's data that are taken for a frame, mostly have an epoch in
    /// which nobody can have wanted a return.
    pub(super) fn is_genuine(&self, found: &Found) -> bool {
        let epoch = found.record.epoch;
        epoch <= self.epoch() && (epoch != 0 || found.set == 0)
    }
}

/// A claim that is being given up. Dropped only if a callback unwinds from the end
/// of what interrupts have left above it: the rest of that ends, the claim goes,
/// and a call that was entering goes on untraced.
struct ClearingUnwound<'t, 'a> {
    table: &'t Table,
    stack: &'a RetStack,
    below: State,
    context: Context,
    to: State,
}

impl Drop for ClearingUnwound<'_, '_> {
    fn drop(&mut self) {
        let &mut Self {
            table,
            stack,
            below,
            context,
            to,
        } = self;
        table.clear_up(stack, below, context, to);
        if to != below {
            // The frame of the call that was entering, as it were left behind.
            table.clear_up(stack, below, context, below);
        }
    }
}

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Leaves the stack as it was before a guard or a claim: `state`. For the
    /// other ways.
    #[cold]
    #[inline(never)]
    pub(super) fn back_out(&self, stack: &RetStack, state: State, context: Context) {
        self.table.clear_up(stack, state, context, state);
    }

    /// Looks for the newest frame that `is` the wanted one, and ends those above
    /// it as unwound, newest first. Returns it, now the newest, and the state;
    /// `None`, and ends none, if there is no such frame. If a callback unwinds,
    /// the guards are `before`'s.
    #[cold]
    #[inline(never)]
    pub(super) fn end_above(
        &self,
        view: View<'_>,
        before: State,
        context: Context,
        is: impl Fn(&Found) -> bool,
    ) -> (State, Option<Found>) {
        loop {
            let now = view.stack().state();
            let mut founds = view.founds(now.top()).enumerate();
            match founds.find(|(_, found)| is(found)) {
                Some((above, _)) if above > 0 => {
                    // Interrupts may leave others behind the last that ends, so
                    // the wanted one is looked for anew.
                    self.table
                        .end_newest(view, before, context, Cause::Unwound, |found| !is(found));
                }
                found => return (now, found.map(|(_, found)| found)),
            }
        }
    }

    /// A call enters on a slot that says that frames on the stack may be dead.
    /// Ends those that are; false if none is.
    #[cold]
    #[inline(never)]
    pub(super) fn end_dead(
        &self,
        view: View<'_>,
        slot: usize,
        tail: bool,
        before: State,
        context: Context,
    ) -> bool {
        let Some(oldest) = view.oldest_dead(before, slot, tail, P::interrupt_stack) else {
            return false;
        };
        let dead = |found: &Found| found.index >= oldest;
        self.table
            .end_newest(view, before, context, Cause::Unwound, dead);
        true
    }
}
