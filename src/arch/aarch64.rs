//! AArch64: the patched entry and the stubs behind it. What is as on x86-64 is
//! explained there; here, what differs.
//!
//! A function compiled with `-Zpatchable-function-entry=10,8`:
//!
//! ```text
//! func-32   set of callbacks, 2 bytes      ┐ together `udf #set`, if it is
//! func-30   marker, 2 bytes                ┘ ever executed
//! func-28   NOP × 4
//! func-12   adr x16, func                  ┐
//! func-8    adr x17, body                  │ the thunk
//! func-4    b stub                         ┘
//! func      (bti c, where the compiler puts one)
//! entry     NOP, or b func-12
//! entry+4   NOP, then bti c                the body begins here
//! entry+8   (paciasp …)
//! ```
//!
//! NOP and B are among the few instructions that may replace one another while
//! another CPU executes them. The stub enters the body by an indirect branch,
//! which must land on a `bti c` where the page is guarded: so the second NOP
//! becomes one.
//!
//! # The return slot
//!
//! A call does not store its return address: it comes in `x30`, and the body's
//! prologue puts it wherever it likes. Nothing may stay on the stack while the
//! body runs, for its stack arguments begin at the stack pointer. `E` is the
//! stack pointer at the call; the slot is `E-8`:
//!
//! ```text
//!            entered        in enter        in the body      in leave
//! E          stack args     stack args      stack args       stack args
//! E-8        -              caller's ret    body's own       address of 2:,
//!                                                            then caller's ret
//! E-16       -              x29  ← x29      body's own       x29  ← x29
//! below                     Registers ← sp                   Registers ← sp
//! x30        caller's ret   -               address of 2:    -
//! ```
//!
//! So in the stub the slot is the return address of a frame record, as an
//! unwinder expects it. In the body it is any word of the body's frame, and
//! what an unwinder finds in the body's own record is the address of `2:`,
//! signed where functions sign it. [`chain`] tells how it is found.
//!
//! # Preserved on both ways
//!
//! `x0` to `x15` and all of `q0` to `q31` (where the build has them): more than
//! the ABI demands, as on x86-64. `x16` and `x17` belong to what lies between a
//! call and its callee. `x18` is the platform's: on hosts that leave it to the
//! compiler it is preserved; on bare metal it is left alone, since a kernel may
//! keep something of the CPU in it, and a task can be on another CPU when a
//! callback is done. SVE's registers are not saved: no such type can be an
//! argument in Rust, and code that is handed one must be excluded.

use core::arch::naked_asm;
use core::mem::offset_of;

use static_assertions::const_assert;

use super::stub;
use crate::hook::Global;
use crate::hook::patch::{enter, leave};

pub(crate) mod chain;
pub(crate) mod entry;
mod interrupted;

pub(crate) use interrupted::{IN_THUNK, PLACES, Place};

/// `q0` to `q31`.
const VECTORS: usize = if cfg!(target_feature = "neon") { 32 } else { 0 };

/// On AArch64, the first eight integer arguments and `x0` can be read.
#[repr(C, align(16))]
pub struct Registers {
    // First, where the offsets of the general registers' pairs reach.
    x: [usize; 16],
    x18: usize,
    func: usize,
    body: usize,
    _align: usize,
    vectors: [u128; VECTORS],
}

// The stub subtracts this from a stack pointer that is aligned to 16.
const_assert!(size_of::<Registers>().is_multiple_of(16));
// The reach of a pair's offset: 7 bits, signed, in units of its registers.
const_assert!(offset_of!(Registers, body) <= 63 * 8);
const_assert!(size_of::<Registers>() - 32 <= 63 * 16);

impl Registers {
    /// The `n`th integer argument, from 0, where it was passed in a register
    /// (the first eight are). At a return these registers hold no arguments.
    #[must_use]
    pub fn argument(&self, n: usize) -> Option<usize> {
        self.x.get(..8)?.get(n).copied()
    }

    /// The first return register (`x0`), meaningful at a return.
    #[must_use]
    pub fn return_value(&self) -> usize {
        let [x0, ..] = self.x;
        x0
    }
}

impl core::fmt::Debug for Registers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            x,
            x18,
            func,
            body: _,
            _align,
            vectors: _,
        } = self;
        f.debug_struct("Registers")
            .field("x", x)
            .field("x18", x18)
            .field("func", func)
            .finish_non_exhaustive()
    }
}

/// `$op` for pairs of registers of `size` bytes, from operand `$base` on.
macro_rules! pairs {
    ($op:literal, $r:literal, $base:literal, $size:literal: $($a:literal $b:literal),*) => {
        concat!($(
            $op, " ", $r, $a, ", ", $r, $b, ", [sp, #{", $base, "} + ", $size, "*", $a, "]\n",
        )*)
    };
}

macro_rules! general {
    ($op:literal) => {
        pairs!($op, "x", "x", 8: 0 1, 2 3, 4 5, 6 7, 8 9, 10 11, 12 13, 14 15)
    };
}

