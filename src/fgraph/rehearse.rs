//! Walking the tracer through its own paths, so that a hook can see what runs
//! on them outside of the recursion guard.
//!
//! Only the hot paths of [`enter_on`](Fgraph::enter_on) and
//! [`leave_on`](Fgraph::leave_on) and what they can branch to matter; what
//! runs behind the guard may be traced, and is not.

use super::{Call, Fgraph, SLOTS};
use crate::Platform;
use crate::ret_stack::RetStack;
use crate::ret_stack::word::{Record, State};

/// Why a rehearsal did not take place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RehearseError {
    /// All slots are taken: none is free to be visited.
    NoSlot,
    /// The running task has no shadow stack, or no room on it.
    NoStack,
}

/// Words of a rehearsal's own shadow stack.
const WORDS: usize = 32;

/// Bytes of real stack around the made-up return slots.
const REACH: usize = 4096;

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Calls `enter(slot's bit, return slot)` and `leave(return slot)`, which
    /// are a hook's, with the running task's guards lifted, and takes a shadow
    /// stack of its own through all else. No callback is called.
    ///
    /// Call it inside of [`quietly`](Fgraph::quietly), with other CPUs and
    /// interrupts held out.
    pub(crate) fn rehearse(
        &self,
        enter: impl FnOnce(u16, *const usize) -> bool,
        leave: impl FnOnce(*const usize) -> usize,
    ) -> Result<(), RehearseError> {
        let vacant = |&slot: &usize| self.table.is_vacant(slot);
        let slot = (0..SLOTS).find(vacant).ok_or(RehearseError::NoSlot)?;
        let set = 1 << slot;
        // Hooks write a return slot; this one is real.
        let mut slot_word = [Self::rehearsed(0).ret; 2];
        let return_slot = slot_word.as_mut_ptr();

        let room = |stack: &RetStack| {
            let guards = stack.state();
            let view = stack.view()?;
            let lifted = guards.with_guards_of(State::EMPTY);
            // Something to leave, then the guards off.
            let record = Self::rehearsed(return_slot as usize);
            let claim = view.claim(lifted, 0, &record, 0)?;
            claim.commit(0, claim.index + 1);
            Some(guards)
        };
        let guards = P::current(room).flatten().ok_or(RehearseError::NoStack)?;
        leave(return_slot);
        self.table.visit_vacant(slot, true);
        enter(set, return_slot);
        self.table.visit_vacant(slot, false);
        let _ = P::current(|stack| stack.set_state(guards));

        self.rehearse_all(set.into(), return_slot as usize)
            .ok_or(RehearseError::NoStack)
    }

    /// A frame like that of a call from nearby.
    fn rehearsed(slot: usize) -> Record {
        let near = Self::rehearsed as fn(usize) -> Record as usize;
        Record {
            func: near,
            ret: near,
            slot,
            epoch: 0,
        }
    }

    /// The paths that a real call does not always take.
    #[inline(never)]
    fn rehearse_all(&self, set: usize, slot: usize) -> Option<()> {
        let Record { func, ret, .. } = Self::rehearsed(slot);
        let call = Call {
            func,
            ret,
            slot,
            tail: false,
            registers: None,
        };
        let stack = RetStack::new();
        let enter = |stack: &RetStack, call: &Call<'_>| self.enter_on(stack, *call, set);
        // SAFETY: `slot` is a word of the caller's, and nobody will return.
        let leave = |stack: &RetStack| unsafe { self.leave_on(stack, slot, None) };

        // Not attached.
        enter(&stack, &call);
        leave(&stack);
        let mut words = [0_usize; WORDS];
        let real_stack = slot.saturating_sub(REACH)..slot.saturating_add(REACH);
        // SAFETY: the words outlive the stack's last use, below; nobody else
        // has either.
        unsafe { stack.attach_local(&mut words, real_stack) }.ok()?;
        let view = stack.view()?;
        let push = |slot: usize| {
            if let Some(claim) = view.claim(stack.state(), 0, &Self::rehearsed(slot), 0) {
                claim.commit(0, claim.index + 1);
            }
            stack.set_state(stack.state().with_guards_of(State::EMPTY));
        };
        // Refused, then a return that finds nothing, then one that does.
        enter(&stack, &call);
        enter(
            &stack,
            &Call {
                func: !func,
                ..call
            },
        );
        leave(&stack);
        push(slot);
        leave(&stack);
        // Returns over other frames, with and without a slot of their own.
        push(slot);
        push(0);
        push(slot.wrapping_sub(64));
        leave(&stack);
        // Entries that prove frames dead, or prove them alive.
        for (old, tail) in [
            (slot, false),
            (slot, true),
            (slot.wrapping_sub(64), false),
            (0, false),
        ] {
            push(old);
            enter(&stack, &Call { tail, ..call });
            stack.set_state(State::EMPTY);
        }
        // Inside the guard, and above an interrupted claim.
        let context = P::context() as usize;
        stack.set_state(State::EMPTY.guarded(context));
        enter(&stack, &call);
        push(slot);
        stack.set_state(stack.state().guarded(context));
        leave(&stack);
        stack.set_state(State::EMPTY.claimed(1));
        enter(&stack, &call);
        push(slot);
        leave(&stack);
        // Full.
        stack.set_state(State::EMPTY.at(WORDS));
        enter(&stack, &call);
        Some(())
    }
}
