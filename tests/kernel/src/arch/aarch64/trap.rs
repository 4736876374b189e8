//! Interrupts and exceptions: from the stubs ([`trap.s`](trap.s)) to
//! [`crate::trap`].

use core::arch::{asm, global_asm, naked_asm};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::{clock, gic};
use crate::cpu::{Cpu, MAX_CPUS};
use crate::task::Task;
use crate::{sched, trap};

const NMI_STACK: usize = 32 << 10;

#[repr(C, align(16))]
struct NmiStacks(UnsafeCell<[[u8; NMI_STACK]; MAX_CPUS]>);

// SAFETY: each CPU's stub uses its own.
unsafe impl Sync for NmiStacks {}

static NMI_STACKS: NmiStacks = NmiStacks(UnsafeCell::new([[0; NMI_STACK]; MAX_CPUS]));

/// Kinds, as the stubs count them.
const SYNC: u64 = 0;
const IRQ: u64 = 1;

global_asm!(
    include_str!("trap.s"),
    size = const size_of::<TrapFrame>(),
    x = const offset_of!(TrapFrame, x),
    fp = const offset_of!(TrapFrame, fp),
    sp = const offset_of!(TrapFrame, sp),
    spsr = const offset_of!(TrapFrame, spsr),
    esr = const offset_of!(TrapFrame, esr),
    fpcr = const offset_of!(TrapFrame, fpcr),
    vectors = const offset_of!(TrapFrame, vectors),
    none = const gic::NONE,
    handler = sym on_trap,
    nmi_handler = sym on_nmi,
    nmi_stacks = sym NMI_STACKS,
    nmi_stack = const NMI_STACK,
    number = const offset_of!(Cpu, number),
    stop = const offset_of!(Cpu, stop),
    stopped = const offset_of!(Cpu, stopped),
    nmi_wanted = const offset_of!(Cpu, nmi_wanted),
    preempt = sym on_preempt,
    in_interrupt = const offset_of!(Task, in_interrupt),
    in_nmi = const offset_of!(Task, in_nmi),
);

/// What was interrupted, as the stubs save it. Changing it changes what the
/// interrupted code goes on with.
#[repr(C, align(16))]
pub(crate) struct TrapFrame {
    x: [u64; 29],
    link: usize,
    fp: usize,
    pc: usize,
    sp: usize,
    spsr: u64,
    esr: u64,
    kind: u64,
    fpcr: u64,
    fpsr: u64,
    vectors: [u128; 32],
}

// The stubs store in pairs: x28 and x30, x29 and ELR, and so on.
const _: () = assert!(offset_of!(TrapFrame, link) == offset_of!(TrapFrame, x) + 29 * 8);
const _: () = assert!(offset_of!(TrapFrame, pc) == offset_of!(TrapFrame, fp) + 8);
const _: () = assert!(offset_of!(TrapFrame, spsr) == offset_of!(TrapFrame, sp) + 8);
const _: () = assert!(offset_of!(TrapFrame, kind) == offset_of!(TrapFrame, esr) + 8);
const _: () = assert!(offset_of!(TrapFrame, fpsr) == offset_of!(TrapFrame, fpcr) + 8);
const _: () = assert!(size_of::<TrapFrame>().is_multiple_of(16));

impl TrapFrame {
    /// The interrupted instruction.
    pub(crate) fn pc(&self) -> usize {
        self.pc
    }

    /// The interrupted frame pointer.
    pub(crate) fn fp(&self) -> usize {
        self.fp
    }

    /// The interrupted stack pointer.
    pub(crate) fn sp(&self) -> usize {
        self.sp
    }

    /// The interrupted link register.
    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// The interrupted code was ready to be interrupted: no lock was held.
    pub(crate) fn interruptible(&self) -> bool {
        self.spsr & 1 << 7 == 0
    }

    /// The slot of the return address of the interrupted function, and the
    /// address, where it is still in the link register, or again: before the
    /// function's frame record is made, and after it is left. `start` is the
    /// function's first instruction; it makes its record before anything else.
    pub(crate) fn return_slot(&self, start: usize) -> Option<(usize, Option<usize>)> {
        // Upwards from the interrupted instruction, to the last one that has
        // made or left a record.
        for at in (start..self.pc).step_by(4).rev() {
            // SAFETY: the address is in a function's text.
            let instruction = unsafe { *(at as *const u32) };
            let makes = instruction & 0xff80_03ff == 0x9100_03fd; // add x29, sp, #offset
            let leaves = matches!(
                instruction & 0xffc0_7fff,
                // ldp x29, x30, [sp, #offset], and [sp], #offset
                0xa940_7bfd | 0xa8c0_7bfd
            );
            // ret, br, and b: what comes behind is reached from the body. At the
            // start a branch is the tracer's.
            let ends = instruction & 0xff9f_fc1f == 0xd61f_0000 && instruction & 3 << 21 != 1 << 21
                || instruction & 0xfc00_0000 == 0x1400_0000 && at != start;
            if makes || ends {
                return None;
            }
            if leaves {
                break;
            }
        }
        Some((self.sp - size_of::<usize>(), Some(self.link)))
    }
}

