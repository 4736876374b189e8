//! From one task's stack to another's.

use core::arch::naked_asm;

use crate::task::Task;

/// Words of what [`switch`] saves: x19 to x30, d8 to d15.
const SAVED: usize = 20;

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
        "sub sp, sp, #{size}",
        "stp x29, x30, [sp]",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "msr sp_el0, x2",
        "mov sp, x1",
        "ldp x29, x30, [sp]",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #{size}",
        "ret",
        size = const SAVED * size_of::<usize>(),
    )
}

/// Where a task's first switch returns to: `entry` is in x19, and returns
/// nowhere.
///
/// # Safety
///
/// Not to be called.
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    // The first instruction is the call that never was, for unwinders, which
    // look for it before the address that they find in x30.
    naked_asm!("nop", "mov x30, xzr", "br x19")
}

/// Writes a stack from which [`switch`] goes to `entry`; returns what it takes
/// as `sp`. The chain of frames ends there.
///
/// # Safety
///
/// `top` is the end of a stack that nobody runs on, aligned to 16.
pub(crate) unsafe fn prepare_stack(top: usize, entry: extern "C" fn() -> !) -> usize {
    let mut words = [0; SAVED];
    words[1] = begin as *const () as usize + 4;
    words[2] = entry as usize;
    let sp = top - size_of_val(&words);
    // SAFETY: the caller's contract.
    unsafe { (sp as *mut [usize; SAVED]).write(words) };
    sp
}
