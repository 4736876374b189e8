//! Cases of registers and instructions: what a caller may rely on.

use std::arch::{asm, naked_asm};
use std::hint::black_box;

use crate::fixture::{Rec, patched};

/// A function with a patchable entry whose body changes nothing: what differs
/// around a call of it, the hook has changed.
#[inline(never)]
extern "C" fn nothing() {}

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
unsafe extern "C" fn around(f: extern "C" fn(), given: *const State, got: *mut State) {
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

#[test]
fn caller_relied_on_a_register_that_the_trampoline_changed() {
    let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut given = State {
        general: core::array::from_fn(word),
        _align: 0,
        vectors: core::array::from_fn(|i| [word(100 + i), word(200 + i)]),
    };
    given.general[10] = 0;
    let mut got = State {
        general: [0; 15],
        vectors: [[0; 2]; 16],
        ..given
    };
    let cleared = got;
    // SAFETY: `nothing` is called as any function is.
    unsafe { around(nothing, &given, &mut got) };
    assert_eq!(got, given, "untraced");
    let patched = patched(64);
    for accept in [true, false] {
        let rec = if accept {
            Rec::<2>::new()
        } else {
            Rec::<2>::which(|_| false)
        };
        let _follow = patched.follow(rec, &[nothing as extern "C" fn() as usize]);
        got = cleared;
        // SAFETY: as above.
        unsafe { around(nothing, &given, &mut got) };
        assert_eq!(got, given, "wants the return: {accept}");
        assert_eq!(rec.events().len(), if accept { 2 } else { 0 });
    }
}

#[inline(never)]
fn many(a: [u64; 9], b: f64, c: u8, d: &[u8], e: i128) -> [u64; 3] {
    let sum = a.iter().sum::<u64>() + b as u64 + u64::from(c);
    [sum, d.iter().map(|&x| u64::from(x)).sum(), (e >> 3) as u64]
}

#[test]
fn stack_arguments_and_memory_results_are_lost() {
    let call = || {
        let a = core::array::from_fn(|i| i as u64 * 3);
        black_box(many(black_box(a), 2.5, 9, &[1, 2, 3], -80))
    };
    let untraced = call();
    let patched = patched(64);
    let at = many as fn([u64; 9], f64, u8, &'static [u8], i128) -> [u64; 3] as usize;
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[at]);
    assert_eq!(call(), untraced);
    assert_eq!(rec.events().len(), 2);
}

#[test]
fn trampoline_disables_interrupts_in_user_mode() {
    let selector: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cs", out(reg) selector) };
    assert_eq!(selector & 3, 3, "this is user mode: `cli` faults");
    let patched = patched(64);
    let rec = Rec::<1>::new();
    let _follow = patched.follow(rec, &[nothing as extern "C" fn() as usize]);
    black_box(nothing as extern "C" fn())();
    assert_eq!(rec.events().len(), 2);
}
