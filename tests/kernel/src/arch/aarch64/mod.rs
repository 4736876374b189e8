//! AArch64: the interface of [`crate::arch`] on QEMU's `virt` machine.
//!
//! It needs atomic instructions (ARMv8.1) and a GICv3 of which it has both
//! groups, as a machine without a secure world has.

mod boot;
mod clock;
mod gic;
mod host;
mod memory;
mod switch;
mod trap;

use core::arch::asm;
use core::ptr;

pub(crate) use boot::Boot;
pub(crate) use clock::{ticks, ticks_to_ns};
pub(crate) use gic::raise_nmi;
pub(crate) use host::{exit, put_byte};
pub(crate) use switch::{prepare_stack, switch};
pub(crate) use trap::{TrapFrame, breakpoint, interrupt_stack, probe_read, step_through};

use crate::cpu::Cpu;
use crate::task::Task;

/// Where chains of callers end, below where tasks begin in Rust: a task that
/// has not come that far, and the CPUs' boots.
pub(crate) const ROOTS: [&str; 2] = [
    "kernel::arch::aarch64::switch::begin",
    "kernel::arch::aarch64::boot::",
];

/// Sets up what there is once. On the first CPU, before `init_cpu`.
pub(crate) fn init() {
    host::init();
    gic::init();
}

/// Sets up what each CPU has for itself. Interrupts stay off.
pub(crate) fn init_cpu() {
    trap::init_cpu();
    gic::init_cpu();
    clock::arm();
}

/// Starts the other CPUs and waits a little for them.
pub(crate) fn start_cpus() {
    boot::start_cpus();
}

/// Masks interrupts; says whether they were on.
#[inline(always)]
#[must_use]
pub(crate) fn interrupts_off() -> bool {
    let flags: u64;
    // SAFETY: masking interrupts breaks nothing. What follows stays behind it.
    unsafe {
        asm!("mrs {}, daif", "msr daifset, #2", out(reg) flags, options(nostack, preserves_flags));
    }
    flags & 1 << 7 == 0
}

/// Unmasks interrupts.
#[inline(always)]
pub(crate) fn interrupts_on() {
    // SAFETY: the vectors are set before anybody unmasks.
    unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
}

/// Unmasks interrupts if `on`, which `interrupts_off` said.
#[inline(always)]
pub(crate) fn interrupts_restore(on: bool) {
    if on {
        interrupts_on();
    }
}

/// Sleeps until an interrupt came, and unmasks it. It wakes the CPU though it
/// be masked, so none is missed.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: as `interrupts_on`.
    unsafe {
        asm!(
            "msr daifset, #2",
            "dsb sy",
            "wfi",
            "msr daifclr, #2",
            options(nostack)
        )
    };
}

/// Forgets what was fetched before.
pub(crate) fn serialise() {
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// The running CPU's data. With interrupts off, or the task may have moved.
#[inline(always)]
pub(crate) fn this_cpu() -> &'static Cpu {
    let cpu: *const Cpu;
    // SAFETY: the register holds the address of a `Cpu` of the static table,
    // from before the first Rust function on.
    unsafe {
        asm!("mrs {}, tpidr_el1", out(reg) cpu, options(nostack, preserves_flags, readonly));
        &*cpu
    }
}

/// The running CPU's number: right when the register was read.
#[inline(always)]
pub(crate) fn cpu_number() -> usize {
    this_cpu()
        .number
        .load(core::sync::atomic::Ordering::Relaxed) as usize
}

/// The running task; `None` before there is one. One instruction: a task that
/// is moved to another CPU before it or after it reads itself either way. The
/// register is the stack pointer of EL0, which nobody runs at.
#[inline(always)]
pub(crate) fn current() -> Option<&'static Task> {
    let task: *const Task;
    // SAFETY: null or a task of a static table.
    unsafe {
        asm!("mrs {}, sp_el0", out(reg) task, options(nostack, preserves_flags, readonly));
        task.as_ref()
    }
}

/// The caller is that task from now on: a CPU's first.
pub(crate) fn begin_current(task: &'static Task) {
    // SAFETY: what `current` reads.
    unsafe {
        asm!("msr sp_el0, {}", in(reg) ptr::from_ref(task), options(nostack, preserves_flags));
    }
}

/// The caller's frame pointer.
#[inline(always)]
pub(crate) fn frame_pointer() -> usize {
    let fp: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) fp, options(nomem, nostack, preserves_flags)) };
    fp
}
