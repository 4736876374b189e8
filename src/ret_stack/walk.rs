//! Reading a shadow stack without owning it: from any CPU, in any context,
//! while its task runs. Nothing here writes.
//!
//! A walk is bounded by the stack's words: each step goes strictly down. What
//! it reads of a task that runs elsewhere may be stale, which
//! [`Frames::is_stale`] tells; it is never out of bounds.

use core::ops::Range;

use super::{Found, RetStack, State, View};

/// One traced call in flight.
///
/// # Example
///
/// ```
/// use fgraph::ret_stack::Frame;
///
#[doc = example_traced!()]
/// let scope = FGRAPH.scope(0x1000, 0x2000);
/// let callbacks = 1 << id.slot();
/// assert_eq!(
///     STACK.frames().next(),
///     Some(Frame { func: 0x1000, ret: 0x2000, slot: 0, callbacks }),
/// );
/// # drop(scope);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The function that was entered.
    pub func: usize,
    /// What the return slot held: the caller's return address, or the address
    /// of a hook's stub where the function was tail-called by a traced one.
    pub ret: usize,
    /// The address of the return slot on the real stack; 0 for a scope.
    pub slot: usize,
    /// The callbacks that want the return: for each the bit of its
    /// [slot](crate::CallbackId::slot).
    pub callbacks: u16,
}

/// The frames of a shadow stack, newest first: [`RetStack::frames`] makes it.
/// It ends by itself, whatever the words hold.
///
/// # Example
///
/// ```
#[doc = example_traced!()]
/// let outer = FGRAPH.scope(0x1000, 0);
/// let inner = FGRAPH.scope(0x2000, 0);
/// let funcs: Vec<usize> = STACK.frames().map(|frame| frame.func).collect();
/// assert_eq!(funcs, [0x2000, 0x1000]);
/// # drop(inner);
/// # drop(outer);
/// ```
#[derive(Clone)]
pub struct Frames<'a> {
    stack: &'a RetStack,
    view: Option<View<'a>>,
    begun: State,
    top: usize,
}

impl core::fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl Frames<'_> {
    /// Whether the stack has changed since the walk began, so that what the
    /// walk saw may be stale. For a walk of another CPU's task; false for a walk
    /// of one's own stack, unless calls were made or ended during it.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_traced!()]
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// let mut frames = STACK.frames();
    /// assert!(frames.next().is_some() && !frames.is_stale());
    /// drop(scope);
    /// assert!(frames.is_stale(), "the call that it saw has returned");
    /// ```
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let now = self.stack.state();
        (now.top(), now.reserved()) != (self.begun.top(), self.begun.reserved())
    }
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    #[inline]
    fn next(&mut self) -> Option<Frame> {
        let view = self.view?;
        let found = loop {
            let found = view.frame_below(self.top)?;
            self.top = found.start;
            // Nobody wants the return of a scope that has ended already.
            if found.set != 0 {
                break found;
            }
        };
        Some(Frame {
            func: found.record.func,
            ret: found.record.ret,
            slot: found.record.slot,
            callbacks: found.set as u16,
        })
    }
}

impl RetStack {
    /// The traced calls in flight, newest first. Any context, any CPU, without
    /// a lock; the words must stay attached during the walk, or stay valid
    /// memory, as [`detach`](Self::detach) demands.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_traced!()]
    /// let scope = FGRAPH.scope(0x1000, 0x2000);
    /// let mut text = String::new();
    /// for frame in STACK.frames() {
    ///     text += &format!("{:#x} called from {:#x}", frame.func, frame.ret);
    /// }
    /// assert_eq!(text, "0x1000 called from 0x2000");
    /// # drop(scope);
    /// ```
    #[must_use]
    pub fn frames(&self) -> Frames<'_> {
        let begun = self.state();
        Frames {
            stack: self,
            view: self.view(),
            begun,
            top: begun.top(),
        }
    }

    /// How many traced calls are in flight: a walk. Any context, any CPU.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_traced!()]
    /// let scope = FGRAPH.scope(0x1000, 0);
    /// assert_eq!(STACK.depth(), 1);
    /// # drop(scope);
    /// ```
    #[must_use]
    pub fn depth(&self) -> usize {
        self.frames().count()
    }
}

