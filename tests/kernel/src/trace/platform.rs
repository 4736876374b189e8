//! The kernel as the tracer sees it: what a kernel's author implements.
//!
//! All of [`Platform`] runs at each traced call, before anything guards it:
//! short, without a lock, without a branch into a function that only some
//! callers reach.

use core::ops::Range;
use core::sync::atomic::Ordering;

use fgraph::hook::Global;
use fgraph::hook::patch::{Patch, PatchText};
use fgraph::{Context, Fgraph, Platform, RetStack};

use crate::arch;
use crate::{sched, stop};

/// This kernel.
#[derive(Debug)]
pub(crate) struct Kernel;

/// Its tracer.
pub(crate) static FGRAPH: Fgraph<Kernel> = Fgraph::new();

/// Its functions.
pub(crate) static PATCH: Patch<Kernel> = Patch::new();

// SAFETY:
// - A task runs on one CPU at a time, and `current` changes in `arch::switch`,
//   which has no patchable entry and calls nothing.
// - A handler counts itself on the task before its first Rust function. One of
//   a kind interrupts another of its kind only by a fault in a handler, and the
//   tracer does not fault.
// - A handler's stack is its own, and empty when the handler is done.
// - `sched::grace_period` keeps the promise of `synchronize`, see there.
unsafe impl Platform for Kernel {
    #[inline(always)]
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        arch::current().map(|task| f(&task.ret_stack))
    }

    #[inline(always)]
    fn clock() -> u64 {
        arch::ticks()
    }

    #[inline(always)]
    fn cpu() -> usize {
        arch::cpu_number()
    }

    #[inline(always)]
    fn task() -> usize {
        arch::current().map_or(0, |task| task.id() as usize)
    }

    #[inline(always)]
    fn context() -> Context {
        // Both counts are read whatever they are: see the top of this file.
        let Some(task) = arch::current() else {
            return Context::Task;
        };
        let in_nmi = task.in_nmi.load(Ordering::Relaxed) != 0;
        let in_interrupt = task.in_interrupt.load(Ordering::Relaxed) != 0;
        match (in_nmi, in_interrupt) {
            (true, _) => Context::Nmi,
            (_, true) => Context::Interrupt,
            _ => Context::Task,
        }
    }

    fn synchronize() -> bool {
        // From a callback, the scheduler must not be entered.
        if arch::current().is_some_and(|task| task.ret_stack.is_inside()) {
            return false;
        }
        sched::grace_period();
        true
    }

    fn interrupt_stack(slot: usize) -> Option<Range<usize>> {
        arch::interrupt_stack(slot).map(|(low, high)| low..high)
    }
}

impl Global for Kernel {
    #[inline(always)]
    fn fgraph() -> &'static Fgraph<Self> {
        &FGRAPH
    }
}

// SAFETY: the other CPUs wait in a stub without patchable entries meanwhile,
// interrupts are off on this one, and text is writable. An NMI may come here
// all the same: it finds each entry before or after its one store.
unsafe impl PatchText for Kernel {
    fn patch_text<R>(f: impl FnOnce() -> R) -> R {
        stop::with_other_cpus_stopped(f)
    }
}
