//! Reading and writing one patchable entry. All functions take the address of
//! the function: the padding's end.

use core::arch::asm;
use core::ptr;

use static_assertions::const_assert;

pub(crate) use crate::arch::padding::{Padding, func};
use crate::sync::{AtomicU16, Ordering};

/// Bytes of padding before a function.
pub(crate) const PADDING: usize = 32;
/// Bytes from a function's address that [`padding`] may read: a landing pad,
/// the entry's two instructions, and the body's first.
pub(crate) const REACH: usize = 16;
/// What the learning stub writes into the set.
pub(crate) const RAN: u16 = 1;

const INSTRUCTION: usize = 4;
const MARKER: usize = 30;
const THUNK: usize = 12;

const NOP: u32 = 0xd503_201f;
const BTI_C: u32 = 0xd503_245f;
const ERET: [u32; 3] = [
    0xd69f_03e0, // eret
    0xd69f_0bff, // eretaa
    0xd69f_0fff, // eretab
];

/// The markers are upper halves of instructions that trap: `udf` and `brk`.
const READY: u16 = 0x0000;
const EXCLUDED: u16 = 0xd420;

/// `adr x«register», . + distance`, for a distance of whole instructions.
const fn adr(register: u32, distance: usize) -> u32 {
    0x1000_0000 | ((distance / INSTRUCTION) as u32) << 5 | register
}

/// `b` from one address to another; `None` if it is too far.
const fn b(from: usize, to: usize) -> Option<u32> {
    let distance = to.wrapping_sub(from) as isize >> 2;
    // 26 bits, signed.
    if distance < -(1 << 25) || distance >= 1 << 25 {
        return None;
    }
    Some(0x1400_0000 | (distance as u32 & 0x03ff_ffff))
}

const LOAD_FUNC: u32 = adr(16, THUNK);
const_assert!(adr(16, 12) == 0x1000_0070);
const_assert!(matches!(b(0x1000, 0x0ff4), Some(0x17ff_fffd)));
const_assert!(b(0, 1 << 27).is_none() && b(1 << 27, 0).is_some());

/// The instruction at an address. Their bytes are little-endian always.
///
/// # Safety
///
/// It is text, and aligned.
unsafe fn instruction(at: usize) -> u32 {
    // SAFETY: the caller's.
    u32::from_le(unsafe { (at as *const u32).read_volatile() })
}

/// Replaces the instruction at an address, in one store; [`publish`] follows.
///
/// # Safety
///
/// It is text, aligned and writable.
unsafe fn put(at: usize, instruction: u32) {
    // SAFETY: the caller's.
    unsafe { ptr::write_volatile(at as *mut u32, instruction.to_le()) };
}

