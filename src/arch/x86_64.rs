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

/// The registers of a traced call, as the stub saved them: the arguments at
/// its entry, what it returns at its return.
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

#[cfg(target_feature = "avx512f")]
macro_rules! vectors {
    (save) => {
        "
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 [rsp + {vectors} + 64*\\i], zmm\\i
        .endr
        .irp i,0,1,2,3,4,5,6,7
        kmovw r11d, k\\i
        mov [rsp + {masks} + 8*\\i], r11
        .endr"
    };
    (load) => {
        "
        .irp i,0,1,2,3,4,5,6,7
        mov r11, [rsp + {masks} + 8*\\i]
        kmovw k\\i, r11d
        .endr
        .irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 zmm\\i, [rsp + {vectors} + 64*\\i]
        .endr"
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

mod interrupted;

pub(crate) use interrupted::{Place, interrupted};

// Behind the macros that it uses.
pub(crate) mod classic;

/// The address of the common stub of a tracer's patched functions.
pub(crate) fn stub<B: Global<N>, const N: usize>() -> usize {
    patched::<B, N> as unsafe extern "C" fn() as usize + HEADER
}

/// The address to which calls through that stub return.
pub(crate) fn stub_return<B: Global<N>, const N: usize>() -> usize {
    let stub = patched::<B, N> as unsafe extern "C" fn() as usize;
    // SAFETY: the stub begins with this word.
    let offset = unsafe { (stub as *const usize).read_unaligned() };
    stub.wrapping_add(offset)
}

/// Bytes before the stub's code that tell where its calls return to, and where
/// the return address is meanwhile.
const HEADER: usize = (size_of::<usize>() + size_of::<interrupted::Bounds>()).next_multiple_of(16);

/// Entered by a jump from a function's thunk, with `r11` the function's
/// address and everything else as its caller left it.
///
/// # Safety
///
/// Not to be called: it is jumped to.
#[unsafe(naked)]
unsafe extern "C" fn patched<B: Global<N>, const N: usize>() {
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
        // enter(registers, slot, func, address of 2:) -> whether to come back
        "mov rdi, rsp",
        "lea rsi, [rbp + 8]",
        "mov rdx, [rsp + {func}]",
        "lea rcx, [rip + 2f]",
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
        // leave(registers, slot) -> the address to go to
        "mov rdi, rsp",
        "lea rsi, [rbp + 8]",
        "cld",
        "call {leave}",
        "mov [rbp + 8], rax",
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
        pad = const HEADER - size_of::<usize>() - size_of::<interrupted::Bounds>(),
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

/// The address to which a call returns whose caller is lost: a trap.
pub(crate) fn lost() -> usize {
    trap as unsafe extern "C" fn() as usize
}

/// # Safety
///
/// Not to be called.
#[unsafe(naked)]
unsafe extern "C" fn trap() {
    naked_asm!("ud2")
}

/// The address of the stub that marks functions instead of tracing them.
pub(crate) fn learn_stub() -> usize {
    learn as unsafe extern "C" fn() as usize
}

/// Marks the function as one that ran, and goes on with it.
///
/// # Safety
///
/// Not to be called: it is jumped to, while text is writable.
#[unsafe(naked)]
unsafe extern "C" fn learn() {
    naked_asm!(
        "mov byte ptr [r11 - {padding}], {ran}",
        "lea r11, [r11 + {body}]",
        "jmp r11",
        padding = const entry::PADDING,
        ran = const entry::RAN,
        body = const entry::BODY,
    )
}

/// Reading and writing one patchable entry. All functions take the address of
/// the function: its entry NOP.
pub(crate) mod entry {
    use core::ptr;

    use static_assertions::const_assert;

    use crate::sync::{AtomicU16, Ordering};

    /// Bytes of padding before a function.
    pub(crate) const PADDING: usize = 16;
    /// Bytes from a function's entry to its body.
    pub(crate) const BODY: usize = 8;
    /// Bytes from a function's address that [`padding`] reads.
    pub(crate) const REACH: usize = BODY;
    /// What the learning stub writes into the set.
    pub(crate) const RAN: u8 = 1;

    const THUNK: usize = 12;
    const MARKER: usize = 14;

    const NOP: [u8; BODY] = [0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00];
    const JUMP: [u8; 2] = [0xeb, 0u8.wrapping_sub(THUNK as u8 + 2)];
    /// `lea r11, [rip + 5]`: the thunk's jump lies between.
    const LOAD_FUNC: [u8; 7] = [0x4c, 0x8d, 0x1d, 0x05, 0x00, 0x00, 0x00];
    const_assert!(LOAD_FUNC.len() + 5 == THUNK);

    /// What a padding is.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Padding {
        /// As the compiler made it.
        Fresh,
        /// With set and thunk.
        Ready,
        /// Never to be hooked.
        Excluded,
        /// Not one of `-Zpatchable-function-entry=24,16`.
        Foreign,
    }

    const FRESH: u16 = 0x9090;
    const READY: u16 = 0x0b0f;
    const EXCLUDED: u16 = 0xcccc;

    /// The function of an address from the section of patchable entries.
    pub(crate) const fn func(listed: usize) -> usize {
        listed.wrapping_add(PADDING)
    }

    /// # Safety
    ///
    /// `func` comes from the section of patchable entries, so 16 bytes before
    /// and 8 at it are text.
    pub(crate) unsafe fn padding(func: usize) -> Padding {
        let at = func as *const u8;
        // SAFETY: text, by the caller.
        let (marker, entry, padding) = unsafe {
            (
                at.sub(MARKER).cast::<u16>().read_unaligned(),
                at.cast::<[u8; BODY]>().read_unaligned(),
                at.sub(PADDING).cast::<[u8; PADDING]>().read_unaligned(),
            )
        };
        let tail_is_nop = entry[2..] == NOP[2..];
        match marker {
            // A set is stored as one aligned half-word.
            FRESH if func.is_multiple_of(2) && padding == [0x90; PADDING] && entry == NOP => Padding::Fresh,
            READY if tail_is_nop => Padding::Ready,
            EXCLUDED if tail_is_nop => Padding::Excluded,
            _ => Padding::Foreign,
        }
    }

    fn set_word<'a>(func: usize) -> &'a AtomicU16 {
        let set = (func - PADDING) as *const AtomicU16;
        // SAFETY: called for functions whose padding is ready (or in whose
        // place the hook's tests put an aligned half-word): the half-word is
        // text, aligned, and only accessed as an atomic.
        unsafe { &*set }
    }

    /// The callbacks that follow `func`. Relaxed: a set that is older or newer
    /// than the call is as good.
    #[inline(always)]
    pub(crate) fn set(func: usize) -> usize {
        usize::from(set_word(func).load(Ordering::Relaxed))
    }

    /// # Safety
    ///
    /// Text is writable, and the padding of `func` is ready.
    pub(crate) unsafe fn store_set(func: usize, set: usize) {
        set_word(func).store(set as u16, Ordering::Relaxed);
    }

    /// Writes the thunk to `stub`, and an empty set. False if the stub is too
    /// far for a jump.
    ///
    /// # Safety
    ///
    /// Text is writable, and `func` is a patchable function that is off.
    pub(crate) unsafe fn make_ready(func: usize, stub: usize) -> bool {
        let distance = stub.wrapping_sub(func) as isize;
        let Ok(distance) = i32::try_from(distance) else {
            return false;
        };
        let at = func as *mut u8;
        // SAFETY: the 16 bytes before `func` are its padding.
        unsafe {
            at.sub(PADDING).cast::<u16>().write_unaligned(0);
            at.sub(MARKER).cast::<u16>().write_unaligned(READY);
            let thunk = at.sub(THUNK);
            thunk.cast::<[u8; 7]>().write_unaligned(LOAD_FUNC);
            thunk.add(7).write(0xe9);
            thunk.add(8).cast::<i32>().write_unaligned(distance);
        }
        true
    }

    /// Whether `pc` is at an instruction of a thunk to `stub`, or at an entry
    /// that jumps to such a thunk.
    ///
    /// # Safety
    ///
    /// The 32 bytes around `pc` are readable.
    pub(crate) unsafe fn is_in_thunk(pc: usize, stub: usize) -> bool {
        let jump = THUNK - LOAD_FUNC.len();
        let is = |func: usize| {
            let thunk = func.wrapping_sub(THUNK);
            // SAFETY: the thunk ends 12 bytes behind `pc` at most, and begins
            // 12 before it at most.
            unsafe {
                let load = (thunk as *const [u8; LOAD_FUNC.len()]).read_unaligned();
                let opcode = (func.wrapping_sub(jump) as *const u8).read();
                let distance = (func.wrapping_sub(jump - 1) as *const i32).read_unaligned();
                load == LOAD_FUNC
                    && opcode == 0xe9
                    && func.wrapping_add_signed(distance as isize) == stub
            }
        };
        // SAFETY: an entry is two bytes at least.
        let entered = unsafe { (pc as *const [u8; 2]).read_unaligned() } == JUMP;
        (entered && is(pc)) || is(pc.wrapping_add(THUNK)) || is(pc.wrapping_add(jump))
    }

    /// Marks `func` as never to be hooked.
    ///
    /// # Safety
    ///
    /// As for [`make_ready`].
    pub(crate) unsafe fn exclude(func: usize) {
        let at = func as *mut u8;
        // SAFETY: the 16 bytes before `func` are its padding.
        unsafe { at.sub(MARKER).cast::<u16>().write_unaligned(EXCLUDED) };
    }

    /// Puts a padding back as the compiler made it.
    ///
    /// # Safety
    ///
    /// As for [`make_ready`].
    pub(crate) unsafe fn make_fresh(func: usize) {
        let at = func as *mut u8;
        // SAFETY: the 16 bytes before `func` are its padding.
        unsafe {
            at.sub(PADDING)
                .cast::<[u8; PADDING]>()
                .write_unaligned([0x90; PADDING])
        };
    }

    /// Turns the entry on: its first two bytes become a jump to the thunk.
    ///
    /// # Safety
    ///
    /// Text is writable, and the padding of `func` is ready.
    pub(crate) unsafe fn turn_on(func: usize) {
        // SAFETY: the entry is text. One store, so that no decoder sees half
        // of it where `func` is aligned.
        unsafe { ptr::write_volatile(func as *mut u16, u16::from_ne_bytes(JUMP)) };
    }

    /// Turns the entry off: the NOP is put back exactly.
    ///
    /// # Safety
    ///
    /// As for [`turn_on`].
    pub(crate) unsafe fn turn_off(func: usize) {
        // SAFETY: as in `turn_on`.
        unsafe { ptr::write_volatile(func as *mut u16, u16::from_ne_bytes([NOP[0], NOP[1]])) };
    }

    /// Whether the function of `len` bytes returns from an interrupt: its
    /// "return slot" is then the interrupted instruction. Any `iretq` in it
    /// counts, even one in the bytes of another instruction: a function too
    /// many is left untraced, never one too few.
    ///
    /// # Safety
    ///
    /// `len` bytes at `func` are text.
    pub(crate) unsafe fn returns_from_interrupt(func: usize, len: usize) -> bool {
        // SAFETY: text, by the caller.
        let body = unsafe { core::slice::from_raw_parts(func as *const u8, len) };
        body.windows(2).any(|pair| pair == [0x48, 0xcf])
    }
}
