# Entry and exit of interrupts and exceptions. Intel syntax.
#
# Code that was compiled elsewhere (core) keeps data below its stack pointer,
# in the ABI's red zone of 128 bytes. So nothing is ever pushed onto the
# interrupted stack directly: the processor switches to a small stack of the
# CPU, and the stub moves the frame below the red zone, onto the interrupted
# stack, where a task's registers must be if the task is to be switched away.
#
# The frame, from its lowest address (struct TrapFrame):
#   fxsave area, r15 … rax, vector, error, rbp, rip, cs, rflags, rsp, ss
# rbp lies below rip, as after a call and `push rbp`: an unwinder goes from the
# handler through the interrupted instruction to its callers.

    .macro push_others
    push rdx
    push rbx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    .endm

    .macro push_vectors
    sub rsp, 512
    fxsave64 [rsp]
    .endm

    .section .text.trap, "ax", @progbits
    .balign 16
    .globl trap_stubs
trap_stubs:
    .set vector, 0
    .rept 48
    .balign 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    push 0
    .endif
    push vector
    jmp trap_entry
    .set vector, vector + 1
    .endr

    .balign 16
trap_entry:
    # rsp: vector, error, rip, cs, rflags, rsp, ss on the CPU's entry stack.
    push rax
    push rcx
    mov rax, [rsp + 56]
    sub rax, 128
    and rax, -16
    mov rcx, [rsp + 64]
    mov [rax - 8], rcx               # ss
    mov rcx, [rsp + 56]
    mov [rax - 16], rcx              # rsp
    mov rcx, [rsp + 48]
    mov [rax - 24], rcx              # rflags
    mov rcx, [rsp + 40]
    mov [rax - 32], rcx              # cs
    mov rcx, [rsp + 32]
    mov [rax - 40], rcx              # rip
    mov [rax - 48], rbp
    mov rcx, [rsp + 24]
    mov [rax - 56], rcx              # error
    mov rcx, [rsp + 16]
    mov [rax - 64], rcx              # vector
    mov rcx, [rsp + 8]
    mov [rax - 72], rcx              # rax
    mov rcx, [rsp]
    lea rsp, [rax - 72]
    lea rbp, [rax - 48]
    push rcx
    push_others
    push_vectors
    # The task that was interrupted knows it before any Rust code runs, or the
    # handler's first function would pass for the task's own.
trap_handle:
    mov rbx, gs:[{current}]
    test rbx, rbx
    jz 1f
    inc dword ptr [rbx + {in_interrupt}]
1:  cld
    mov rdi, rsp
    call {handler}
    test rbx, rbx
    jz trap_exit
    dec dword ptr [rbx + {in_interrupt}]
    # The timer switches after the interrupt has ended as far as the count goes:
    # the task leaves as if it had called the scheduler.
    test al, al
    jz trap_exit
    call {preempt}
trap_exit:
    fxrstor64 [rsp]
    add rsp, 512
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rbx
    pop rdx
    pop rcx
    pop rax
    add rsp, 16                      # vector, error
    pop rbp
    iretq

# A double fault may mean that the interrupted stack is no good, so nothing is
# moved there. The same frame: rbp takes the place of the error code.
    .balign 16
    .globl double_fault_stub
double_fault_stub:
    xchg [rsp], rbp
    push rbp                         # error
    lea rbp, [rsp + 8]
    push 8
    push rax
    push rcx
    push_others
    push_vectors
    jmp trap_handle

# An NMI may arrive at any instruction, also in the middle of trap_entry, so it
# stays on its own stack. The same frame.
    .balign 16
    .globl nmi_stub
nmi_stub:
    push rbp
    mov rbp, rsp
    push 0
    push 2
    push rax
    push rcx
    push_others

    # Another CPU writes to text and wants this one out of the way: wait here,
    # in code that nobody ever patches, and forget what was fetched before.
    cmp dword ptr gs:[{stop}], 0
    je 2f
    mov dword ptr gs:[{stopped}], 1
1:  pause
    cmp dword ptr gs:[{stop}], 0
    jne 1b
    xor eax, eax
    cpuid
    mov dword ptr gs:[{stopped}], 0
    cmp dword ptr gs:[{nmi_wanted}], 0
    jne 2f
    push_vectors
    jmp trap_exit

2:  push_vectors
    mov rbx, gs:[{current}]
    test rbx, rbx
    jz 3f
    inc dword ptr [rbx + {in_nmi}]
3:  cld
    mov rdi, rsp
    call {nmi_handler}
    test rbx, rbx
    jz trap_exit
    dec dword ptr [rbx + {in_nmi}]
    jmp trap_exit
