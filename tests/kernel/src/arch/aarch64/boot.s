// The first instructions of each CPU: from QEMU's loader on the first, from the
// firmware's CPU_ON on the others, both at EL1 with the MMU off.
//
// Addresses are physical for good: 512 GiB of which two are mapped, one to one,
// in blocks of 1 GiB. Device registers lie in the first; RAM begins at the
// second, writable and executable.

    .set MAIR, 0x04ff                // 0: normal, write-back; 1: device-nGnRE
    .set TCR, 0x100803519            // 4 KiB, 39 bits, cacheable, shareable, 36 bits out
    .set SCTLR, 0x30d0180d           // M, C, I, SA, and the bits that are one
    .set DEVICE, 0x0060000000000405  // never executed
    .set NORMAL, 0x0040000000000701  // inner shareable; EL0 does not execute it

    .section .data.boot, "aw", @progbits
    .balign 4096
boot_table:
    .quad DEVICE
    .quad NORMAL + 0x40000000
    .zero 4096 - 16

    .section .bss.boot, "aw", @nobits
    .balign 16
boot_stacks: .skip {stack_size} * {cpus}
    .globl boot_stacks

    .section .text.boot, "ax", @progbits
    .balign 4
    .globl boot_start
boot_start:
    mov x0, #0                       // CPU 0

// x0: number of the CPU.
    .globl boot_cpu
boot_cpu:
    msr daifset, #15
    ldr x1, =MAIR
    msr mair_el1, x1
    ldr x1, =TCR
    msr tcr_el1, x1
    adrp x1, boot_table
    msr ttbr0_el1, x1
    tlbi vmalle1
    dsb nsh
    isb
    ldr x1, =SCTLR
    msr sctlr_el1, x1
    mov x1, #3 << 20                 // floating point is not trapped
    msr cpacr_el1, x1
    adrp x1, trap_vectors
    add x1, x1, :lo12:trap_vectors
    msr vbar_el1, x1
    isb

    // Per-CPU data before any Rust code, and no task.
    adrp x1, {cpu_table}
    add x1, x1, :lo12:{cpu_table}
    ldr x2, ={cpu_size}
    madd x1, x0, x2, x1
    str w0, [x1, #{cpu_number}]
    msr tpidr_el1, x1
    msr sp_el0, xzr

    adrp x1, boot_stacks
    add x1, x1, :lo12:boot_stacks
    ldr x2, ={stack_size}
    madd x1, x0, x2, x1
    add sp, x1, x2
    mov x29, #0                      // the chain of frames ends here
    mov x30, #0
    b {main}
