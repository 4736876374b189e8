//! x86-64: the stubs of the classic hooks, which replace return addresses.
//! See [`x86_64`](super) for what is saved and why.
//!
//! The stack of a function that is caught after its prologue, in the stub, `S`
//! the return slot:
//!
//! ```text
//! S         caller's ret, then the address of `returned`
//! S-8       caller's rbp               ← the function's rbp
//! …         locals
//!           address in the function
//!           the function's rbp         ← rbp
//! below     Registers                  ← rsp
//! ```
//!
//! One that is caught at its entry has no frame of its own yet. The stub makes
//! one for it, so that an unwinder does not lose the caller:
//!
//! ```text
//! S         caller's ret, then the address of `returned`
//! S-8       address in the function
//! S-16      caller's ret, a copy
//! S-24      caller's rbp
//! S-32      address in the function
//! S-40      S-24                       ← rbp
//! below     Registers                  ← rsp
//! ```
//!
//! # Inside the hook
//!
//! Everything that the hook runs may itself be compiled with the hook's calls:
//! the tracer, which is generic and lands in the kernel's crate, the platform's
//! functions, what they use of `core`. The stub tells such a call from the
//! kernel's own by one bit: `NT` of the flags register, which it sets while
//! Rust code runs. The bit has what no memory has:
//!
//! - it is the running context's own: no address has to be found for it, so
//!   nothing runs before it is set or after it is cleared;
//! - the processor clears it when it delivers an interrupt, exception or NMI,
//!   and puts it back at `iretq`: what interrupts the hook is traced;
//! - compiled code does not touch it, and `pushfq` … `popfq` preserve it; it is
//!   no privileged bit.
//!
//! A table of the tracer's own functions, learnt by running them, would be
//! right only as far as every path was run; one of stacks that are inside the
//! hook can not tell an interrupt on the same stack from the tracer.
//!
//! # The return predictor
//!
//! A replaced return address mispredicts that one return, whatever one does.
//! `returned` goes on by a jump: its own `ret` would take the prediction of the
//! caller's return, and so on for all callers.

use core::arch::{asm, naked_asm};
use core::mem::offset_of;

use super::Registers;
use crate::hook::Global;
use crate::hook::classic::{catch_after_prologue, catch_at_entry, end};

/// "Nested task": without use to 64-bit code.
pub(crate) const NT: u32 = 1 << 14;

