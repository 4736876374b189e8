//! x86-64: the patched entry and the stubs behind it. Assembly here is the
//! annotated master; other architectures comment their differences.
//!
//! A function compiled with `-Zpatchable-function-entry=24,16`:
//!
//! ```text
//! func-16   set of callbacks, 2 bytes      90 90      never executed
//! func-14   marker, 2 bytes                90 90      of this crate: what the padding is
//! func-12   lea r11, [rip+func]            90 × 7     ┐ the thunk, written once and
//! func-5    jmp stub                       90 × 5     ┘ left there
//! func      NOP of 8 bytes, or             0f 1f 84 00 00 02 00 00
//!           jmp func-12 in its first two   eb f2 ┊ (rest of the NOP)
//! func+8    body
//! ```
//!
//! The stack in the stub, `S` the return slot:
//!
//! ```text
//!            entered        in enter        in the body      in leave
//! S          caller's ret   caller's ret    address of 2:    address of 2:,
//!                                                            then caller's ret
//! S-8                       rbp  ← rbp      (body's own)     rbp  ← rbp
//! below                     Registers ← rsp                  Registers ← rsp
//! ```
//!
//! `rbp` makes a frame whose return address is the slot, so a frame-pointer
//! unwinder goes from a callback to the function's caller. The body is reached
//! by a call and returns by its own `ret`, the stub leaves by `ret` to where
//! its caller's call expects: every call has its return, for the return
//! predictor and for hardware shadow stacks alike.
//!
//! Preserved on both ways: every register that a function may change except
//! `r11`, which the ABI gives to code between a call and its callee. Compilers
//! that see both sides rely on more than the ABI says, so this is not cut down
//! to argument registers. The vector registers are saved as far as this build
//! can change them: none without SSE, `ymm` with AVX, `zmm` with AVX-512.

use core::arch::naked_asm;
use core::mem::offset_of;

use static_assertions::const_assert;

use super::stub;
use crate::hook::Global;
use crate::hook::patch::{enter, leave};

pub(crate) use super::on_stack as chain;

#[cfg(target_feature = "avx512f")]
const VECTOR_BYTES: usize = 64;
#[cfg(all(target_feature = "avx", not(target_feature = "avx512f")))]
const VECTOR_BYTES: usize = 32;
#[cfg(all(target_feature = "sse", not(target_feature = "avx")))]
const VECTOR_BYTES: usize = 16;
#[cfg(not(target_feature = "sse"))]
const VECTOR_BYTES: usize = 0;

#[cfg(target_feature = "avx512f")]
const VECTORS: usize = 32;
#[cfg(not(target_feature = "avx512f"))]
const VECTORS: usize = 16;

/// AVX-512's mask registers.
const MASKS: usize = if cfg!(target_feature = "avx512f") {
    8
} else {
    0
};

/// On x86-64, the first six integer arguments and `rax` can be read.
#[repr(C, align(16))]
pub struct Registers {
    vectors: [u8; VECTORS * VECTOR_BYTES],
    masks: [u64; MASKS],
    rax: usize,
    rcx: usize,
    rdx: usize,
    rsi: usize,
    rdi: usize,
    r8: usize,
    r9: usize,
    r10: usize,
    func: usize,
    _align: usize,
}

// The stub subtracts this from a stack pointer that is aligned to 16.
const_assert!(size_of::<Registers>().is_multiple_of(16));

impl Registers {
    /// The `n`th integer argument, from 0, where it was passed in a register
    /// (the first six are). At a return these registers hold no arguments.
    #[must_use]
    pub fn argument(&self, n: usize) -> Option<usize> {
        let arguments = [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9];
        arguments.get(n).copied()
    }

    /// The first return register (`rax`), meaningful at a return.
    #[must_use]
    pub fn return_value(&self) -> usize {
        self.rax
    }
}

impl core::fmt::Debug for Registers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            vectors: _,
            masks: _,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            func,
            _align,
        } = self;
        f.debug_struct("Registers")
            .field("rax", rax)
            .field("rcx", rcx)
            .field("rdx", rdx)
            .field("rsi", rsi)
            .field("rdi", rdi)
            .field("r8", r8)
            .field("r9", r9)
            .field("r10", r10)
            .field("func", func)
            .finish_non_exhaustive()
    }
}

/// `$op` for each general register of [`Registers`].
macro_rules! general {
    (save) => {
        "
        mov [rsp + {rax}], rax
        mov [rsp + {rcx}], rcx
        mov [rsp + {rdx}], rdx
        mov [rsp + {rsi}], rsi
        mov [rsp + {rdi}], rdi
        mov [rsp + {r8}], r8
        mov [rsp + {r9}], r9
        mov [rsp + {r10}], r10"
    };
    (load) => {
        "
        mov rax, [rsp + {rax}]
        mov rcx, [rsp + {rcx}]
        mov rdx, [rsp + {rdx}]
        mov rsi, [rsp + {rsi}]
        mov rdi, [rsp + {rdi}]
        mov r8, [rsp + {r8}]
        mov r9, [rsp + {r9}]
        mov r10, [rsp + {r10}]"
    };
}

/// All bits of a mask that this build can set: with byte and word operations
/// there are 64.
#[cfg(target_feature = "avx512bw")]
macro_rules! mask {
    (save) => {
        "kmovq r11, k\\i"
    };
    (load) => {
        "kmovq k\\i, r11"
    };
}

#[cfg(all(target_feature = "avx512f", not(target_feature = "avx512bw")))]
macro_rules! mask {
    (save) => {
        "kmovw r11d, k\\i"
    };
    (load) => {
        "kmovw k\\i, r11d"
    };
}

