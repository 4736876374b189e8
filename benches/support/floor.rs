//! The least that call-through can do, by hand: no filter, no callbacks, no
//! windows, no interrupts thought of.

use std::arch::naked_asm;
use std::cell::UnsafeCell;

use fgraph::hook::patch::PatchText;

use super::tracer::Bench;

struct Stack(UnsafeCell<[(usize, usize); 256]>, UnsafeCell<usize>);

// SAFETY: the benches that use it have one thread.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([(0, 0); 256]), UnsafeCell::new(0));

/// # Safety
///
/// Called by the stub.
unsafe extern "C" fn push(func: usize, ret: usize) {
    // SAFETY: one thread; the benches nest less deep.
    unsafe {
        let top = STACK.1.get();
        (*STACK.0.get())[*top & 255] = (func, ret);
        *top += 1;
    }
}

/// # Safety
///
/// Called by the stub, after a `push`.
unsafe extern "C" fn pop() -> usize {
    // SAFETY: as in `push`.
    unsafe {
        let top = STACK.1.get();
        *top -= 1;
        (*STACK.0.get())[*top & 255].1
    }
}

/// # Safety
///
/// Entered by a jump, with `r11` the function.
#[unsafe(naked)]
unsafe extern "C" fn stub() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "mov rdi, r11",
        "mov rsi, [rsp + 56]",
        "push r11",
        "sub rsp, 8",
        "call {push}",
        "add rsp, 8",
        "pop r11",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "add rsp, 8",
        "add r11, 8",
        "call r11",
        "sub rsp, 8",
        "push rax",
        "push rdx",
        "push rdi",
        "push rsi",
        "push rcx",
        "push r8",
        "push r9",
        "call {pop}",
        "mov [rsp + 56], rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rsi",
        "pop rdi",
        "pop rdx",
        "pop rax",
        "ret",
        push = sym push,
        pop = sym pop,
    )
}

/// Hooks the functions with the floor's stub, or puts them back.
pub fn hook(functions: &[usize], on: bool) {
    Bench::patch_text(|| {
        for &func in functions {
            // SAFETY: text is writable, and these are entries of this program,
            // compiled with 16 bytes of padding and an 8-byte NOP. The padding
            // is left as the compiler made it.
            unsafe {
                let padding = (func - 12) as *mut u8;
                if on {
                    let distance = (stub as unsafe extern "C" fn() as usize).wrapping_sub(func);
                    padding
                        .cast::<[u8; 7]>()
                        .write([0x4c, 0x8d, 0x1d, 5, 0, 0, 0]);
                    padding.add(7).write(0xe9);
                    padding
                        .add(8)
                        .cast::<i32>()
                        .write_unaligned(distance as i32);
                    (func as *mut u16).write_unaligned(0xf2eb);
                } else {
                    (func as *mut u16).write_unaligned(0x1f0f);
                    padding.cast::<[u8; 12]>().write([0x90; 12]);
                }
            }
        }
    });
}