/// A naked function's assembly, with a name for all that the stubs share.
macro_rules! stub {
    ([$($line:expr),* $(,)?] $($operands:tt)*) => {
        naked_asm!(
            $($line,)*
            $($operands)*
            nt = const NT,
            not_nt = const !(NT as i32),
            size = const size_of::<Registers>(),
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
    };
}

/// Rust code runs from here to the next `outside`. Flags are not left below the
/// stack: they would make words there look like an interrupt's.
macro_rules! inside {
    () => {
        "
        pushfq
        or dword ptr [rsp], {nt}
        popfq
        mov qword ptr [rsp - 8], 0
        cld"
    };
}

macro_rules! outside {
    () => {
        "
        pushfq
        and dword ptr [rsp], {not_nt}
        popfq
        mov qword ptr [rsp - 8], 0"
    };
}

/// Entered by a jump from a symbol that compiled code calls after a function's
/// prologue, with `r11` the binding's address and `rbp` the function's frame.
///
/// # Safety
///
/// Not to be called: it is jumped to.
#[unsafe(naked)]
pub unsafe extern "C" fn after_prologue<B: Global<N>, const N: usize>() {
    stub!(
        [
            ".cfi_startproc",
            "push rbp",
            ".cfi_def_cfa rsp, 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa rbp, 16",
            "pushfq",
            "test dword ptr [rsp], {nt}",
            "mov qword ptr [rsp], 0",
            "jnz 2f",
            // Not every compiler aligns the stack for this call.
            "sub rsp, {size}",
            "and rsp, -16",
            "mov [rsp + {func}], r11",
            general!(save),
            vectors!(save),
            inside!(),
            // (binding, address in the function, its frame, address of `returned`)
            "mov rdi, [rsp + {func}]",
            "mov rsi, [rbp + 8]",
            "mov rdx, [rbp]",
            "lea rcx, [rip + {returned} + 1]",
            "call {catch}",
            outside!(),
            vectors!(load),
            general!(load),
            "2:",
            "leave",
            ".cfi_def_cfa rsp, 8",
            ".cfi_restore rbp",
            "ret",
            ".cfi_endproc",
        ]
        catch = sym catch_after_prologue::<B, N>,
        returned = sym returned::<B, N>,
    )
}

/// Entered by a jump from a symbol that compiled code calls as a function's
/// first instruction, with `r11` the binding's address.
///
/// # Safety
///
/// Not to be called: it is jumped to.
#[unsafe(naked)]
pub unsafe extern "C" fn at_entry<B: Global<N>, const N: usize>() {
    stub!(
        [
            ".cfi_startproc",
            "pushfq",
            "test dword ptr [rsp], {nt}",
            "mov qword ptr [rsp], 0",
            "lea rsp, [rsp + 8]",
            "jnz 2f",
            // The function's frame, as its prologue will make it.
            "push qword ptr [rsp + 8]",
            ".cfi_adjust_cfa_offset 8",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            "mov rbp, rsp",
            // The stub's own.
            "push qword ptr [rsp + 16]",
            ".cfi_adjust_cfa_offset 8",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "sub rsp, {size}",
            "and rsp, -16",
            "mov [rsp + {func}], r11",
            general!(save),
            vectors!(save),
            inside!(),
            // (binding, address in the function, slot, address of `returned`,
            //  registers, the slot's copy)
            "mov rdi, [rsp + {func}]",
            "mov rsi, [rbp + 8]",
            "lea rdx, [rbp + 40]",
            "lea rcx, [rip + {returned} + 1]",
            "mov r8, rsp",
            "lea r9, [rbp + 24]",
            "call {catch}",
            outside!(),
            vectors!(load),
            general!(load),
            "leave",
            ".cfi_def_cfa rsp, 32",
            "lea rsp, [rsp + 8]",
            ".cfi_adjust_cfa_offset -8",
            "pop rbp",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_restore rbp",
            "lea rsp, [rsp + 8]",
            ".cfi_adjust_cfa_offset -8",
            "2:",
            "ret",
            ".cfi_endproc",
        ]
        catch = sym catch_at_entry::<B, N>,
        returned = sym returned::<B, N>,
    )
}

/// Where hooked calls return to: at its second byte, so that an unwinder, which
/// looks up the address before, finds it here and stops. It goes on to where
/// the call came from.
///
/// # Safety
///
/// Not to be called: it is returned to.
#[unsafe(naked)]
unsafe extern "C" fn returned<B: Global<N>, const N: usize>() {
    stub!(
        [
            ".cfi_startproc",
            // Only the shadow stack knows the caller.
            ".cfi_undefined rip",
            ".cfi_def_cfa rsp, 0",
            "nop",
            "lea r11, [rip + {this} + 1]",
            "push r11",
            ".cfi_adjust_cfa_offset 8",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "sub rsp, {size}",
            "and rsp, -16",
            general!(save),
            vectors!(save),
            // It may be set: by a hook that was left by a jump.
            inside!(),
            // (registers, slot) -> the address to go to
            "mov rdi, rsp",
            "lea rsi, [rbp + 8]",
            "call {end}",
            "mov [rbp + 8], rax",
            outside!(),
            vectors!(load),
            general!(load),
            "leave",
            ".cfi_def_cfa rsp, 8",
            ".cfi_restore rbp",
            "pop r11",
            ".cfi_adjust_cfa_offset -8",
            // What lies there is no target of indirect jumps to a processor
            // that checks them.
            "notrack jmp r11",
            ".cfi_endproc",
            "# {func}",
        ]
        this = sym returned::<B, N>,
        end = sym end::<B, N>,
    )
}

/// Held while tracer code runs that no hook has entered, so that a classic hook
/// takes what it calls for the tracer's own. Made by [`inside_if`].
pub(crate) struct Inside {
    /// It was not set before.
    pub(crate) began: bool,
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        if self.began {
            // SAFETY: the bit means nothing to 64-bit code.
            unsafe {
                asm!(
                    "pushfq",
                    "and dword ptr [rsp], {}",
                    "popfq",
                    "mov qword ptr [rsp - 8], 0",
                    const !(NT as i32),
                );
            }
        }
    }
}

