//! From one task's stack to another's.

use core::arch::naked_asm;
use core::mem::offset_of;

use crate::cpu::Cpu;
use crate::task::Task;

/// Saves the running task's stack pointer in `save`, and goes on where `next`
/// was saved at `sp`.
///
/// `current` changes here, in the instruction before the stack does, so no
/// function is ever entered or left between the two. Naked, so it has no
/// patchable entry itself: its caller is entered in one task and returns in
/// the same one, later.
///
/// # Safety
///
/// `sp` comes from here or from [`prepare_stack`], and nobody runs on it.
/// Interrupts are off. `next` is a task of a static table.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(save: *mut usize, sp: usize, next: *const Task) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov gs:[{current}], rdx",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        current = const offset_of!(Cpu, current),
    )
}

/// Writes a stack from which [`switch`] goes to `entry`; returns what it takes
/// as `sp`. Above the entry's address lies the zero at which chains end.
///
/// # Safety
///
/// `top` is the end of a stack that nobody runs on, aligned to 16.
pub(crate) unsafe fn prepare_stack(top: usize, entry: extern "C" fn() -> !) -> usize {
    let words = [0, 0, 0, 0, 0, 0, entry as usize, 0];
    let sp = top - size_of_val(&words);
    // SAFETY: the caller's contract.
    unsafe { (sp as *mut [usize; 8]).write(words) };
    sp
}