/// The searches by which an owner finds out which of its frames are dead. They
/// read only.
impl<'a> View<'a> {
    /// The frames from `top` down.
    pub(crate) fn founds(self, mut top: usize) -> impl Iterator<Item = Found> + 'a {
        core::iter::from_fn(move || {
            let found = self.frame_below(top)?;
            top = found.start;
            Some(found)
        })
    }

    /// The frames below the one whose index word is at `index`.
    pub(crate) fn founds_below(self, index: usize) -> impl Iterator<Item = Found> + 'a {
        self.founds(self.start_of(index))
    }

    /// Whether the newest frame with a slot makes it doubtful that all frames
    /// are alive, when a call enters on `slot`: calls on one stack have ever
    /// lower slots, and an interrupt's end first.
    pub(crate) fn is_suspect(
        &self,
        state: State,
        slot: usize,
        interrupts: impl Fn(usize) -> Option<Range<usize>>,
    ) -> bool {
        self.founds(state.top())
            .map(|found| found.record.slot)
            .find(|&other| other != 0)
            .is_some_and(|other| other <= slot || interrupts(other).is_some())
    }

    /// The position of the oldest of the newest frames that are proven dead by
    /// a call that enters on `slot`. Four proofs are accepted:
    ///
    /// - a frame on the same slot, unless the call is a tail call from it: a
    ///   live frame's slot holds a stub's address, and this one holds another;
    /// - a frame on a lower slot of the same real stack, where the stack's
    ///   bounds are known;
    /// - a frame on an interrupt stack, whose bounds `interrupts` tells, at a
    ///   lower slot of the same one, or when the call is on the task's own;
    /// - a frame above the one that makes a tail call: that one is running.
    ///
    /// Slots on different stacks are not compared. A dead frame proves nothing
    /// of those above it, which may have been pushed when it was dead already:
    /// one that is not proven dead itself ends the search, unless it is a
    /// scope's, whose slot is not known. So does a gap: what lies below belongs
    /// to an owner that is in the middle of something.
    pub(crate) fn oldest_dead(
        &self,
        state: State,
        slot: usize,
        tail: bool,
        interrupts: impl Fn(usize) -> Option<Range<usize>>,
    ) -> Option<usize> {
        let stack = self.stack();
        let owned = stack.owns(slot);
        let mut top = state.top();
        let (mut oldest, mut above, mut proven) = (None, None, true);
        while let Some(found) = self.frame_below(top)
            && found.end == top
        {
            let other = found.record.slot;
            if tail && other == slot {
                return above;
            }
            let over = |other: usize| match stack.owns(other) {
                true => owned && other < slot,
                false => {
                    interrupts(other).is_some_and(|on| owned || other < slot && on.contains(&slot))
                }
            };
            if proven && other != 0 && (other == slot || over(other)) {
                oldest = Some(found.index);
            } else if other != 0 {
                if !tail {
                    break;
                }
                proven = false;
            }
            above = Some(found.index);
            top = found.start;
        }
        oldest
    }

    /// The newest frame on `slot`.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_slot(&self, state: State, slot: usize) -> Option<Found> {
        self.founds(state.top()).find(|f| f.record.slot == slot)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::ops::Range;
    use std::{boxed::Box, vec};

    use super::super::word::Record;
    use crate::RetStack;

    /// The task's own real stack.
    const OWN: Range<usize> = 0x1000..0x2000;
    /// Slots there, the lowest first.
    const LOW: usize = 0x1100;
    const MIDDLE: usize = 0x1400;
    const HIGH: usize = 0x1800;

    /// An interrupt stack, and another.
    const IRQ: Range<usize> = 0x8000..0x9000;
    const NMI: Range<usize> = 0xa000..0xb000;

    /// On a stack of which nothing is known.
    const ELSEWHERE: usize = 0x5000;

    const SCOPE: usize = 0;

    /// How many of the frames on `slots`, the oldest first, are proven dead by
    /// a call on `slot`.
    fn dead(slots: &[usize], slot: usize, tail: bool) -> usize {
        let stack = RetStack::new();
        let words = Box::leak(vec![0; 64].into_boxed_slice());
        stack.attach(words, OWN).unwrap();
        let view = stack.view().unwrap();
        for &slot in slots {
            let record = Record {
                func: 0x1000,
                ret: 0x2000,
                slot,
                epoch: 1,
            };
            let state = stack.state();
            let claim = view.claim(state, state, 0, &record, 1, 0);
            let claim = claim.unwrap().unwrap();
            stack.set_state(state.at(claim.index + 1));
        }
        let interrupts = |slot: usize| [IRQ, NMI].into_iter().find(|on| on.contains(&slot));
        let oldest = view.oldest_dead(stack.state(), slot, tail, interrupts);
        let founds = view.founds(stack.state().top());
        oldest.map_or(0, |oldest| {
            founds.take_while(|found| found.index >= oldest).count()
        })
    }

    #[test]
    fn lower_slots_of_the_same_stack_are_dead() {
        assert_eq!(dead(&[HIGH, MIDDLE, LOW], LOW - 8, false), 0);
        assert_eq!(dead(&[HIGH, LOW], MIDDLE, false), 1);
        assert_eq!(dead(&[MIDDLE, LOW], HIGH, false), 2);
        assert_eq!(dead(&[HIGH, MIDDLE], MIDDLE, false), 1);
        // Of others the order proves nothing.
        assert_eq!(dead(&[HIGH, ELSEWHERE], LOW, false), 0);
        assert_eq!(dead(&[HIGH, ELSEWHERE], ELSEWHERE + 8, false), 0);
        assert_eq!(dead(&[HIGH, ELSEWHERE], ELSEWHERE, false), 1);
    }

    #[test]
    fn interrupts_end_before_what_they_interrupt() {
        let (low, high) = (IRQ.start + 0x100, IRQ.start + 0x200);
        assert_eq!(dead(&[HIGH, high, low], LOW, false), 2);
        // On one interrupt stack it is as on any.
        assert_eq!(dead(&[HIGH, low], high, false), 1);
        assert_eq!(dead(&[HIGH, high], low, false), 0);
        // What another interrupt has interrupted is alive.
        assert_eq!(dead(&[HIGH, low], NMI.start + 0x200, false), 0);
        assert_eq!(dead(&[HIGH, NMI.start], low, false), 0);
        assert_eq!(dead(&[HIGH, low], ELSEWHERE, false), 0);
    }

    #[test]
    fn a_scope_is_dead_if_what_is_below_is() {
        assert_eq!(dead(&[HIGH, LOW, SCOPE], MIDDLE, false), 2);
        assert_eq!(dead(&[HIGH, SCOPE], MIDDLE, false), 0);
        assert_eq!(dead(&[SCOPE, SCOPE], MIDDLE, false), 0);
    }

    #[test]
    fn above_the_frame_that_makes_a_tail_call_all_are_dead() {
        assert_eq!(dead(&[HIGH, MIDDLE], MIDDLE, true), 0);
        assert_eq!(dead(&[HIGH, MIDDLE, LOW], MIDDLE, true), 1);
        assert_eq!(dead(&[MIDDLE, ELSEWHERE, SCOPE], MIDDLE, true), 2);
        // Without one, a dead frame says nothing of what is above.
        assert_eq!(dead(&[HIGH, LOW, ELSEWHERE], MIDDLE, true), 0);
        assert_eq!(dead(&[HIGH, LOW], MIDDLE, true), 1);
    }
}
