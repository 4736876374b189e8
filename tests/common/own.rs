//! A platform for tests that bring their own tracer and shadow stack: each
//! thread has the stack, the context and the clock that the test gave it.

use std::cell::Cell;
use std::ops::Range;

use fgraph::{Context, Fgraph, Platform, RetStack};

/// The platform.
#[derive(Debug)]
pub struct Own;

thread_local! {
    static CURRENT: Cell<Option<&'static RetStack>> = const { Cell::new(None) };
    static CONTEXT: Cell<Context> = const { Cell::new(Context::Task) };
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    static INTERRUPT_STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

// SAFETY: a stack is current in one thread, and tests set contexts apart.
unsafe impl Platform for Own {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        CURRENT.get().map(f)
    }

    fn clock() -> u64 {
        CLOCK.get()
    }

    fn context() -> Context {
        CONTEXT.get()
    }

    fn interrupt_stack(slot: usize) -> Option<Range<usize>> {
        let (low, high) = INTERRUPT_STACK.get();
        Some(low..high).filter(|stack| stack.contains(&slot))
    }
}

/// A tracer of the test's own.
pub fn fgraph() -> &'static Fgraph<Own> {
    Box::leak(Box::default())
}

/// Gives the thread a new stack of `words` words.
pub fn with_stack(words: usize) -> &'static RetStack {
    let stack: &'static RetStack = Box::leak(Box::default());
    let here = slots(0).as_ptr() as usize;
    let words = Box::leak(vec![0; words].into_boxed_slice());
    stack
        .attach(words, here..here)
        .expect("a new stack takes its words");
    CURRENT.set(Some(stack));
    stack
}

/// Makes `stack` current; gives back what was.
pub fn set_current(stack: Option<&'static RetStack>) -> Option<&'static RetStack> {
    CURRENT.replace(stack)
}

/// Sets the time.
pub fn set_clock(ticks: u64) {
    CLOCK.set(ticks);
}

/// The thread's interrupts run there; without that, nothing is known.
#[allow(dead_code, reason = "not in all programs")]
pub fn set_interrupt_stack(stack: Range<usize>) {
    INTERRUPT_STACK.set((stack.start, stack.end));
}

/// Runs `f` in a context.
pub fn in_context<R>(context: Context, f: impl FnOnce() -> R) -> R {
    struct Restore(Context);
    impl Drop for Restore {
        fn drop(&mut self) {
            CONTEXT.set(self.0);
        }
    }
    let _restore = Restore(CONTEXT.replace(context));
    f()
}

/// Words to be return slots, within reach of the stacks that
/// [`with_stack`] gives: all of a thread are of one allocation, because an
/// allocator may put two as far from each other as it likes.
pub fn slots(count: usize) -> &'static mut [usize] {
    thread_local! {
        static FREE: Cell<&'static mut [usize]> = const { Cell::new(&mut []) };
    }
    let mut free = FREE.take();
    if free.is_empty() {
        free = Box::leak(vec![0; 1 << 20].into_boxed_slice());
    }
    let (slots, rest) = free.split_at_mut(count);
    FREE.set(rest);
    slots
}
