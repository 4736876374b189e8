//! Reading and writing one patchable entry. All functions take the address of
//! the function: its entry NOP.

use core::arch::asm;
use core::hint::assert_unchecked;

use static_assertions::const_assert;

pub(crate) use crate::arch::padding::{Padding, func};

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

const FRESH: u16 = 0x9090;
const READY: u16 = 0x0b0f;
const EXCLUDED: u16 = 0xcccc;

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
        FRESH if padding == [0x90; PADDING] && entry == NOP => Padding::Fresh,
        READY if tail_is_nop => Padding::Ready,
        EXCLUDED if tail_is_nop => Padding::Excluded,
        _ => Padding::Foreign,
    }
}

/// Stores two bytes by one instruction. Functions that are optimised for size
/// begin at odd addresses, too: there, and across cache lines alone, another CPU
/// may see one byte before the other.
///
/// # Safety
///
/// They are text, and writable.
unsafe fn store(at: usize, bytes: [u8; 2]) {
    // SAFETY: the caller's. Other CPUs read these bytes by single instructions
    // too, or execute them.
    unsafe {
        asm!(
            "mov word ptr [{0}], {1:x}",
            in(reg) at,
            in(reg) u16::from_ne_bytes(bytes),
            options(nostack, preserves_flags)
        );
    }
}

/// The callbacks that follow `func`. A set that is older or newer than the
/// call is as good, and one of which a byte is: its bits have nothing to do
/// with each other.
#[inline(always)]
pub(crate) fn set(func: usize) -> usize {
    let set: usize;
    // SAFETY: called for functions whose padding is ready (or in whose place
    // the hook's tests put two bytes). No Rust code reads or writes them beside
    // `store`, by which they change. They are 16 bits, zero-extended.
    unsafe {
        asm!(
            "movzx {0:e}, word ptr [{1} - {padding}]",
            out(reg) set,
            in(reg) func,
            padding = const PADDING,
            options(nostack, preserves_flags, readonly)
        );
        assert_unchecked(set <= 0xffff);
    }
    set
}

/// # Safety
///
/// Text is writable, and the padding of `func` is ready.
pub(crate) unsafe fn store_set(func: usize, set: usize) {
    // SAFETY: the caller's.
    unsafe { store(func - PADDING, (set as u16).to_ne_bytes()) };
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
    unsafe { store(func, JUMP) };
}

/// Turns the entry off: the NOP is put back exactly.
///
/// # Safety
///
/// As for [`turn_on`].
pub(crate) unsafe fn turn_off(func: usize) {
    // SAFETY: as in `turn_on`.
    unsafe { store(func, [NOP[0], NOP[1]]) };
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
