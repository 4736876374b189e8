//! The registers around a call: what differs behind it, the call has changed.
//! x86-64.

use std::arch::naked_asm;

/// All that a call may leave alone: general registers but `rsp`, then vectors.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct State {
    general: [u64; 15],
    _align: u64,
    vectors: [[u64; 2]; 16],
}

impl State {
    /// Every register holds something else. `r11` holds nothing.
    pub fn all_different() -> Self {
        let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut state = Self {
            general: core::array::from_fn(word),
            _align: 0,
            vectors: core::array::from_fn(|i| [word(100 + i), word(200 + i)]),
        };
        state.general[10] = 0;
        state
    }

    /// What all registers hold behind a call of `f` with `self` in them.
    ///
    /// # Safety
    ///
    /// `f` can be called with anything in its registers.
    pub unsafe fn behind(&self, f: unsafe extern "C" fn()) -> Self {
        let mut got = Self {
            general: [0; 15],
            _align: 0,
            vectors: [[0; 2]; 16],
        };
        // SAFETY: both states are valid; the rest is the caller's promise.
        unsafe { around(f, self, &mut got) };
        got
    }
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
