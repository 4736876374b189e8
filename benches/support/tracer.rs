//! The traced side of the benches: a platform as a kernel has it (one load to
//! the running task's stack), and callbacks that do nothing.

use std::cell::Cell;
use std::hint::black_box;

use fgraph::fgraph::Call;
use fgraph::hook::Global;
use fgraph::{Callback, CallbackId, Entry, Exit, Fgraph, FrameData, Platform, RetStack};

/// The bench's platform.
#[derive(Debug)]
pub struct Bench;

/// Its tracer.
pub static FGRAPH: Fgraph<Bench> = Fgraph::new();

thread_local! {
    static CURRENT: Cell<Option<&'static RetStack>> = const { Cell::new(None) };
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Says which CPU the thread stands for.
pub fn set_cpu(cpu: usize) {
    CPU.set(cpu);
}

// SAFETY: each thread has a stack of its own, and no signal handler traces.
unsafe impl Platform for Bench {
    #[inline(always)]
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        CURRENT.get().map(f)
    }

    #[inline(always)]
    fn clock() -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { std::arch::x86_64::_rdtsc() };
        #[cfg(not(target_arch = "x86_64"))]
        return 0;
    }

    #[inline(always)]
    fn cpu() -> usize {
        CPU.get()
    }
}

impl Global for Bench {
    #[inline(always)]
    fn fgraph() -> &'static Fgraph<Self> {
        &FGRAPH
    }
}

/// Gives the thread a shadow stack, if it has none.
pub fn attach(words: usize) -> &'static RetStack {
    if let Some(stack) = CURRENT.get() {
        return stack;
    }
    let near = &raw const words as usize;
    let stack: &'static RetStack = Box::leak(Box::default());
    let words = Box::leak(vec![0; words].into_boxed_slice());
    let attached = stack.attach(words, near..near);
    attached.expect("a new stack takes its words");
    CURRENT.set(Some(stack));
    stack
}

/// Enters a call on each slot, which never returns.
pub fn push(slots: &[usize], near: bool) {
    for slot in slots.iter().rev() {
        let call = Call {
            func: if near {
                push as fn(&[usize], bool) as usize
            } else {
                usize::MAX
            },
            ret: push as fn(&[usize], bool) as usize,
            slot: &raw const *slot as usize,
            tail: false,
            registers: None,
        };
        // SAFETY: nobody leaves.
        let wanted = unsafe { FGRAPH.enter(&call, usize::MAX) };
        assert!(wanted, "the stack has room");
    }
}

/// Does nothing, keeps a `D`, and wants the return.
#[derive(Debug)]
pub struct Nothing<D> {
    data: D,
    /// Objects of no size would be one and the same.
    _own_address: u8,
}

impl<D: FrameData + Sync> Callback for Nothing<D> {
    type Frame = D;

    #[inline]
    fn entry(&self, _: Entry<'_, D>) -> Option<D> {
        Some(self.data)
    }

    #[inline]
    fn exit(&self, _: Exit<'_, D>, _: D) {}
}

/// Registers `count` callbacks that keep a copy of `data` each.
pub fn register<D: FrameData + Sync>(count: usize, data: D) -> Vec<CallbackId> {
    (0..count)
        .map(|_| {
            let callback = Box::leak(Box::new(Nothing {
                data,
                _own_address: 0,
            }));
            FGRAPH.register(callback).expect("there are slots")
        })
        .collect()
}

/// Unregisters them.
pub fn unregister(ids: Vec<CallbackId>) {
    for id in ids {
        FGRAPH.unregister(id).expect("registered before");
    }
}

pub mod pair {
    //! The dispatch alone: an entry and a return by plain calls.

    use super::{Call, FGRAPH, black_box};

    #[inline(never)]
    fn enter(func: usize, slot: *const usize, wanted: usize) -> bool {
        // SAFETY: `pair` calls `leave` for the same slot, which is a live
        // word, if this says true.
        unsafe {
            let call = Call {
                func,
                ret: slot.read(),
                slot: slot as usize,
                tail: false,
                registers: None,
            };
            FGRAPH.enter(&call, wanted)
        }
    }

    #[inline(never)]
    fn leave(slot: *const usize) -> usize {
        // SAFETY: entered by `pair`.
        unsafe { FGRAPH.leave(slot as usize, None) }.unwrap_or_else(nowhere)
    }

    #[cold]
    #[inline(never)]
    fn nowhere() -> usize {
        panic!("entered by `pair`, so there is a frame")
    }

    /// Does `pair`'s calls without a tracer behind them.
    #[inline(never)]
    pub fn empty(calls: u64) {
        #[inline(never)]
        fn nothing(func: usize, slot: *const usize, wanted: usize) -> bool {
            black_box((func, slot, wanted)).2 != 0
        }
        let slot = [0_usize; 2];
        for _ in 0..calls {
            if nothing(empty as fn(u64) as usize, black_box(&raw const slot[0]), 0) {
                black_box(());
            }
        }
    }

    /// As [`pair`], of calls whose slot is far from the task's stack, as on a
    /// CPU's stack for interrupts.
    #[inline(never)]
    pub fn wide(calls: u64) {
        let slot = Box::leak(Box::new(pair as fn(u64, usize) as usize));
        for _ in 0..calls {
            let slot = black_box(&raw const *slot);
            if enter(pair as fn(u64, usize) as usize, slot, usize::MAX) {
                black_box(leave(slot));
            }
        }
    }

    /// `calls` entries, each with its return if somebody wants it.
    #[inline(never)]
    pub fn pair(calls: u64, wanted: usize) {
        let slot = [pair as fn(u64, usize) as usize; 2];
        for _ in 0..calls {
            let slot = black_box(&raw const slot[0]);
            if enter(pair as fn(u64, usize) as usize, slot, wanted) {
                black_box(leave(slot));
            }
        }
    }
}
