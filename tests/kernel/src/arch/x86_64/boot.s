# From the loader's 32-bit entry point to long mode, and the same for the
# other CPUs from real mode. AT&T syntax, which is the one that LLVM's
# assembler takes in all three modes.
#
# Addresses are physical for good: the first 4 GiB are mapped one to one,
# writable and executable, in pages of 2 MiB.

    .set CR0, 0x80000033             # PG, NE, ET, MP, PE; not EM, TS, CD, WP
    .set CR4, 0x620                  # PAE, OSFXSR, OSXMMEXCPT
    .set EFER, 0xc0000080
    .set EFER_LME, 0x100
    .set GS_BASE, 0xc0000101
    .set TRAMPOLINE, 0x8000          # what the start-up IPI names: page 8

# The note by which QEMU knows a PVH kernel and its entry point.
    .section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long pvh_start

    .section .rodata.boot, "a", @progbits
    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff         # 0x08: 64-bit code
    .quad 0x00cf93000000ffff         # 0x10: data
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt

    .section .bss.boot, "aw", @nobits
    .balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4 * 4096
    .balign 16
boot_stacks: .skip {stack_size} * {cpus}
    .globl boot_stacks

    .section .data.boot, "aw", @progbits
    .balign 4
next_cpu: .long 1

    .section .text.boot, "ax", @progbits
    .code32
    .globl pvh_start
pvh_start:                           # ebx: address of the start info
    cli
    cld
    movl $boot_pdpt + 3, boot_pml4
    movl $boot_pd + 3, %eax
    movl $boot_pdpt, %edi
1:  movl %eax, (%edi)
    addl $4096, %eax
    addl $8, %edi
    cmpl $boot_pdpt + 32, %edi
    jne 1b

    movl $0x83, %eax                 # present, writable, 2 MiB
    movl $boot_pd, %edi
2:  cmpl $0xc0000000, %eax
    jb 3f
    orl $0x10, %eax                  # devices above 3 GiB: not cached
3:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    cmpl $boot_pd + 4 * 4096, %edi
    jne 2b

    movl $CR4, %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $EFER, %ecx
    rdmsr
    orl $EFER_LME, %eax
    wrmsr
    movl $CR0, %eax
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmpl $0x08, $boot_long

    .code64
boot_long:
    xorl %edi, %edi                  # CPU 0
    movl %ebx, %ebp
    jmp cpu_start

# Copied to TRAMPOLINE, where the other CPUs begin in real mode.
    .code16
    .globl trampoline
trampoline:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    movl $CR4, %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $EFER, %ecx
    rdmsr
    orl $EFER_LME, %eax
    wrmsr
    lgdtl TRAMPOLINE + trampoline_gdt - trampoline
    movl $CR0, %eax
    movl %eax, %cr0
    ljmpl $0x08, $ap_long
    .balign 4
trampoline_gdt:
    .word 23
    .long boot_gdt
    .globl trampoline_end
trampoline_end:

    .code64
ap_long:
    movl $1, %edi
    lock xaddl %edi, next_cpu
    xorl %ebp, %ebp
    cmpl ${cpus}, %edi
    jb cpu_start
4:  hlt                              # more CPUs than the kernel has room for
    jmp 4b

# edi: number of the CPU, ebp: start info (CPU 0).
cpu_start:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %eax, %eax
    movw %ax, %fs
    movw %ax, %gs

    # Per-CPU data before any Rust code: what asks for the current task this
    # early reads a null pointer and not whatever lies at address 0.
    imulq ${cpu_size}, %rdi, %rax
    addq ${cpu_table}, %rax
    movq %rax, {cpu_this}(%rax)
    movl %edi, {cpu_number}(%rax)
    xorl %edx, %edx
    movl $GS_BASE, %ecx
    wrmsr

    leaq 1(%rdi), %rsp
    imulq ${stack_size}, %rsp, %rsp
    addq $boot_stacks, %rsp
    movl %ebp, %esi
    xorl %ebp, %ebp                  # the chain of frames ends here
    fninit
    pushq $0
    jmp {main}