/// Makes what was written to `from..to` what all CPUs fetch: each of them
/// after its next context synchronisation, which is the platform's to bring
/// about on other CPUs.
fn publish(from: usize, to: usize) {
    let types: usize;
    // SAFETY: reads a register that all levels may read.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags)) };
    // Logarithms of the lines' lengths in words of four bytes.
    let data = INSTRUCTION << (types >> 16 & 15);
    let instructions = INSTRUCTION << (types & 15);
    // SAFETY: cache maintenance changes no memory; the addresses are text.
    unsafe {
        let mut at = from & !(data - 1);
        while at < to {
            asm!("dc cvau, {}", in(reg) at, options(nostack, preserves_flags));
            at += data;
        }
        asm!("dsb ish", options(nostack, preserves_flags));
        let mut at = from & !(instructions - 1);
        while at < to {
            asm!("ic ivau, {}", in(reg) at, options(nostack, preserves_flags));
            at += instructions;
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}

/// The first of the entry's two instructions: behind the landing pad, if the
/// compiler put one.
///
/// # Safety
///
/// `func` is aligned text.
unsafe fn first(func: usize) -> usize {
    // SAFETY: the caller's. A pad of this crate's is never the first.
    if unsafe { instruction(func) } == BTI_C {
        func + INSTRUCTION
    } else {
        func
    }
}

/// The thunk's second instruction.
const fn load_body(func: usize, first: usize) -> u32 {
    adr(17, first + INSTRUCTION - (func - THUNK + INSTRUCTION))
}

/// # Safety
///
/// `func` comes from the section of patchable entries, so [`PADDING`] bytes
/// before and [`REACH`] at it are text.
pub(crate) unsafe fn padding(func: usize) -> Padding {
    if !func.is_multiple_of(INSTRUCTION) {
        return Padding::Foreign;
    }
    // SAFETY: text, by the caller, and aligned.
    unsafe {
        let words = (func - PADDING..func).step_by(INSTRUCTION);
        let first = first(func);
        let second = instruction(first + INSTRUCTION);
        // More NOPs are those of another option's.
        let is_fresh = words.into_iter().all(|at| instruction(at) == NOP)
            && (instruction(first), second) == (NOP, NOP)
            && instruction(first + 2 * INSTRUCTION) != NOP;
        if is_fresh {
            return Padding::Fresh;
        }
        let is_ready = instruction(func - THUNK) == LOAD_FUNC
            && instruction(func - THUNK + INSTRUCTION) == load_body(func, first)
            && second == BTI_C;
        let rest = instruction(func - PADDING + INSTRUCTION);
        match marker(func).read_volatile() {
            READY if is_ready && rest == NOP => Padding::Ready,
            EXCLUDED if rest == NOP => Padding::Excluded,
            _ => Padding::Foreign,
        }
    }
}

const fn marker(func: usize) -> *mut u16 {
    (func - MARKER) as *mut u16
}

#[inline(always)]
fn set_word<'a>(func: usize) -> &'a AtomicU16 {
    let set = func.wrapping_sub(PADDING) as *const AtomicU16;
    // SAFETY: called for functions whose padding is ready (or in whose place
    // the hook's tests put an aligned half-word): the half-word is text,
    // aligned, and only accessed as an atomic.
    unsafe { &*set }
}

/// The callbacks that follow `func`. Relaxed: a set that is older or newer
/// than the call is as good, and the acquire load of the epoch before it tells
/// of whom it is.
#[inline(always)]
pub(crate) fn set(func: usize) -> usize {
    usize::from(set_word(func).load(Ordering::Relaxed))
}

/// Stored at once. No instruction cache is told: it is never executed.
///
/// # Safety
///
/// Text is writable, and the padding of `func` is ready.
pub(crate) unsafe fn store_set(func: usize, set: usize) {
    set_word(func).store(set as u16, Ordering::Relaxed);
}

/// Writes the thunk to `stub`, and an empty set. False, and nothing is
/// written, if the stub is more than 128 MiB away.
///
/// # Safety
///
/// Text is writable, and `func` is a patchable function that is off.
pub(crate) unsafe fn make_ready(func: usize, stub: usize) -> bool {
    let Some(jump) = b(func - INSTRUCTION, stub) else {
        return false;
    };
    // SAFETY: the padding and the entry's second NOP.
    unsafe {
        let first = first(func);
        store_set(func, 0);
        marker(func).write_volatile(READY);
        put(func - THUNK, LOAD_FUNC);
        put(func - THUNK + INSTRUCTION, load_body(func, first));
        put(func - INSTRUCTION, jump);
        put(first + INSTRUCTION, BTI_C);
    }
    publish(func - PADDING, func + REACH);
    true
}

/// Whether `pc` is at an instruction of a thunk to `stub`, or at an entry that
/// branches to such a thunk.
///
/// # Safety
///
/// The 32 bytes around `pc` are readable.
pub(crate) unsafe fn is_in_thunk(pc: usize, stub: usize) -> bool {
    if !pc.is_multiple_of(INSTRUCTION) {
        return false;
    }
    let is = |func: usize| {
        let jump = func.wrapping_sub(INSTRUCTION);
        // SAFETY: a thunk that `pc` is in begins 8 bytes before it at most, or
        // 16 before an entry behind a landing pad.
        unsafe {
            instruction(func.wrapping_sub(THUNK)) == LOAD_FUNC
                && b(jump, stub) == Some(instruction(jump))
        }
    };
    // SAFETY: the caller's.
    let here = Some(unsafe { instruction(pc) });
    let enters = |func: usize| here == b(pc, func.wrapping_sub(THUNK)) && is(func);
    enters(pc)
        || enters(pc.wrapping_sub(INSTRUCTION))
        || (1..=3).any(|n| is(pc.wrapping_add(n * INSTRUCTION)))
}

/// Marks `func` as never to be hooked.
///
/// # Safety
///
/// As for [`make_ready`].
pub(crate) unsafe fn exclude(func: usize) {
    // SAFETY: in the padding.
    unsafe { marker(func).write_volatile(EXCLUDED) };
    publish(func - PADDING, func);
}

/// Puts a padding back as the compiler made it.
///
/// # Safety
///
/// As for [`make_ready`], and the padding of `func` is ready.
pub(crate) unsafe fn make_fresh(func: usize) {
    // SAFETY: the padding and the entry's second NOP.
    unsafe {
        for at in (func - PADDING..func).step_by(INSTRUCTION) {
            put(at, NOP);
        }
        put(first(func) + INSTRUCTION, NOP);
    }
    publish(func - PADDING, func + REACH);
}

/// Turns the entry on: its first NOP becomes a branch to the thunk.
///
/// # Safety
///
/// Text is writable, and the padding of `func` is ready.
pub(crate) unsafe fn turn_on(func: usize) {
    // SAFETY: the entry is text.
    let first = unsafe { first(func) };
    if let Some(jump) = b(first, func - THUNK) {
        // SAFETY: as above.
        unsafe { put(first, jump) };
        publish(first, first + INSTRUCTION);
    }
}

/// Turns the entry off: the NOP is put back.
///
/// # Safety
///
/// As for [`turn_on`].
pub(crate) unsafe fn turn_off(func: usize) {
    // SAFETY: the entry is text.
    let first = unsafe { first(func) };
    // SAFETY: as above.
    unsafe { put(first, NOP) };
    publish(first, first + INSTRUCTION);
}

/// Whether the function of `len` bytes returns from an exception. Any such
/// instruction counts, even one that is data.
///
/// # Safety
///
/// `len` bytes at `func` are text.
pub(crate) unsafe fn returns_from_interrupt(func: usize, len: usize) -> bool {
    (0..len / INSTRUCTION).any(|n| {
        // SAFETY: text, by the caller, and aligned as a function is.
        ERET.contains(&unsafe { instruction(func + n * INSTRUCTION) })
    })
}
