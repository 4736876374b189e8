//! Slots that are none, registers that a caller relied on: by hand.

use std::arch::naked_asm;

use crate::graph::trace;

#[cfg(feature = "fentry")]
#[allow(dead_code)]
unsafe extern "C" {
    #[link_name = "__fentry__"]
    fn hook();
}
#[cfg(feature = "mcount")]
unsafe extern "C" {
    #[link_name = "mcount"]
    fn hook();
}
#[cfg(feature = "sancov")]
unsafe extern "C" {
    #[link_name = "__sanitizer_cov_trace_pc"]
    fn hook();
}

/// Calls the hook with `frame` as the frame pointer, as the first function of
/// a task does.
#[cfg(not(feature = "fentry"))]
#[unsafe(naked)]
unsafe extern "C" fn hook_with(frame: usize) {
    naked_asm!(
        "push rbp",
        "mov rbp, rdi",
        "call {hook}",
        "mov rax, rbp",
        "pop rbp",
        "ret",
        hook = sym hook,
    )
}

/// All that a call may leave alone: general registers but `rsp`, then vectors.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq, Debug)]
struct State {
    general: [u64; 15],
    _align: u64,
    vectors: [[u64; 2]; 16],
}

/// Loads `*given` into the registers, calls `f`, stores them into `*got`.
/// `r11` is the caller's and is left out.
#[unsafe(naked)]
unsafe extern "C" fn around(f: unsafe extern "C" fn(), given: *const State, got: *mut State) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "push rdi",
        "sub rsp, 8",
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "movups xmm\\i, [rsi + 128 + 16*\\i]",
        ".endr",
        "mov rax, [rsi]",
        "mov rbx, [rsi + 8]",
        "mov rcx, [rsi + 16]",
        "mov rdx, [rsi + 24]",
        "mov rdi, [rsi + 40]",
        "mov rbp, [rsi + 48]",
        "mov r8, [rsi + 56]",
        "mov r9, [rsi + 64]",
        "mov r10, [rsi + 72]",
        "mov r12, [rsi + 88]",
        "mov r13, [rsi + 96]",
        "mov r14, [rsi + 104]",
        "mov r15, [rsi + 112]",
        "mov rsi, [rsi + 32]",
        "call [rsp + 8]",
        "mov r11, [rsp + 16]",
        "mov [r11], rax",
        "mov [r11 + 8], rbx",
        "mov [r11 + 16], rcx",
        "mov [r11 + 24], rdx",
        "mov [r11 + 32], rsi",
        "mov [r11 + 40], rdi",
        "mov [r11 + 48], rbp",
        "mov [r11 + 56], r8",
        "mov [r11 + 64], r9",
        "mov [r11 + 72], r10",
        "mov [r11 + 88], r12",
        "mov [r11 + 96], r13",
        "mov [r11 + 104], r14",
        "mov [r11 + 112], r15",
        ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "movups [r11 + 128 + 16*\\i], xmm\\i",
        ".endr",
        "add rsp, 24",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// A function that is hooked and does nothing, as a compiler makes it.
#[unsafe(naked)]
unsafe extern "C" fn nothing() {
    #[cfg(feature = "fentry")]
    naked_asm!("call {hook}", "ret", hook = sym hook);
    #[cfg(not(feature = "fentry"))]
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "call {hook}",
        "pop rbp",
        "ret",
        hook = sym hook,
    );
}

/// What the processor pushes, and a handler as a compiler makes it.
#[unsafe(naked)]
unsafe extern "C" fn interrupt() {
    naked_asm!(
        "mov r11, rsp",
        "mov eax, ss",
        "push rax",
        "push r11",
        "pushfq",
        "mov eax, cs",
        "push rax",
        "lea rax, [rip + 2f]",
        "push rax",
        // The handler.
        #[cfg(feature = "fentry")]
        "call {hook}",
        "push rbp",
        "mov rbp, rsp",
        #[cfg(not(feature = "fentry"))]
        "call {hook}",
        "pop rbp",
        "iretq",
        "2:",
        "ret",
        hook = sym hook,
    )
}

pub fn slots() {
    let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut given = State {
        general: core::array::from_fn(word),
        _align: 0,
        vectors: core::array::from_fn(|i| [word(100 + i), word(200 + i)]),
    };
    given.general[10] = 0;
    let cleared = State {
        general: [0; 15],
        vectors: [[0; 2]; 16],
        ..given
    };
    let at = nothing as unsafe extern "C" fn() as usize;
    let (got, events) = trace(&[(at, "nothing")], || {
        let mut got = cleared;
        // SAFETY: `nothing` is called as any function is.
        unsafe { around(nothing, &given, &mut got) };
        got
    });
    assert_eq!(got, given);
    assert_eq!(crate::graph::short(&events), "+nothing -nothing");

    let at = interrupt as unsafe extern "C" fn() as usize;
    let ((), events) = trace(&[(at, "interrupt")], || {
        // SAFETY: it returns to itself, and then to here.
        (0..3).for_each(|_| unsafe { interrupt() });
    });
    assert_eq!(events, []);

    #[cfg(not(feature = "fentry"))]
    {
        let at = hook_with as unsafe extern "C" fn(usize) as usize;
        // Null, and what would be at the end of the null page; not aligned,
        // with real memory below; a slot that holds no address of code.
        let small = [0_usize, 3, 0, 0];
        let aligned = &raw const small as usize;
        let ((), events) = trace(&[(at, "root")], || {
            for frame in [0, 8, 4088, aligned + 1, aligned + 4, aligned] {
                // SAFETY: the hook reads a slot only where there is one.
                unsafe { hook_with(frame) };
            }
        });
        assert_eq!(events, []);
        assert_eq!(small, [0, 3, 0, 0]);
    }
}
