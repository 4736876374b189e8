// Entry and exit of interrupts and exceptions.
//
// Everything runs at EL1 on one stack pointer, and code keeps nothing below it,
// so a frame is pushed onto the interrupted stack, where a task's registers must
// be if the task is to be switched away. In it (struct TrapFrame), x29 and the
// interrupted instruction's address make a frame record: an unwinder goes from
// the handler through the interrupted instruction to its callers.
//
// The processor masks everything when an exception begins. FIQ, the NMI, stays
// so only while ELR and SPSR hold what the return needs, and in its own handler.

    .set SYNC, 0
    .set IRQ, 1
    .set FIQ, 2
    .set SERROR, 3
    .set OTHER, 4

    .macro vector kind
    .balign 128
    sub sp, sp, #{size}
    stp x0, x1, [sp, #{x}]
    mov x0, #\kind
    b trap_entry
    .endm

    .macro vectors_pairs op
    \op q0, q1, [sp, #{vectors}]
    \op q2, q3, [sp, #{vectors} + 32]
    \op q4, q5, [sp, #{vectors} + 64]
    \op q6, q7, [sp, #{vectors} + 96]
    \op q8, q9, [sp, #{vectors} + 128]
    \op q10, q11, [sp, #{vectors} + 160]
    \op q12, q13, [sp, #{vectors} + 192]
    \op q14, q15, [sp, #{vectors} + 224]
    \op q16, q17, [sp, #{vectors} + 256]
    \op q18, q19, [sp, #{vectors} + 288]
    \op q20, q21, [sp, #{vectors} + 320]
    \op q22, q23, [sp, #{vectors} + 352]
    \op q24, q25, [sp, #{vectors} + 384]
    \op q26, q27, [sp, #{vectors} + 416]
    \op q28, q29, [sp, #{vectors} + 448]
    \op q30, q31, [sp, #{vectors} + 480]
    .endm

    .macro general_pairs op
    \op x2, x3, [sp, #{x} + 16]
    \op x4, x5, [sp, #{x} + 32]
    \op x6, x7, [sp, #{x} + 48]
    \op x8, x9, [sp, #{x} + 64]
    \op x10, x11, [sp, #{x} + 80]
    \op x12, x13, [sp, #{x} + 96]
    \op x14, x15, [sp, #{x} + 112]
    \op x16, x17, [sp, #{x} + 128]
    \op x18, x19, [sp, #{x} + 144]
    \op x20, x21, [sp, #{x} + 160]
    \op x22, x23, [sp, #{x} + 176]
    \op x24, x25, [sp, #{x} + 192]
    \op x26, x27, [sp, #{x} + 208]
    \op x28, x30, [sp, #{x} + 224]
    .endm

    // Adds to a count of the task in x19, if there is one.
    .macro count field, by
    cbz x19, .Lcounted\@
    ldr w1, [x19, #\field]
    add w1, w1, #\by
    str w1, [x19, #\field]
.Lcounted\@:
    .endm

    .section .text.trap, "ax", @progbits
    .balign 2048
    .globl trap_vectors
trap_vectors:
    .rept 4                          // at EL1 with the other stack pointer
    vector OTHER
    .endr
    vector SYNC
    vector IRQ
    vector FIQ
    vector SERROR
    .rept 8                          // from EL0
    vector OTHER
    .endr

    .balign 16
trap_entry:
    general_pairs stp
    add x1, sp, #{size}
    mrs x2, elr_el1
    mrs x3, spsr_el1
    mrs x4, esr_el1
    mrs x5, fpcr
    mrs x6, fpsr
    stp x29, x2, [sp, #{fp}]
    stp x1, x3, [sp, #{sp}]
    stp x4, x0, [sp, #{esr}]
    stp x5, x6, [sp, #{fpcr}]
    add x29, sp, #{fp}
    vectors_pairs stp
    // The task that was interrupted knows it before any Rust code runs, or the
    // handler's first function would pass for the task's own.
    mrs x19, sp_el0
    cmp x0, #FIQ
    b.eq nmi_entry
    tbnz x3, #6, 1f                  // it had FIQ masked: an NMI's handler
    msr daifclr, #1
1:  count {in_interrupt}, 1
    mov x0, sp
    bl {handler}
    count {in_interrupt}, -1
    // The timer switches after the interrupt has ended as far as the count goes:
    // the task leaves as if it had called the scheduler.
    tbz w0, #0, trap_exit
    bl {preempt}
trap_exit:
    msr daifset, #1
    vectors_pairs ldp
    ldp x5, x6, [sp, #{fpcr}]
    ldp x29, x2, [sp, #{fp}]
    ldr x3, [sp, #{spsr}]
    msr fpcr, x5
    msr fpsr, x6
    msr elr_el1, x2
    msr spsr_el1, x3
    general_pairs ldp
    ldp x0, x1, [sp, #{x}]
    add sp, sp, #{size}
    eret

nmi_entry:
    mrs x0, icc_iar0_el1
    cmp w0, #{none}
    b.hs trap_exit
    msr icc_eoir0_el1, x0
    isb

    // Another CPU writes to text and wants this one out of the way: wait here,
    // in code that nobody ever patches, and forget what was fetched before.
    mrs x20, tpidr_el1
    add x2, x20, #{stop}
    add x3, x20, #{stopped}
    ldar w1, [x2]
    cbz w1, 3f
    stlr w1, [x3]
2:  yield
    ldar w1, [x2]
    cbnz w1, 2b
    isb
    stlr wzr, [x3]
    ldr w1, [x20, #{nmi_wanted}]
    cbz w1, trap_exit

    // On a stack of its own, as if what it interrupted had called it.
3:  count {in_nmi}, 1
    mov x21, sp
    ldr w1, [x20, #{number}]
    add x1, x1, #1
    ldr x2, ={nmi_stack}
    adrp x3, {nmi_stacks}
    add x3, x3, :lo12:{nmi_stacks}
    madd x1, x1, x2, x3
    mov x0, sp
    mov sp, x1
    bl {nmi_handler}
    mov sp, x21
    count {in_nmi}, -1
    b trap_exit
