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
    naked_asm!("mov rax, rdi", "mov rcx, rdx", "rep movsb", "ret")
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
        "mov rax, rdi",
        "mov rcx, rdx",
        "mov r8, rdi",
        "sub r8, rsi",
        "cmp r8, rdx",
        "jb 2f",
        "rep movsb",
        "ret",
        "2:",
        "lea rdi, [rdi + rcx - 1]",
        "lea rsi, [rsi + rcx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
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
        "mov r8, rdi",
        "mov eax, esi",
        "mov rcx, rdx",
        "rep stosb",
        "mov rax, r8",
        "ret"
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
        "mov rcx, rdx",
        "xor eax, eax",
        "cmp eax, eax", // equal, if there is nothing to compare
        "repe cmpsb",
        "je 2f",
        "movzx eax, byte ptr [rdi - 1]",
        "movzx ecx, byte ptr [rsi - 1]",
        "sub eax, ecx",
        "2: ret",
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
    naked_asm!("jmp {}", sym memcmp)
}

/// `strlen` of C, which `CStr` calls.
///
/// # Safety
///
/// Its contract.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    naked_asm!(
        "xor eax, eax",
        "2: cmp byte ptr [rdi + rax], 0",
        "je 3f",
        "inc rax",
        "jmp 2b",
        "3: ret",
    )
}
