//! Every register, on the way into a traced function and on the way out.
//!
//! Callee and caller are assembly: the caller loads a pattern into all
//! registers and calls; the callee stores what it finds, loads a second
//! pattern and returns; the caller stores what it gets. Compilers that see both
//! sides rely on more than the ABI says, so nothing but `r11` and the
//! arithmetic flags may differ.

use std::arch::{global_asm, naked_asm};
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use crate::callbacks::{Alone, Wrecker};

/// All that a processor holds for a program.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq, Debug)]
struct State {
    /// `rax`, `rbx`, `rcx`, `rdx`, `rsi`, `rdi`, `rbp`, `r8` to `r10`, `r12` to
    /// `r15`.
    general: [u64; 14],
    rsp: u64,
    flags: u64,
    vectors: [[u64; 2]; 16],
    /// The words above the return address.
    arguments: [u64; 4],
    /// The newest x87 register.
    st: [u8; 10],
    /// x87 control and status.
    control: u16,
    status: u16,
    mxcsr: u32,
}

const ZERO: State = State {
    general: [0; 14],
    rsp: 0,
    flags: 0,
    vectors: [[0; 2]; 16],
    arguments: [0; 4],
    st: [0; 10],
    control: 0,
    status: 0,
    mxcsr: 0,
};

/// What the callee has found, and what it gives back.
static mut FOUND: State = ZERO;
static mut GIVEN_BACK: State = ZERO;

