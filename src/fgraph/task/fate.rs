//! Whether the call of a frame may be in flight, as far as the place of its
//! slot tells. This file reads no word of any stack.

use crate::Platform;
use crate::ret_stack::RetStack;

/// Where the running code is on its stack, so that a slot can be told from one
/// whose call was jumped over: on such a stack another CPU may run by now, with
/// a call of its own on that slot.
pub(super) struct Here<'a> {
    stack: &'a RetStack,
    at: usize,
    is_interrupt: bool,
}

/// What is known of the call of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It may be in flight, and its slot is on a stack of the running task, or
    /// on the one that runs.
    Lives,
    Dead,
    /// It is in flight, or was jumped over and its slot is somebody else's.
    Unknown,
}

impl<'a> Here<'a> {
    /// In line: the callers' frames are above the word that is looked at.
    #[inline(always)]
    pub(super) fn new<P: Platform>(stack: &'a RetStack) -> Self {
        let here = 0_usize;
        let at = &raw const here as usize;
        Self {
            stack,
            at,
            is_interrupt: P::interrupt_stack(at).is_some(),
        }
    }

    pub(super) fn fate<P: Platform>(&self, slot: usize) -> Fate {
        let (stack, at) = (self.stack, self.at);
        let on = match stack.owns(slot) {
            true => Some(stack.real_stack()),
            false => P::interrupt_stack(slot),
        };
        match on {
            // The calls that led here lie above.
            Some(on) if on.contains(&at) && slot < at => Fate::Dead,
            Some(on) if on.contains(&at) || stack.owns(slot) => Fate::Lives,
            // An interrupt's stack is empty before what it interrupted goes on.
            Some(_) if !self.is_interrupt => Fate::Dead,
            // Its bounds are not known, and neither are the task's own.
            None if !stack.owns(at) => Fate::Lives,
            _ => Fate::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{boxed::Box, vec};

    use super::*;

    /// Where the task's own stack is, and two interrupts' stacks.
    const TASK: usize = 0x8000;
    const LOW: usize = 0x4000;
    const HIGH: usize = 0xc000;
    const SIZE: usize = 0x1000;

    struct Test<const NAMES: bool>;

    // SAFETY: there is no task.
    unsafe impl<const NAMES: bool> Platform for Test<NAMES> {
        fn current<R>(_: impl FnOnce(&RetStack) -> R) -> Option<R> {
            None
        }

        fn clock() -> u64 {
            0
        }

        fn interrupt_stack(slot: usize) -> Option<core::ops::Range<usize>> {
            let stacks = [LOW..LOW + SIZE, HIGH..HIGH + SIZE];
            stacks.into_iter().find(|on| NAMES && on.contains(&slot))
        }
    }

    /// What becomes of calls 16 bytes below and above the places of the three
    /// stacks, to code that runs at `at`.
    fn fates<const NAMES: bool>(at: usize, bounded: bool) -> [[Fate; 2]; 3] {
        let stack = RetStack::new();
        let end = if bounded { TASK + SIZE } else { TASK };
        let words = Box::leak(vec![0; 8].into_boxed_slice());
        assert_eq!(stack.attach(words, TASK..end), Ok(()));
        let here = Here {
            stack: &stack,
            at,
            is_interrupt: Test::<NAMES>::interrupt_stack(at).is_some(),
        };
        [LOW, TASK, HIGH].map(|on| {
            let slots = [on + SIZE / 2 - 16, on + SIZE / 2 + 16];
            slots.map(|slot| here.fate::<Test<NAMES>>(slot))
        })
    }

    #[test]
    fn what_is_known_of_a_call() {
        use Fate::{Dead, Lives, Unknown};
        let [low, task, high] = [LOW, TASK, HIGH].map(|on| on + SIZE / 2);
        let (dead, lives, unknown) = ([Dead; 2], [Lives; 2], [Unknown; 2]);
        // On a stack whose bounds are known, only what lies above led here.
        let above = [Dead, Lives];
        assert_eq!(fates::<true>(task, true), [dead, above, dead]);
        assert_eq!(fates::<true>(low, true), [above, lives, unknown]);
        assert_eq!(fates::<true>(high, true), [unknown, lives, above]);
        assert_eq!(fates::<true>(task, false), [dead, lives, dead]);
        assert_eq!(fates::<true>(low, false), [above, lives, unknown]);
        // Other stacks, of which nothing is known.
        assert_eq!(fates::<false>(task, true), [unknown, above, unknown]);
        assert_eq!(fates::<false>(low, true), [lives; 3]);
        assert_eq!(fates::<false>(task, false), [lives; 3]);
    }
}
