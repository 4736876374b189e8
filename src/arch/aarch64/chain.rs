//! Frame records, and return addresses in them.

use core::arch::asm;

/// A call does not store its return address; its body does, in a frame record.
pub(crate) const RETURN_ON_STACK: bool = false;

/// Bytes from a frame pointer to the word that holds the caller's.
pub(crate) const CALLER: usize = 0;
/// Bytes from a frame pointer to the word that holds the return address.
pub(crate) const RETURN: usize = 8;

/// The frame pointer.
#[inline(always)]
pub(crate) fn frame_pointer() -> usize {
    let fp;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) fp, options(nomem, nostack, preserves_flags)) };
    fp
}

/// A return address without its signature: `xpaclri`, which older processors
/// take for a NOP.
pub(crate) fn strip(address: usize) -> usize {
    let stripped;
    // SAFETY: computes with two registers.
    unsafe {
        asm!(
            "mov x30, {0}",
            "hint #7",
            "mov {0}, x30",
            inout(reg) address => stripped,
            out("x30") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    stripped
}

/// `ret` in place of the return address `seen`, signed as that is, for a call
/// that entered with the stack pointer `sp`. `None` if it is signed in a way
/// that is not known.
pub(crate) fn replaced(seen: usize, ret: usize, sp: usize) -> Option<usize> {
    let plain = strip(seen);
    if seen == plain {
        return Some(ret);
    }
    for sign in [sign_with_a, sign_with_b] {
        if sign(plain, sp) == seen {
            return Some(sign(ret, sp));
        }
    }
    None
}

/// `pacia1716`: the key of `paciasp`.
fn sign_with_a(address: usize, modifier: usize) -> usize {
    let signed;
    // SAFETY: computes with two registers.
    unsafe {
        asm!(
            "hint #8",
            inout("x17") address => signed,
            in("x16") modifier,
            options(nomem, nostack, preserves_flags),
        );
    }
    signed
}

/// `pacib1716`: the key of `pacibsp`.
fn sign_with_b(address: usize, modifier: usize) -> usize {
    let signed;
    // SAFETY: computes with two registers.
    unsafe {
        asm!(
            "hint #10",
            inout("x17") address => signed,
            in("x16") modifier,
            options(nomem, nostack, preserves_flags),
        );
    }
    signed
}