/// The bounds of the stack around `address`, if it is one that an NMI's handler
/// runs on.
pub(crate) fn interrupt_stack(address: usize) -> Option<(usize, usize)> {
    let low = NMI_STACKS.0.get() as usize;
    let cpu = address.checked_sub(low)? / NMI_STACK;
    let low = low + cpu * NMI_STACK;
    (cpu < MAX_CPUS).then_some((low, low + NMI_STACK))
}

/// Handles it; says whether it was the timer, so that the stub calls
/// `on_preempt` afterwards.
extern "C" fn on_trap(frame: &mut TrapFrame) -> bool {
    match frame.kind {
        IRQ => return interrupt(frame),
        SYNC => synchronous(frame),
        _ => trap::exception(frame, "exception", frame.esr),
    }
    false
}

fn interrupt(frame: &TrapFrame) -> bool {
    match gic::take() {
        gic::TIMER => {
            clock::arm();
            gic::end(gic::TIMER);
            trap::tick(frame);
            true
        }
        number => {
            trap::spurious();
            if number < gic::NONE {
                gic::end(number);
            }
            false
        }
    }
}

fn synchronous(frame: &mut TrapFrame) {
    const ILLEGAL: u64 = 0x0e;
    const FETCH: u64 = 0x21;
    const DATA: u64 = 0x25;
    const STEP: u64 = 0x33;
    const BREAKPOINT: u64 = 0x3c;
    match frame.esr >> 26 {
        STEP => {
            trap::step(frame);
            frame.spsr |= SINGLE_STEP;
        }
        BREAKPOINT => {
            frame.pc += 4;
            trap::breakpoint(frame.pc);
        }
        DATA if frame.pc == probe_read as *const () as usize => {
            // The handler sees the fault where it happened.
            trap::probe_fault(frame);
            frame.pc = probe_failed as *const () as usize;
        }
        DATA | FETCH => trap::page_fault(frame, fault_address()),
        0 => trap::exception(frame, "invalid instruction", frame.esr),
        ILLEGAL => trap::exception(frame, "illegal state", frame.esr),
        _ => trap::exception(frame, "exception", frame.esr),
    }
}

extern "C" fn on_preempt() {
    sched::preempt();
}

extern "C" fn on_nmi(frame: &mut TrapFrame) {
    // Cleared before the handler runs: what is sent from now on comes again.
    super::this_cpu().nmi_wanted.store(0, Ordering::Relaxed);
    trap::nmi(frame);
}

fn fault_address() -> usize {
    let address;
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {}, far_el1", out(reg) address, options(nomem, nostack, preserves_flags));
    }
    address
}

/// Runs into the breakpoint.
pub(crate) fn breakpoint() {
    // SAFETY: its handler goes on with the next instruction.
    unsafe { asm!("brk #0") };
}

/// In a saved state: one instruction, then the debugger's exception.
const SINGLE_STEP: u64 = 1 << 21;

/// Lets this CPU take the debugger's exceptions.
pub(super) fn init_cpu() {
    // SAFETY: nothing asks for one yet.
    unsafe {
        asm!(
            "msr oslar_el1, xzr",
            "isb",
            options(nomem, nostack, preserves_flags)
        )
    };
}

/// Calls `f`; after each instruction the debugger's other trap calls
/// [`crate::trap::step`]. With interrupts off, or they would be stepped
/// through.
///
/// It has a return from an exception in it, though not its own, and so is never
/// traced.
#[inline(never)]
pub(crate) fn step_through(f: extern "C" fn()) {
    /// The debugger's exceptions are masked.
    const DEBUG_MASK: u64 = 1 << 9;
    const EL1: u64 = 0b0101;
    // SAFETY: the exception's handler leaves everything as it was; the call is
    // one of C. The saved state is this one, so the return goes on here.
    unsafe {
        asm!(
            "mrs x10, daif",
            "bic x10, x10, #{debug_mask}",
            "orr x10, x10, #{single_step}",
            "mov x11, #{el1}",
            "orr x10, x10, x11",
            // Neither the debugger nor an NMI before the return.
            "msr daifset, #9",
            "mrs x11, mdscr_el1",
            "orr x11, x11, #1",      // SS
            "orr x11, x11, #0x2000", // KDE
            "msr mdscr_el1, x11",
            "isb",
            "msr spsr_el1, x10",
            "adr x11, 2f",
            "msr elr_el1, x11",
            "eret",
            "2: blr x9",
            "mrs x10, mdscr_el1",
            "bic x10, x10, #1",
            "msr mdscr_el1, x10",
            "isb",
            debug_mask = const DEBUG_MASK,
            single_step = const SINGLE_STEP,
            el1 = const EL1,
            inout("x9") f => _,
            out("x10") _,
            out("x11") _,
            clobber_abi("C"),
        );
    }
}

/// Reads the word at `address`; false if it is not mapped. The first instruction
/// is the one that may fault, and goes on at [`probe_failed`] then.
///
/// # Safety
///
/// Where something is mapped, it may be read.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn probe_read(address: usize, value: &mut u64) -> bool {
    naked_asm!("ldr x2, [x0]", "str x2, [x1]", "mov w0, #1", "ret")
}

/// Where a faulting `probe_read` goes on, with its link register.
#[unsafe(naked)]
unsafe extern "C" fn probe_failed() -> bool {
    naked_asm!("mov w0, #0", "ret")
}
