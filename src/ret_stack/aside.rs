//! A stack's own words, put aside while it has others: for a rehearsal, which
//! goes through the running task's stack and must leave it as it was.

use core::ptr;

use super::{Counters, RetStack};
use crate::ret_stack::word::State;
use crate::sync::{AtomicUsize, Ordering};

/// All that [`attach_local`](RetStack::attach_local) changes, as it was.
#[must_use = "what was put aside is lost unless it is put back"]
pub(crate) struct Aside {
    words: *mut AtomicUsize,
    state: State,
    len: u32,
    span: u32,
    slots: usize,
    slept: u64,
    counters: Counters,
}

impl RetStack {
    /// Takes the words away until they are [put back](Self::put_back). In
    /// between the task can have others. By the task itself, with other CPUs and
    /// interrupts held out.
    pub(crate) fn put_aside(&self) -> Aside {
        Aside {
            // Relaxed, as are those of `put_back`: nobody else looks meanwhile.
            // The length first, as where words are detached.
            len: self.close() as u32,
            words: self.words.swap(ptr::null_mut(), Ordering::Relaxed),
            state: self.state(),
            span: self.span.load(Ordering::Relaxed),
            slots: self.slots.load(Ordering::Relaxed),
            slept: self.slept.get(),
            counters: self.counters(),
        }
    }

    /// Puts back what [`put_aside`](Self::put_aside) took; words that the task
    /// had in between are forgotten.
    pub(crate) fn put_back(&self, aside: Aside) {
        let Aside {
            words,
            state,
            len,
            span,
            slots,
            slept,
            counters,
        } = aside;
        let Counters {
            overruns,
            recursions,
            unwound,
            strays,
        } = counters;
        self.close();
        self.set_state(state);
        self.span.store(span, Ordering::Relaxed);
        self.slots.store(slots, Ordering::Relaxed);
        self.slept.set(slept);
        self.overruns.store(overruns, Ordering::Relaxed);
        self.recursions.store(recursions, Ordering::Relaxed);
        self.unwound.store(unwound, Ordering::Relaxed);
        self.strays.store(strays, Ordering::Relaxed);
        // As in `attach`: these publish all of the above.
        self.words.store(words, Ordering::Release);
        self.len.store(len, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{boxed::Box, vec};

    use super::Ordering::Relaxed;
    use super::{Counters, State};
    use crate::RetStack;

    #[test]
    fn a_stack_is_put_back_as_it_was() {
        let words = |count| Box::leak(vec![0; count].into_boxed_slice());
        let stack = RetStack::new();
        stack.attach(words(8), 0x1000..0x2000).unwrap();
        stack.set_state(stack.state().at(4));
        stack.slept.set(5);
        // A number of its own for each.
        let count = || {
            stack.count_overrun();
            (0..2).for_each(|_| stack.count_recursion());
            (0..3).for_each(|_| stack.count_unwound());
            (0..4).for_each(|_| stack.count_stray());
        };
        count();
        let told = |stack: &RetStack| {
            (
                (stack.state(), stack.capacity(), stack.is_attached()),
                (stack.slept.get(), stack.counters()),
                (stack.span.load(Relaxed), stack.slots.load(Relaxed)),
                stack.words.load(Relaxed),
            )
        };
        let before = told(&stack);
        let aside = stack.put_aside();
        assert!(!stack.is_attached());
        stack.attach(words(16), 0x8000..0xa000).unwrap();
        // Those that it has meanwhile begin anew.
        assert_eq!((stack.state(), stack.slept()), (State::EMPTY, 0));
        assert_eq!(stack.counters(), Counters::default());
        stack.set_state(stack.state().at(7));
        stack.slept.set(6);
        (0..2).for_each(|_| count());
        assert_ne!(told(&stack), before);
        stack.put_back(aside);
        assert_eq!(told(&stack), before);
    }
}