#[cfg(target_feature = "avx512f")]
macro_rules! vectors {
    (save) => {
        concat!(
            "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 [rsp + {vectors} + 64*\\i], zmm\\i
        .endr
        .irp i,0,1,2,3,4,5,6,7
        ",
            mask!(save),
            "
        mov [rsp + {masks} + 8*\\i], r11
        .endr"
        )
    };
    (load) => {
        concat!(
            "
        .irp i,0,1,2,3,4,5,6,7
        mov r11, [rsp + {masks} + 8*\\i]
        ",
            mask!(load),
            "
        .endr
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 zmm\\i, [rsp + {vectors} + 64*\\i]
        .endr"
        )
    };
}

#[cfg(all(target_feature = "avx", not(target_feature = "avx512f")))]
macro_rules! vectors {
    (save) => {
        "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu [rsp + {vectors} + 32*\\i], ymm\\i
        .endr
        # {masks}"
    };
    (load) => {
        "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu ymm\\i, [rsp + {vectors} + 32*\\i]
        .endr"
    };
}

#[cfg(all(target_feature = "sse", not(target_feature = "avx")))]
macro_rules! vectors {
    (save) => {
        "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movaps [rsp + {vectors} + 16*\\i], xmm\\i
        .endr
        # {masks}"
    };
    (load) => {
        "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movaps xmm\\i, [rsp + {vectors} + 16*\\i]
        .endr"
    };
}

#[cfg(not(target_feature = "sse"))]
macro_rules! vectors {
    (save) => {
        "# {vectors} {masks}"
    };
    (load) => {
        ""
    };
}

pub(crate) mod entry;
mod interrupted;

pub(crate) use interrupted::{IN_THUNK, PLACES, Place};

// Behind the macros that it uses.
pub(crate) mod classic;

/// Entered by a jump from a function's thunk, with `r11` the function's
/// address and everything else as its caller left it.
///
/// # Safety
///
/// Not to be called: it is jumped to.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn patched<B: Global<N>, const N: usize>() {
    naked_asm!(
        ".quad 2f - {this}",
        // Where the return address changes its place: see `interrupted`.
        ".short 40f - {this}, 41f - {this}, 42f - {this}, 43f - {this}",
        ".short 44f - {this}, 45f - {this}, 46f - {this}, 47f - {this}",
        ".short 48f - {this}",
        ".zero {pad}",
        // The entry: CFA and return address are the function's own.
        ".cfi_startproc",
        "push rbp",
        "40:",
        ".cfi_def_cfa rsp, 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        "41:",
        ".cfi_def_cfa rbp, 16",
        "sub rsp, {size}",
        "mov [rsp + {func}], r11",
        general!(save),
        vectors!(save),
        // enter(registers, slot, func) -> whether to come back
        "mov rdi, rsp",
        "lea rsi, [rbp + 8]",
        "mov rdx, [rsp + {func}]",
        "cld",
        "call {enter}",
        "test al, al",
        vectors!(load),
        general!(load),
        "mov r11, [rsp + {func}]",
        // `mov`, `lea` and `leave` keep the flags.
        "leave",
        "42:",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "lea r11, [r11 + {body}]",
        "jz 3f",
        // Somebody wants the return: the slot goes to this call's own return
        // address, so the body finds its stack arguments where they were.
        "lea rsp, [rsp + 8]",
        "43:",
        ".cfi_def_cfa_offset 0",
        // From here on only the shadow stack knows the caller.
        ".cfi_undefined rip",
        "call r11",
        "2:",
        "lea r11, [rip + 2b]",
        "push r11",
        "44:",
        ".cfi_def_cfa_offset 8",
        "push rbp",
        "45:",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        "46:",
        ".cfi_def_cfa rbp, 16",
        "sub rsp, {size}",
        general!(save),
        vectors!(save),
        // leave(registers, slot): writes the address to go to into the slot
        "mov rdi, rsp",
        "lea rsi, [rbp + 8]",
        "cld",
        "call {leave}",
        vectors!(load),
        general!(load),
        "leave",
        "47:",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        ".cfi_restore rip",
        "ret",
        // Nobody wants the return: on as if nothing had been.
        "3:",
        ".cfi_restore rip",
        ".cfi_def_cfa rsp, 8",
        "jmp r11",
        "48:",
        ".cfi_endproc",
        this = sym patched::<B, N>,
        pad = const stub::HEADER_PAD,
        enter = sym enter::<B, N>,
        leave = sym leave::<B, N>,
        size = const size_of::<Registers>(),
        body = const entry::BODY,
        vectors = const offset_of!(Registers, vectors),
        masks = const offset_of!(Registers, masks),
        rax = const offset_of!(Registers, rax),
        rcx = const offset_of!(Registers, rcx),
        rdx = const offset_of!(Registers, rdx),
        rsi = const offset_of!(Registers, rsi),
        rdi = const offset_of!(Registers, rdi),
        r8 = const offset_of!(Registers, r8),
        r9 = const offset_of!(Registers, r9),
        r10 = const offset_of!(Registers, r10),
        func = const offset_of!(Registers, func),
    )
}

/// Where a call returns to whose caller is lost.
///
/// # Safety
///
/// Not to be called.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn trap() {
    naked_asm!("ud2")
}

/// Marks the function as one that ran, and goes on with it.
///
/// # Safety
///
/// Not to be called: it is jumped to, while text is writable.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn learn() {
    naked_asm!(
        "mov byte ptr [r11 - {padding}], {ran}",
        "lea r11, [r11 + {body}]",
        "jmp r11",
        padding = const entry::PADDING,
        ran = const entry::RAN,
        body = const entry::BODY,
    )
}
