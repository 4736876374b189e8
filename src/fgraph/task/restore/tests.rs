//! An interrupt in the middle of restoring.

extern crate std;

use core::cell::Cell;
use core::ops::Range;
use std::{boxed::Box, vec};

use super::*;
use crate::fgraph::Call;
use crate::{Callback, Entry, Exit};

std::thread_local! {
    static STACK: Cell<Option<&'static RetStack>> = const { Cell::new(None) };
    static CONTEXT: Cell<Context> = const { Cell::new(Context::Task) };
    static INTERRUPTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// What happens when the platform is asked for this slot.
    static WHEN: Cell<(usize, fn())> = const { Cell::new((0, || {})) };
    static WORDS: Cell<usize> = const { Cell::new(0) };
}

struct Test;

// SAFETY: each thread has its own stack, and contexts are told apart.
unsafe impl Platform for Test {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        STACK.get().map(f)
    }

    fn clock() -> u64 {
        0
    }

    fn context() -> Context {
        CONTEXT.get()
    }

    fn interrupt_stack(slot: usize) -> Option<Range<usize>> {
        let (when, then) = WHEN.get();
        if slot == when {
            WHEN.set((0, || {}));
            then();
        }
        let (low, high) = INTERRUPTS.get();
        (low..high).contains(&slot).then_some(low..high)
    }
}

static FGRAPH: Fgraph<Test> = Fgraph::new();

struct All;
impl Callback for All {
    type Frame = ();
    fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
        Some(())
    }
    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

/// Code that is near.
fn code(n: usize) -> usize {
    code as fn(usize) -> usize as usize + n
}

/// Where calls return to that are hooked.
fn hooked() -> usize {
    code(1000)
}

fn word(n: usize) -> *mut usize {
    (WORDS.get() as *mut usize).wrapping_add(n)
}

/// An interrupt calls `n` on the word `n`.
fn enter(n: usize) {
    let before = CONTEXT.replace(Context::Interrupt);
    let call = Call {
        func: code(0),
        ret: code(n),
        slot: word(n) as usize,
        tail: false,
        registers: None,
    };
    // SAFETY: a word of the test's own.
    unsafe {
        assert!(FGRAPH.enter(&call, usize::MAX));
        word(n).write(hooked());
    }
    CONTEXT.set(before);
}

/// Calls of an interrupt that was jumped out of are given their addresses
/// back. In the middle of that another interrupt proves them dead, and puts
/// frames of its own where theirs were. Its slots are then somebody else's.
#[test]
fn an_interrupt_ends_what_is_being_restored() {
    const AGAIN: Range<usize> = 24..27;
    fn interrupt() {
        AGAIN.rev().for_each(enter);
        let before = CONTEXT.replace(Context::Interrupt);
        for n in AGAIN {
            // SAFETY: it was entered.
            let ret = unsafe { FGRAPH.leave(word(n) as usize, None) };
            assert_eq!(ret, Some(code(n)));
            // SAFETY: as in `enter`.
            unsafe { word(n).write(hooked()) };
        }
        CONTEXT.set(before);
    }
    let memory = Box::leak(vec![0_usize; 32].into_boxed_slice());
    let base = memory.as_mut_ptr();
    WORDS.set(base as usize);
    let stack: &'static RetStack = Box::leak(Box::default());
    let words = Box::leak(vec![0; 64].into_boxed_slice());
    assert_eq!(
        stack.attach(words, word(16) as usize..word(32) as usize),
        Ok(())
    );
    STACK.set(Some(stack));
    INTERRUPTS.set((base as usize, word(16) as usize));
    FGRAPH.set_patched_return(hooked());
    assert!(FGRAPH.register(&All).is_ok());
    [10, 9, 8].into_iter().for_each(enter);
    WHEN.set((word(8) as usize, interrupt));
    // SAFETY: all slots are there.
    assert_eq!(unsafe { FGRAPH.restore() }, 0);
    for n in AGAIN.chain([8, 9, 10]) {
        // SAFETY: as in `enter`.
        assert_eq!(unsafe { word(n).read() }, hooked(), "{n}");
    }
    assert_eq!((stack.depth(), stack.counters().unwound), (0, 3));
}
