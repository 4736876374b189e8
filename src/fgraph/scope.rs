//! A scope begins and ends: what the guard does that kernels hold,
//! [`Scope`](crate::hook::scope::Scope), which has a file of its own.
//!
//! A scope has no return slot, so its frame is known by its place and its
//! function. This file owns how that frame is found again, and what becomes of
//! those above it.

use super::{ALL_CALLBACKS, Call, Cause, Fgraph};
use crate::ret_stack::word::{Record, State};
use crate::ret_stack::{Found, RetStack, View};
use crate::{Context, Platform};

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Enters a scope; returns the place of its frame if its end is wanted.
    #[inline]
    pub(crate) fn enter_scope(&self, func: usize, caller: usize) -> Option<usize> {
        let set = self.table.active();
        if set == 0 {
            return None;
        }
        let epoch = self.table.epoch();
        let _inside = crate::arch::inside_if!(self.is_classic());
        let call = Call {
            func,
            ret: caller,
            slot: 0,
            tail: false,
            registers: None,
        };
        let mut place = 0;
        let enter = |stack: &RetStack| match stack.is_over_ended(stack.state()) {
            true => self.enter_slowly(stack, call, set, epoch, &mut place),
            false => self.enter_on(stack, call, set, epoch, &mut place),
        };
        (P::current(enter) == Some(true)).then_some(place)
    }

    /// Leaves the scope of `func` whose frame is at `index`, if it has not
    /// ended before.
    #[inline]
    pub(crate) fn leave_scope(&self, func: usize, index: usize) {
        let _inside = crate::arch::inside_if!(self.is_classic());
        let leave = |stack: &RetStack| {
            let (context, state) = (P::context(), stack.state());
            let ended = stack.filled_at_rest(state).and_then(|view| {
                // SAFETY: as it was found.
                let newest = unsafe { view.near_scope(state, index, func) }?;
                self.end_near(view, state, newest, 0, context, None)
            });
            if ended.is_none() {
                self.leave_scope_slowly(stack, func, index);
            }
        };
        let _ = P::current(leave);
    }

    /// The other ways: where others are inside the tracer, or the frame is
    /// wide, or not the newest, or has ended before.
    #[cold]
    #[inline(never)]
    fn leave_scope_slowly(&self, stack: &RetStack, func: usize, index: usize) {
        let Some(view) = stack.view() else {
            return;
        };
        let context = P::context();
        let Some(before) = stack.take_guard(context as usize) else {
            // A callback holds a scope of the function that it was called
            // for: the next event of that function ends the frame.
            stack.count_stray();
            return;
        };
        let is = |found: &Found| {
            let Record { func: of, slot, .. } = found.record;
            found.index == index && found.set != 0 && slot == 0 && of == func
        };
        loop {
            let now = stack.state();
            let Some(found) = view.frame_below(now.top()).filter(is) else {
                break;
            };
            let after = view.state_below(&found, now.with_guards_of(before));
            if self
                .table
                .end_any(view, now, after, &found, context, Cause::Returned, None)
            {
                return;
            }
        }
        while !self.leave_older_scope(view, before, context, is) {}
    }

    /// Ends a scope that is not the newest frame, if it has not ended before.
    ///
    /// Scopes above it were jumped over. Not so a call: the guard may have been
    /// handed to it, to `drop` itself for one, and it is still to return. Then
    /// the scope's exits run now, and its words stay until the call is gone.
    /// False, and nothing has changed: an interrupt came between.
    #[cold]
    #[inline(never)]
    fn leave_older_scope(
        &self,
        view: View<'_>,
        before: State,
        context: Context,
        is: impl Fn(&Found) -> bool,
    ) -> bool {
        let stack = view.stack();
        let now = stack.state();
        let state = now.with_guards_of(before);
        let mut calls = false;
        let scope = view.founds(state.top()).find(|found| {
            calls |= found.record.slot != 0;
            is(found)
        });
        match scope {
            // It ended with the traced function that enclosed it.
            None => {
                stack.set_guards_of(before);
                true
            }
            Some(scope) if calls => {
                // A claim, so that interrupts leave all frames where they are.
                let reserved = state.reserved().max(state.top() + 1);
                let ending = state.claimed(reserved).guarded(context as usize);
                if !stack.replace_state(now, ending) {
                    return false;
                }
                view.refuse(scope.index, ALL_CALLBACKS);
                self.table
                    .end(view, ending, state, &scope, context, Cause::Returned, None);
                true
            }
            Some(_) => {
                let (now, scope) = self.end_above(view, state, context, is);
                let Some(scope) = scope else {
                    stack.set_guards_of(before);
                    return true;
                };
                let after = view.state_below(&scope, now.with_guards_of(before));
                self.table
                    .end_any(view, now, after, &scope, context, Cause::Returned, None)
            }
        }
    }
}
