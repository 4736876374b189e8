//! Walking the tracer through its own paths, so that a hook can see what runs
//! on them outside of the recursion guard.
//!
//! Only the paths of [`enter_on`](Fgraph::enter_on) and
//! [`leave_on`](Fgraph::leave_on) and what they can branch to matter; what
//! runs behind the guard may be traced, and is not.
//!
//! All of it goes through the hook's own two functions. The compiler inlines
//! anew wherever something is used: in another copy of the same path, a helper
//! may be part of its caller that is a function of its own in the hook's.

use super::{Fgraph, SLOTS};
use crate::Platform;
use crate::ret_stack::RetStack;
use crate::ret_stack::word::{Record, State};

/// Why a rehearsal did not take place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RehearseError {
    /// All slots are taken: none is free to be visited.
    NoSlot,
    /// The running task has no shadow stack.
    NoStack,
}

/// Words of a rehearsal's own.
const WORDS: usize = 32;

/// Bytes of real stack around the made-up return slots.
const REACH: usize = 4096;

impl<P: Platform, const N: usize> Fgraph<P, N> {
    /// Calls `enter(slot's bit, return slot)` and `leave(return slot)`, which
    /// are a hook's, for the running task, which has other words meanwhile. No
    /// callback is called.
    ///
    /// Call it inside of [`quietly`](Fgraph::quietly), with other CPUs and
    /// interrupts held out.
    pub(crate) fn rehearse(
        &self,
        enter: impl Fn(u16, *const usize) -> bool,
        leave: impl Fn(*const usize) -> usize,
    ) -> Result<(), RehearseError> {
        let vacant = |&slot: &usize| self.table.is_vacant(slot);
        let slot = (0..SLOTS).find(vacant).ok_or(RehearseError::NoSlot)?;
        let set = 1 << slot;
        let rehearse = |stack: &RetStack| {
            stack.view()?;
            let own = stack.put_aside();
            self.table.visit_vacant(slot, true);
            let done = self.rehearse_on(stack, |slot| enter(set, slot), leave);
            self.table.visit_vacant(slot, false);
            stack.put_back(own);
            done
        };
        P::current(rehearse).flatten().ok_or(RehearseError::NoStack)
    }

    /// The paths that a call can take, on the running task's stack, which has no
    /// words.
    fn rehearse_on(
        &self,
        stack: &RetStack,
        enter: impl Fn(*const usize) -> bool,
        leave: impl Fn(*const usize) -> usize,
    ) -> Option<()> {
        // Hooks read and write a return slot; this one is real.
        let near = Self::rehearsed(0).ret;
        let mut slot_word = [near; 2];
        let return_slot = slot_word.as_mut_ptr();
        let slot = return_slot as usize;

        // Not attached.
        enter(return_slot);
        let mut words = [0_usize; WORDS];
        let real_stack = slot.saturating_sub(REACH)..slot.saturating_add(REACH);
        // SAFETY: the words outlive their use, which ends with `put_back`;
        // nobody else has them.
        unsafe { stack.attach_local(&mut words, real_stack) }.ok()?;
        let view = stack.view()?;
        let push_frame = |record: &Record| {
            let before = stack.state().with_guards_of(State::EMPTY);
            if let Ok(Some(claim)) = view.claim(stack.state(), before, 0, record, 0, 0) {
                stack.set_state(before.at(claim.index + 1));
            }
        };
        let push = |slot: usize| push_frame(&Self::rehearsed(slot));
        // Refused, near and wide; then a return that finds its frame.
        enter(return_slot);
        // SAFETY: the slot's word, above.
        unsafe { return_slot.write_volatile(!near) };
        enter(return_slot);
        // SAFETY: as above.
        unsafe { return_slot.write_volatile(near) };
        push(slot);
        leave(return_slot);
        // A wide one.
        push_frame(&Record {
            func: !near,
            ..Self::rehearsed(slot)
        });
        leave(return_slot);
        Self::rehearse_data(stack, &leave, &push, slot)?;
        // Returns over other frames, with and without a slot of their own.
        push(slot);
        push(0);
        push(slot.wrapping_sub(64));
        leave(return_slot);
        // Entries that prove frames dead, or prove them alive.
        for old in [slot, slot.wrapping_sub(64), 0] {
            push(old);
            enter(return_slot);
            stack.set_state(State::EMPTY);
        }
        Self::rehearse_inside(stack, &enter, &leave, &push, return_slot);
        Some(())
    }

    /// Returns where the newest frame is that of a callback that keeps a word,
    /// on the slot and on another.
    fn rehearse_data(
        stack: &RetStack,
        leave: &impl Fn(*const usize) -> usize,
        push: &impl Fn(usize),
        slot: usize,
    ) -> Option<()> {
        let view = stack.view()?;
        for on in [slot, slot.wrapping_sub(64)] {
            push(on);
            let top = stack.state().top();
            // SAFETY: there are more words, and nobody else's frames.
            let end = unsafe { view.put_data(top - 1, top, 0, &[0]) };
            stack.set_state(State::EMPTY.at(end));
            leave(slot as *const usize);
            stack.set_state(State::EMPTY);
        }
        Some(())
    }

    /// The paths of a task that is inside of the tracer, or has no room.
    fn rehearse_inside(
        stack: &RetStack,
        enter: &impl Fn(*const usize) -> bool,
        leave: &impl Fn(*const usize) -> usize,
        push: &impl Fn(usize),
        return_slot: *mut usize,
    ) {
        let slot = return_slot as usize;
        // Inside the guard, and above an interrupted claim.
        let context = P::context() as usize;
        stack.set_state(State::EMPTY.guarded(context));
        enter(return_slot);
        push(slot);
        stack.set_state(stack.state().guarded(context));
        leave(return_slot);
        stack.set_state(State::EMPTY.claimed(1));
        enter(return_slot);
        push(slot);
        leave(return_slot);
        // Full.
        stack.set_state(State::EMPTY.at(WORDS));
        enter(return_slot);
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
}
