//! Functions that are written by hand, as a compiler could have: what they do
//! with registers and the stack is known to the instruction.

use std::arch::global_asm;

/// General and vector registers, and the first words of the stack.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// `x0` to `x28`; three more make the place of `q` even.
    pub x: [usize; 32],
    pub q: [u128; 32],
    pub stack: [usize; 4],
}

impl State {
    pub const ZERO: Self = Self {
        x: [0; 32],
        q: [0; 32],
        stack: [0; 4],
    };
}

/// What [`all_registers`] was called with, and what it leaves behind.
#[unsafe(no_mangle)]
pub static mut AARCH64_SEEN: State = State::ZERO;
#[unsafe(no_mangle)]
pub static mut AARCH64_GIVEN: State = State::ZERO;

global_asm!(
    r#"
    // A patchable function, with a landing pad before its NOPs or without.
    .macro patchable name, pad
    .p2align 2
    .rept 8
    nop
    .endr
    .globl \name
    .hidden \name
    .type \name,%function
\name:
    .pushsection __patchable_function_entries,"awo",@progbits,\name
    .p2align 3
    .xword \name - 32
    .popsection
    .if \pad
    hint #34
    .endif
    nop
    nop
    .endm

    .section .text.aarch64_all_registers,"ax",%progbits
    patchable aarch64_all_registers, 0
    adrp x16, AARCH64_SEEN
    add x16, x16, :lo12:AARCH64_SEEN
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,18,19,20,21,22,23,24,25,26,27,28
    str x\n, [x16, #8*\n]
    .endr
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str q\n, [x16, #256+16*\n]
    .endr
    .irp n,0,1,2,3
    ldr x17, [sp, #8*\n]
    str x17, [x16, #768+8*\n]
    .endr
    adrp x16, AARCH64_GIVEN
    add x16, x16, :lo12:AARCH64_GIVEN
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,18
    ldr x\n, [x16, #8*\n]
    .endr
    .irp n,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr q\n, [x16, #256+16*\n]
    .endr
    ret

    // (state to call with, where to put the state after)
    .section .text.aarch64_call_with,"ax",%progbits
    .p2align 2
    .globl aarch64_call_with
    .hidden aarch64_call_with
aarch64_call_with:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    stp x19, x20, [sp, #-16]!
    stp x21, x22, [sp, #-16]!
    stp x23, x24, [sp, #-16]!
    stp x25, x26, [sp, #-16]!
    stp x27, x28, [sp, #-16]!
    stp d8, d9, [sp, #-16]!
    stp d10, d11, [sp, #-16]!
    stp d12, d13, [sp, #-16]!
    stp d14, d15, [sp, #-16]!
    stp x0, x1, [sp, #-16]!
    sub sp, sp, #32
    mov x16, x0
    .irp n,0,1,2,3
    ldr x17, [x16, #768+8*\n]
    str x17, [sp, #8*\n]
    .endr
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr q\n, [x16, #256+16*\n]
    .endr
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,18,19,20,21,22,23,24,25,26,27,28
    ldr x\n, [x16, #8*\n]
    .endr
    bl aarch64_all_registers
    ldr x16, [sp, #40]
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,18,19,20,21,22,23,24,25,26,27,28
    str x\n, [x16, #8*\n]
    .endr
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str q\n, [x16, #256+16*\n]
    .endr
    .irp n,0,1,2,3
    ldr x17, [sp, #8*\n]
    str x17, [x16, #768+8*\n]
    .endr
    add sp, sp, #48
    ldp d14, d15, [sp], #16
    ldp d12, d13, [sp], #16
    ldp d10, d11, [sp], #16
    ldp d8, d9, [sp], #16
    ldp x27, x28, [sp], #16
    ldp x25, x26, [sp], #16
    ldp x23, x24, [sp], #16
    ldp x21, x22, [sp], #16
    ldp x19, x20, [sp], #16
    ldp x29, x30, [sp], #16
    ret

    // Calls the function in x0, with a frame record that is not at the bottom
    // of its frame.
    .section .text.aarch64_plain,"ax",%progbits
    patchable aarch64_plain, 0
    sub sp, sp, #64
    stp x29, x30, [sp, #32]
    add x29, sp, #32
    blr x0
    ldp x29, x30, [sp, #32]
    add sp, sp, #64
    ret

    // As above, with a return address that is signed with key A, or B.
    .section .text.aarch64_signed_a,"ax",%progbits
    patchable aarch64_signed_a, 1
    hint #25
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    blr x0
    ldp x29, x30, [sp], #32
    hint #29
    ret

    .section .text.aarch64_signed_b,"ax",%progbits
    patchable aarch64_signed_b, 0
    hint #27
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    blr x0
    ldp x29, x30, [sp], #32
    hint #31
    ret

    // Without a frame record.
    .section .text.aarch64_bare,"ax",%progbits
    patchable aarch64_bare, 0
    str x30, [sp, #-16]!
    blr x0
    ldr x30, [sp], #16
    ret

    // Tail-calls a patchable function.
    .section .text.aarch64_tail,"ax",%progbits
    patchable aarch64_tail, 0
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    ldp x29, x30, [sp], #16
    b aarch64_plain

    // Calls the function in x0, with the link register and the stack pointer as
    // they were.
    .section .text.aarch64_early,"ax",%progbits
    patchable aarch64_early, 0
    mov x9, x0
    mov x0, x30
    mov x1, sp
    str x30, [sp, #-16]!
    blr x9
    ldr x30, [sp], #16
    ret

    // Returns its link register.
    .section .text.aarch64_link,"ax",%progbits
    patchable aarch64_link, 0
    mov x0, x30
    ret

    // Alone in its pages, which are of 64 KiB at most.
    .section .text.aarch64_guarded,"ax",%progbits
    .p2align 16
    patchable aarch64_guarded, 1
    add x0, x0, #1
    ret
    .p2align 16
    "#
);

unsafe extern "C" {
    #[link_name = "aarch64_all_registers"]
    pub fn all_registers();
    #[link_name = "aarch64_call_with"]
    pub fn call_with(with: &State, after: &mut State);
    #[link_name = "aarch64_plain"]
    pub safe fn plain(f: extern "C" fn() -> usize) -> usize;
    #[link_name = "aarch64_signed_a"]
    pub safe fn signed_a(f: extern "C" fn() -> usize) -> usize;
    #[link_name = "aarch64_signed_b"]
    pub safe fn signed_b(f: extern "C" fn() -> usize) -> usize;
    #[link_name = "aarch64_bare"]
    pub safe fn bare(f: extern "C" fn() -> usize) -> usize;
    #[link_name = "aarch64_tail"]
    pub safe fn tail(f: extern "C" fn() -> usize) -> usize;
    #[link_name = "aarch64_early"]
    pub safe fn early(f: extern "C" fn(usize, usize) -> usize) -> usize;
    #[link_name = "aarch64_link"]
    pub safe fn link() -> usize;
    #[link_name = "aarch64_guarded"]
    pub safe fn guarded(n: usize) -> usize;
}

/// One that calls another.
pub type Calling = extern "C" fn(extern "C" fn() -> usize) -> usize;