#[cfg(target_feature = "neon")]
macro_rules! vectors {
    ($op:literal) => {
        pairs!(
            $op, "q", "vectors", 16: 0 1, 2 3, 4 5, 6 7, 8 9, 10 11, 12 13, 14 15,
            16 17, 18 19, 20 21, 22 23, 24 25, 26 27, 28 29, 30 31
        )
    };
}

#[cfg(not(target_feature = "neon"))]
macro_rules! vectors {
    ($op:literal) => {
        "// {vectors}"
    };
}

#[cfg(target_os = "none")]
macro_rules! platform {
    ($op:literal) => {
        "// {x18}"
    };
}

#[cfg(not(target_os = "none"))]
macro_rules! platform {
    ($op:literal) => {
        concat!($op, " x18, [sp, #{x18}]")
    };
}

/// Entered by a branch from a function's thunk, with `x16` the function's
/// address, `x17` its body's, and everything else as its caller left it.
///
/// # Safety
///
/// Not to be called: it is branched to.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn patched<B: Global<N>, const N: usize>() {
    naked_asm!(
        ".xword 2f - {this}",
        // Where the return address changes its place: see `interrupted`.
        ".hword 40f - {this}, 41f - {this}, 42f - {this}, 43f - {this}",
        ".hword 44f - {this}, 45f - {this}, 3f - {this}, 46f - {this}",
        ".hword 47f - {this}",
        ".zero {pad}",
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        "40:",
        ".cfi_def_cfa sp, 16",
        ".cfi_offset x30, -8",
        ".cfi_offset x29, -16",
        "mov x29, sp",
        "41:",
        ".cfi_def_cfa x29, 16",
        "sub sp, sp, #{size}",
        general!("stp"),
        platform!("str"),
        vectors!("stp"),
        "stp x16, x17, [sp, #{func}]",
        // enter(registers, slot, func) -> whether to come back
        "mov x0, sp",
        "add x1, x29, #8",
        "mov x2, x16",
        "bl {enter}",
        // Both ways load everything: no register is left to hold the answer.
        "tbz w0, #0, 3f",
        vectors!("ldp"),
        platform!("ldr"),
        general!("ldp"),
        "ldr x17, [sp, #{body}]",
        "mov sp, x29",
        ".cfi_def_cfa sp, 16",
        "ldr x29, [sp], #16",
        "42:",
        ".cfi_def_cfa sp, 0",
        ".cfi_restore x29",
        // From here on only the shadow stack knows the caller.
        ".cfi_undefined x30",
        "blr x17",
        "2:",
        // Not what the body left in x30: it may have returned by another
        // register.
        "adr x30, 2b",
        "stp x29, x30, [sp, #-16]!",
        "43:",
        ".cfi_def_cfa sp, 16",
        ".cfi_offset x29, -16",
        "mov x29, sp",
        "44:",
        ".cfi_def_cfa x29, 16",
        "sub sp, sp, #{size}",
        general!("stp"),
        platform!("str"),
        vectors!("stp"),
        // leave(registers, slot) -> the address to go to
        "mov x0, sp",
        "add x1, x29, #8",
        "bl {leave}",
        "str x0, [x29, #8]",
        ".cfi_offset x30, -8",
        vectors!("ldp"),
        platform!("ldr"),
        general!("ldp"),
        "mov sp, x29",
        ".cfi_def_cfa sp, 16",
        "ldp x29, x30, [sp], #16",
        "45:",
        ".cfi_def_cfa sp, 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        // Nobody wants the return: on as if nothing had been.
        "3:",
        ".cfi_def_cfa x29, 16",
        ".cfi_offset x30, -8",
        ".cfi_offset x29, -16",
        vectors!("ldp"),
        platform!("ldr"),
        general!("ldp"),
        "ldr x17, [sp, #{body}]",
        "mov sp, x29",
        ".cfi_def_cfa sp, 16",
        "ldp x29, x30, [sp], #16",
        "46:",
        ".cfi_def_cfa sp, 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "br x17",
        "47:",
        ".cfi_endproc",
        this = sym patched::<B, N>,
        pad = const stub::HEADER_PAD,
        enter = sym enter::<B, N>,
        leave = sym leave::<B, N>,
        size = const size_of::<Registers>(),
        x = const offset_of!(Registers, x),
        x18 = const offset_of!(Registers, x18),
        func = const offset_of!(Registers, func),
        body = const offset_of!(Registers, body),
        vectors = const offset_of!(Registers, vectors),
    )
}

const_assert!(offset_of!(Registers, body) == offset_of!(Registers, func) + 8);

/// Where a call returns to whose caller is lost.
///
/// # Safety
///
/// Not to be called.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn trap() {
    naked_asm!("udf #0")
}

/// Marks the function as one that ran, and goes on with it.
///
/// # Safety
///
/// Not to be called: it is branched to, while text is writable.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn learn() {
    naked_asm!(
        "str x0, [sp, #-16]!",
        "mov w0, #{ran}",
        "strh w0, [x16, #-{padding}]",
        "ldr x0, [sp], #16",
        "br x17",
        padding = const entry::PADDING,
        ran = const entry::RAN,
    )
}
