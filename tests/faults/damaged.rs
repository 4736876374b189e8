//! Words of a live stack that no call has written: what becomes of whom.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::Call;
use fgraph::ret_stack::NEAR_WORDS;
use fgraph::{Callback, Cause, Entry, Exit, Fgraph, RetStack};

use crate::common::own::{self, Own};

thread_local! {
    /// Exits: callback, function, cause.
    static EXITS: RefCell<Vec<(usize, usize, Cause)>> = const { RefCell::new(Vec::new()) };
}

/// Keeps `W` words.
struct Keep<const W: usize>(usize);

impl<const W: usize> Callback for Keep<W> {
    type Frame = [usize; W];

    fn entry(&self, _: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        Some([7; W])
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        assert_eq!(data, [7; W]);
        let exit = (self.0, call.func(), call.cause());
        EXITS.with_borrow_mut(|exits| exits.push(exit));
    }
}

/// A task whose words the test can change.
struct Task {
    fgraph: &'static Fgraph<Own>,
    stack: &'static RetStack,
    words: &'static [AtomicUsize],
    slots: &'static [usize],
}

impl Task {
    fn new() -> Self {
        let words: &'static [AtomicUsize] = (0..64)
            .map(|_| AtomicUsize::new(0))
            .collect::<Vec<_>>()
            .leak();
        let stack: &'static RetStack = Box::leak(Box::default());
        let slots = own::slots(8);
        let real = slots.as_ptr_range();
        // SAFETY: leaked, and written through atomics alone, as the crate does.
        let attached = unsafe {
            let words = words.as_ptr().cast::<usize>().cast_mut();
            std::slice::from_raw_parts_mut(words, 64)
        };
        stack
            .attach(attached, real.start as usize..real.end as usize)
            .expect("a new stack takes its words");
        own::set_current(Some(stack));
        Self {
            fgraph: own::fgraph(),
            stack,
            words,
            slots,
        }
    }

    fn slot(&self, n: usize) -> usize {
        &raw const self.slots[7 - n] as usize
    }

    fn func(n: usize) -> usize {
        Self::new as fn() -> Self as usize + n
    }

    fn enter(&self, n: usize) {
        let call = Call {
            func: Self::func(n),
            ret: Self::func(n + 100),
            slot: self.slot(n),
            tail: false,
            registers: None,
        };
        // SAFETY: the slots are words, here and below.
        assert!(unsafe { self.fgraph.enter(&call, usize::MAX) });
    }

    fn leave(&self, n: usize) -> Option<usize> {
        // SAFETY: as above.
        unsafe { self.fgraph.leave(self.slot(n), None) }
    }

    fn flip(&self, word: usize, bit: u32) {
        self.words[word].fetch_xor(1 << bit, Relaxed);
    }
}

/// The lowest bit of a data index's callback.
const CALLBACK_BIT: u32 = usize::BITS - 2 - 4 - 4;

/// The lowest bit of a frame's epoch.
const EPOCH_BIT: u32 = 16;

#[test]
fn data_that_are_not_a_callbacks_own_end_none_but_its_exit() {
    let task = Task::new();
    task.fgraph.register(&Keep::<0>(0)).unwrap();
    task.fgraph.register(&Keep::<1>(1)).unwrap();
    task.fgraph.register(&Keep::<0>(2)).unwrap();
    task.enter(0);
    // The frame, the data's word, and their index.
    task.flip(NEAR_WORDS + 1, CALLBACK_BIT);
    assert_eq!(task.leave(0), Some(Task::func(100)));
    let returned = |who| (who, Task::func(0), Cause::Returned);
    assert_eq!(EXITS.take(), [returned(2), returned(0)]);
    assert_eq!(task.stack.counters().strays, 1);
    assert_eq!((task.stack.depth(), task.stack.is_inside()), (0, false));
}

/// Epochs that have not been yet, and that in which nobody was registered.
#[test]
fn a_frame_of_an_epoch_in_which_nobody_called_is_no_frame() {
    for bit in [EPOCH_BIT, EPOCH_BIT + 5] {
        let task = Task::new();
        task.fgraph.register(&Keep::<0>(0)).unwrap();
        (0..2).for_each(|n| task.enter(n));
        task.flip(NEAR_WORDS - 1, bit);
        // Its return finds it not, and ends nobody else.
        assert_eq!(task.leave(0), None, "bit {bit}");
        assert_eq!((EXITS.take(), task.stack.depth()), (vec![], 2));
        assert_eq!(task.stack.counters().strays, 1);
        // It does not end with the task either.
        // SAFETY: the made-up calls do not return.
        assert!(unsafe { task.fgraph.exit_task(task.stack) }.is_ok());
        assert_eq!(EXITS.take(), [(0, Task::func(1), Cause::TaskExit)]);
        assert_eq!(task.stack.counters().strays, 2);
        own::set_current(None);
    }
}
