//! The functions that compilers call for memory. They are naked, so that the
//! tracer, which copies memory too, never meets them with a patchable entry.

use core::arch::naked_asm;

/// `memcpy` of C.
///
/// # Safety
///
/// Its contract.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    naked_asm!(
        "mov x3, x0",
        "2: subs x2, x2, #16",
        "b.lo 3f",
        "ldp x4, x5, [x1], #16",
        "stp x4, x5, [x3], #16",
        "b 2b",
        "3: adds x2, x2, #16",
        "b.eq 5f",
        "4: ldrb w4, [x1], #1",
        "strb w4, [x3], #1",
        "subs x2, x2, #1",
        "b.ne 4b",
        "5: ret",
    )
}

/// `memmove` of C: from the end where the two overlap that way.
///
/// # Safety
///
/// Its contract.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    naked_asm!(
        "sub x3, x0, x1",
        "cmp x3, x2",
        "b.hs {memcpy}",
        "add x1, x1, x2",
        "add x3, x0, x2",
        "2: cbz x2, 3f",
        "ldrb w4, [x1, #-1]!",
        "strb w4, [x3, #-1]!",
        "sub x2, x2, #1",
        "b 2b",
        "3: ret",
        memcpy = sym memcpy,
    )
}

/// `memset` of C.
///
/// # Safety
///
/// Its contract.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    naked_asm!(
        "mov x3, x0",
        "and x1, x1, #0xff",
        "mov x4, #0x0101010101010101",
        "mul x1, x1, x4",
        "2: subs x2, x2, #16",
        "b.lo 3f",
        "stp x1, x1, [x3], #16",
        "b 2b",
        "3: adds x2, x2, #16",
        "b.eq 5f",
        "4: strb w1, [x3], #1",
        "subs x2, x2, #1",
        "b.ne 4b",
        "5: ret",
    )
}

/// `memcmp` of C.
///
/// # Safety
///
/// Its contract.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    naked_asm!(
        "mov x3, x0",
        "mov w0, #0",
        "2: cbz x2, 3f",
        "ldrb w4, [x3], #1",
        "ldrb w5, [x1], #1",
        "sub x2, x2, #1",
        "subs w0, w4, w5",
        "b.eq 2b",
        "3: ret",
    )
}

/// `bcmp` of C.
///
/// # Safety
///
/// Its contract.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    naked_asm!("b {}", sym memcmp)
}
