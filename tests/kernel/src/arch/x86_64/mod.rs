//! x86-64: the interface of [`crate::arch`] on a PC as QEMU makes it.

mod apic;
mod boot;
mod clock;
mod descriptors;
mod memory;
mod port;
mod switch;
mod trap;

use core::arch::asm;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::Ordering;

pub(crate) use apic::raise_nmi;
pub(crate) use boot::Boot;
pub(crate) use clock::{ticks, ticks_to_ns};
pub(crate) use descriptors::interrupt_stack;
pub(crate) use port::{exit, put_byte};
pub(crate) use switch::{prepare_stack, switch};
pub(crate) use trap::{TrapFrame, breakpoint, probe_read, step_through};

use crate::cpu::Cpu;
use crate::task::Task;

/// Where chains of callers end, below where tasks begin in Rust: the CPUs' boots.
pub(crate) const ROOTS: [&str; 1] = ["kernel::arch::x86_64::boot::"];

/// Sets up what there is once. On the first CPU, before `init_cpu`.
pub(crate) fn init() {
    port::init();
    clock::calibrate();
}

/// Sets up what each CPU has for itself. Interrupts stay off.
pub(crate) fn init_cpu() {
    descriptors::load(cpu_number());
    apic::init();
}

/// Starts the other CPUs and waits a little for them.
pub(crate) fn start_cpus() {
    apic::start_cpus();
}

/// Masks interrupts; says whether they were on.
#[inline(always)]
#[must_use]
pub(crate) fn interrupts_off() -> bool {
    let flags: u64;
    // SAFETY: masking interrupts breaks nothing; the stack is used as a stack.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags & 1 << 9 != 0
}

/// Unmasks interrupts.
#[inline(always)]
pub(crate) fn interrupts_on() {
    // SAFETY: the descriptors are loaded before anybody unmasks.
    unsafe { asm!("sti") };
}

/// Unmasks interrupts if `on`, which `interrupts_off` said.
#[inline(always)]
pub(crate) fn interrupts_restore(on: bool) {
    if on {
        interrupts_on();
    }
}

/// Unmasks interrupts and sleeps until one came. `sti` takes effect after the
/// next instruction, so none is missed between the two.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: as `interrupts_on`.
    unsafe { asm!("sti", "hlt") };
}

/// Forgets what was fetched before.
pub(crate) fn serialise() {
    core::arch::x86_64::__cpuid(0);
}

/// The running CPU's data. With interrupts off, or the task may have moved.
#[inline(always)]
pub(crate) fn this_cpu() -> &'static Cpu {
    let cpu: *const Cpu;
    // SAFETY: gs is the address of a `Cpu` of the static table, from before
    // the first Rust function on; its first field says it in a form to load.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) cpu, const offset_of!(Cpu, this),
            options(nostack, preserves_flags, readonly));
        &*cpu
    }
}

/// The running CPU's number: one instruction, so right when it was read.
#[inline(always)]
pub(crate) fn cpu_number() -> usize {
    let number: u32;
    // SAFETY: as in `this_cpu`.
    unsafe {
        asm!("mov {:e}, gs:[{}]", out(reg) number, const offset_of!(Cpu, number),
            options(nostack, preserves_flags, readonly));
    }
    number as usize
}

/// The running task; `None` before there is one. One instruction: a task that
/// is moved to another CPU before it or after it reads itself either way.
#[inline(always)]
pub(crate) fn current() -> Option<&'static Task> {
    let task: *const Task;
    // SAFETY: as in `this_cpu`; the field is null or a task of a static table.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) task, const offset_of!(Cpu, current),
            options(nostack, preserves_flags, readonly));
        task.as_ref()
    }
}

/// The caller is that task from now on: a CPU's first.
pub(crate) fn begin_current(task: &'static Task) {
    let task = ptr::from_ref(task).cast_mut();
    this_cpu().current.store(task, Ordering::Relaxed);
}

/// The caller's frame pointer.
#[inline(always)]
pub(crate) fn frame_pointer() -> usize {
    let rbp: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    rbp
}