macro_rules! store_registers {
    ($at:literal) => {
        concat!(
            "
            mov [",
            $at,
            "], rax
            mov [",
            $at,
            " + 8], rbx
            mov [",
            $at,
            " + 16], rcx
            mov [",
            $at,
            " + 24], rdx
            mov [",
            $at,
            " + 32], rsi
            mov [",
            $at,
            " + 40], rdi
            mov [",
            $at,
            " + 48], rbp
            mov [",
            $at,
            " + 56], r8
            mov [",
            $at,
            " + 64], r9
            mov [",
            $at,
            " + 72], r10
            mov [",
            $at,
            " + 80], r12
            mov [",
            $at,
            " + 88], r13
            mov [",
            $at,
            " + 96], r14
            mov [",
            $at,
            " + 104], r15
            mov [",
            $at,
            " + {rsp}], rsp
            pushfq
            pop [",
            $at,
            " + {flags}]
            .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
            movups [",
            $at,
            " + {vectors} + 16*\\i], xmm\\i
            .endr
            stmxcsr [",
            $at,
            " + {mxcsr}]
            fnstcw [",
            $at,
            " + {control}]
            fnstsw [",
            $at,
            " + {status}]"
        )
    };
}

/// From `r11`; that register is the last one to be lost.
macro_rules! load_registers {
    () => {
        "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movups xmm\\i, [r11 + {vectors} + 16*\\i]
        .endr
        ldmxcsr [r11 + {mxcsr}]
        fldcw [r11 + {control}]
        mov rax, [r11]
        mov rbx, [r11 + 8]
        mov rcx, [r11 + 16]
        mov rdx, [r11 + 24]
        mov rsi, [r11 + 32]
        mov rdi, [r11 + 40]
        mov rbp, [r11 + 48]
        mov r8, [r11 + 56]
        mov r9, [r11 + 64]
        mov r10, [r11 + 72]
        mov r12, [r11 + 80]
        mov r13, [r11 + 88]
        mov r14, [r11 + 96]
        mov r15, [r11 + 104]"
    };
}

// A function with patchable entries, as a compiler makes it: sixteen bytes of
// padding, listed by its address, then the NOP of eight bytes.
global_asm!(
    ".pushsection .text.fgraph_abi,\"ax\",@progbits",
    ".balign 16",
    "padding_abi_callee:",
    ".fill 16, 1, 0x90",
    ".globl abi_callee",
    ".type abi_callee,@function",
    "abi_callee:",
    ".byte 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00",
    "lea r11, [rip + {found}]",
    store_registers!("r11"),
    ".irp i,0,1,2,3",
    "mov rax, [rsp + 8 + 8*\\i]",
    "mov [r11 + {arguments} + 8*\\i], rax",
    ".endr",
    "lea r11, [rip + {given_back}]",
    // A `long double` is returned there.
    "fld tbyte ptr [r11 + {st}]",
    load_registers!(),
    "ret",
    ".size abi_callee, . - abi_callee",
    ".pushsection __patchable_function_entries,\"awo\",@progbits,abi_callee",
    ".balign 8",
    ".quad padding_abi_callee",
    ".popsection",
    ".popsection",
    found = sym FOUND,
    given_back = sym GIVEN_BACK,
    rsp = const offset_of!(State, rsp),
    flags = const offset_of!(State, flags),
    vectors = const offset_of!(State, vectors),
    arguments = const offset_of!(State, arguments),
    st = const offset_of!(State, st),
    control = const offset_of!(State, control),
    status = const offset_of!(State, status),
    mxcsr = const offset_of!(State, mxcsr),
);

unsafe extern "C" {
    fn abi_callee();
}

/// Loads `*given` into the registers, calls `f`, stores them into `*got`.
/// Notes the stack pointer of the call in `given.rsp`.
#[unsafe(naked)]
unsafe extern "C" fn around(f: unsafe extern "C" fn(), given: *mut State, got: *mut State) {
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
        "push [rsi + {arguments} + 24]",
        "push [rsi + {arguments} + 16]",
        "push [rsi + {arguments} + 8]",
        "push [rsi + {arguments}]",
        "mov [rsi + {rsp}], rsp",
        "mov r11, rsi",
        load_registers!(),
        "call [rsp + 40]",
        "mov r11, [rsp + 48]",
        store_registers!("r11"),
        "fstp tbyte ptr [r11 + {st}]",
        // As the rest of the program wants them.
        "fninit",
        "mov dword ptr [rsp], 0x1f80",
        "ldmxcsr [rsp]",
        "add rsp, 56",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        rsp = const offset_of!(State, rsp),
        flags = const offset_of!(State, flags),
        vectors = const offset_of!(State, vectors),
        arguments = const offset_of!(State, arguments),
        st = const offset_of!(State, st),
        control = const offset_of!(State, control),
        status = const offset_of!(State, status),
        mxcsr = const offset_of!(State, mxcsr),
    )
}

const DIRECTION: u64 = 1 << 10;
/// How many x87 registers are in use, as a position.
const X87_TOP: u16 = 7 << 11;
/// What arithmetic sets, which the ABI lets a function set.
const MXCSR_FLAGS: u32 = 0x3f;

/// Every exception masked, rounding towards zero, denormals as zero.
const GIVEN_MXCSR: u32 = 0x7fc0;
/// Rounding down.
const BACK_MXCSR: u32 = 0x3f80;

fn pattern(seed: u64) -> State {
    let word = |i: usize| (seed + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    State {
        general: core::array::from_fn(word),
        vectors: core::array::from_fn(|i| [word(100 + i), word(200 + i)]),
        arguments: core::array::from_fn(|i| word(300 + i)),
        ..ZERO
    }
}

/// Calls the callee with all registers set, and checks each on both sides.
fn check(what: &str) {
    let mut given = pattern(7);
    // Single precision, rounding up; then extended, rounding down.
    (given.mxcsr, given.control) = (GIVEN_MXCSR, 0x087f);
    let mut back = pattern(1007);
    (back.mxcsr, back.control) = (BACK_MXCSR, 0x077f);
    // 1.1 as an extended number: a bit more than a `double` holds.
    back.st = [0xcd, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0x8c, 0xff, 0x3f];
    let mut got = ZERO;
    // SAFETY: one test at a time uses the statics, and the callee is called as
    // it wants to be.
    let found = unsafe {
        (&raw mut GIVEN_BACK).write(back);
        (&raw mut FOUND).write(ZERO);
        around(abi_callee, &raw mut given, &raw mut got);
        (&raw const FOUND).read()
    };

    assert_eq!(found.flags & DIRECTION, 0, "{what}: entry: direction");
    assert_eq!(
        found.mxcsr & !MXCSR_FLAGS,
        GIVEN_MXCSR,
        "{what}: entry: mxcsr"
    );
    assert_eq!(found.status & X87_TOP, 0, "{what}: entry: x87 stack");
    // The callee's return address lies between.
    let expected = State {
        rsp: given.rsp - 8,
        flags: found.flags,
        mxcsr: found.mxcsr,
        status: found.status,
        ..given
    };
    assert_eq!(found, expected, "{what}: entry");

    assert_eq!(got.flags & DIRECTION, 0, "{what}: return: direction");
    assert_eq!(
        got.mxcsr & !MXCSR_FLAGS,
        BACK_MXCSR,
        "{what}: return: mxcsr"
    );
    // One register is in use.
    assert_eq!(got.status & X87_TOP, X87_TOP, "{what}: return: x87 stack");
    let expected = State {
        rsp: given.rsp,
        flags: got.flags,
        mxcsr: got.mxcsr,
        status: got.status,
        arguments: [0; 4],
        ..back
    };
    assert_eq!(got, expected, "{what}: return");
}

#[test]
fn every_register_survives_both_ways() {
    let alone = Alone::new();
    let which = |func| func == abi_callee as unsafe extern "C" fn() as usize;
    check("untraced");
    for accept in [true, false] {
        let wrecker = Wrecker::<3>::new(accept);
        alone.follow(wrecker, which, || check(&format!("accept: {accept}")));
        assert_eq!(wrecker.calls(), 1);
        // What the callback saw: `rdi`, `rsi`, `rdx`, `rcx`, `r8`, `r9`.
        let general = pattern(7).general;
        let arguments = [5, 4, 3, 2, 7, 8].map(|i: usize| general[i] as usize);
        assert_eq!(
            wrecker.arguments.each_ref().map(|a| a.load(Relaxed)),
            arguments
        );
        let result = if accept { pattern(1007).general[0] } else { 0 };
        assert_eq!(wrecker.result.load(Relaxed), result as usize);
    }
    alone.follow_sixteen(which, || check("sixteen callbacks"));
    check("no longer traced");
}