/// Makes an [`Inside`], if `$used`. A macro, because a function could itself
/// be hooked, and its return would end what it began.
macro_rules! inside_if {
    ($used:expr) => {
        if $used {
            let was: usize;
            // SAFETY: the bit means nothing to 64-bit code.
            unsafe {
                ::core::arch::asm!(
                    "pushfq",
                    "mov {was}, [rsp]",
                    "or dword ptr [rsp], {nt}",
                    "popfq",
                    "mov qword ptr [rsp - 8], 0",
                    was = out(reg) was,
                    nt = const $crate::arch::classic::NT,
                );
            }
            let began = was & $crate::arch::classic::NT as usize == 0;
            $crate::arch::classic::Inside { began }
        } else {
            $crate::arch::classic::Inside { began: false }
        }
    };
}
pub(crate) use inside_if;

/// Where the function begins that a call at its entry returns to: before the
/// call, and before an `endbr64` before that.
///
/// # Safety
///
/// `address` follows the call of an entry hook.
pub(crate) unsafe fn entry_of(address: usize) -> usize {
    const DIRECT: [u8; 1] = [0xe8];
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // SAFETY: both forms of the call are at least this long, so the bytes are
    // text: `call rel32`, or `call [rip + rel32]`.
    let direct = unsafe { (address.wrapping_sub(5) as *const [u8; 1]).read() } == DIRECT;
    let call = address.wrapping_sub(if direct { 5 } else { 6 });
    let before = call.wrapping_sub(ENDBR.len());
    // SAFETY: on the call's page, so text.
    let marked =
        call % PAGE >= ENDBR.len() && unsafe { (before as *const [u8; 4]).read() } == ENDBR;
    if marked { before } else { call }
}

/// The smallest page: memory is mapped at least by these.
const PAGE: usize = 4096;

/// Whether the words from `slot` on are what the processor pushes for an
/// interrupt, so that `slot` is no return slot but the interrupted instruction:
/// in a function that the compiler makes for an interrupt gate.
///
/// Looks no further than the page of `slot`: a stack may end there.
///
/// # Safety
///
/// `slot` is readable and aligned.
pub(crate) unsafe fn is_interrupted(slot: *const usize) -> bool {
    let here: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {:r}, cs", out(reg) here, options(nomem, nostack, preserves_flags)) };
    let words = (PAGE - slot.addr() % PAGE) / size_of::<usize>();
    let word = |i: usize| {
        // SAFETY: on the page of `slot`.
        (i < words).then(|| unsafe { slot.add(i).read() })
    };
    // The lowest two bits are the level; that of the code is the stack's too.
    let selector = |word: usize, level: usize| word >> 16 == 0 && word & 3 == level;
    // Without the level it is null, which code's never is.
    let user = |word: usize| selector(word, 3) && word > 3;
    // Bit 1 is always set; 3, 5, 15 and all from 22 on never are.
    let flags = |word: usize| word & 0xffff_ffff_ffc0_802a == 2;
    word(1).is_some_and(|cs| {
        (cs == here || user(cs))
            && word(2).is_none_or(flags)
            && word(4).is_none_or(|ss| selector(ss, cs & 3))
    })
}
