//! Interrupts and exceptions: from the stubs ([`trap.s`](trap.s)) to
//! [`crate::trap`], and the few handlers with the interrupt ABI.

use core::arch::{asm, global_asm, naked_asm};
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::apic;
use crate::cpu::Cpu;
use crate::task::Task;
use crate::{sched, trap};

/// How many vectors have a stub; `.rept` in the assembly.
pub(super) const STUBS: usize = 48;
/// Each is aligned to this.
const STUB: usize = 16;

const DEBUG: u64 = 1;
const PAGE_FAULT: u64 = 14;

global_asm!(
    include_str!("trap.s"),
    handler = sym on_trap,
    nmi_handler = sym on_nmi,
    stop = const offset_of!(Cpu, stop),
    stopped = const offset_of!(Cpu, stopped),
    nmi_wanted = const offset_of!(Cpu, nmi_wanted),
    preempt = sym on_preempt,
    current = const offset_of!(Cpu, current),
    in_interrupt = const offset_of!(Task, in_interrupt),
    in_nmi = const offset_of!(Task, in_nmi),
);

/// What was interrupted, as the stubs save it. Changing it changes what the
/// interrupted code goes on with.
#[repr(C, align(16))]
pub(crate) struct TrapFrame {
    vectors: [u8; 512],
    general: [u64; 14],
    vector: u64,
    error: u64,
    rbp: usize,
    rip: usize,
    cs: u64,
    rflags: u64,
    rsp: usize,
    ss: u64,
}

// The stubs' pushes: 14 general registers, vector, error, rbp, five words of
// the processor's.
const _: () = assert!(size_of::<TrapFrame>() == 512 + 22 * 8);
// An unwinder takes rbp and rip for a saved frame pointer and return address.
const _: () = assert!(offset_of!(TrapFrame, rip) == offset_of!(TrapFrame, rbp) + 8);

impl TrapFrame {
    /// The interrupted instruction.
    pub(crate) fn pc(&self) -> usize {
        self.rip
    }

    /// The interrupted frame pointer.
    pub(crate) fn fp(&self) -> usize {
        self.rbp
    }

    /// The interrupted stack pointer.
    pub(crate) fn sp(&self) -> usize {
        self.rsp
    }

    /// The interrupted code was ready to be interrupted: no lock was held.
    pub(crate) fn interruptible(&self) -> bool {
        self.rflags & 1 << 9 != 0
    }

    /// The slot of the return address of the interrupted function, where it
    /// is not yet, or not any more, the word above the frame pointer: at the
    /// function's entry, before and after `push rbp`, and at its `ret`. Beside
    /// it the address itself, where that is in a register: not here. `start`
    /// is the function's first instruction.
    pub(crate) fn return_slot(&self, start: usize) -> Option<(usize, Option<usize>)> {
        /// The NOP of a patchable entry.
        const NOP: usize = 8;
        const RET: u8 = 0xc3;
        const PUSH_RBP: u8 = 0x55;
        let byte = |address: usize| {
            // SAFETY: the address is in a function's text.
            unsafe { *(address as *const u8) }
        };
        let offset = self.rip - start;
        if byte(self.rip) == RET || self.rip == start || offset == NOP && byte(self.rip) == PUSH_RBP
        {
            return Some((self.rsp, None));
        }
        // After the push: what it pushed lies at rsp.
        let pushed = offset == 1 || offset == NOP + 1;
        (pushed && byte(self.rip - 1) == PUSH_RBP).then(|| (self.rsp + 8, None))
    }
}

/// The stub of a vector.
pub(super) fn stub(vector: usize) -> usize {
    unsafe extern "C" {
        static trap_stubs: [u8; STUBS * STUB];
    }
    (&raw const trap_stubs) as usize + vector * STUB
}

unsafe extern "C" {
    static nmi_stub: [u8; 0];
    static double_fault_stub: [u8; 0];
}

/// The stub of the NMI.
pub(super) fn nmi_entry() -> usize {
    (&raw const nmi_stub) as usize
}

/// The stub of the double fault.
pub(super) fn double_fault_entry() -> usize {
    (&raw const double_fault_stub) as usize
}

/// Handles it; says whether it was the timer, so that the stub calls
/// `on_preempt` afterwards.
extern "C" fn on_trap(frame: &mut TrapFrame) -> bool {
    match frame.vector {
        vector if vector == u64::from(apic::TIMER_VECTOR) => {
            apic::end_of_interrupt();
            trap::tick(frame);
            return true;
        }
        DEBUG => trap::step(frame),
        PAGE_FAULT if frame.rip == probe_read as *const () as usize => {
            // The handler sees the fault where it happened.
            trap::probe_fault(frame);
            frame.rip = probe_failed as *const () as usize;
        }
        PAGE_FAULT => trap::page_fault(frame, fault_address()),
        vector => trap::exception(frame, name(vector), frame.error),
    }
    false
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
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

fn name(vector: u64) -> &'static str {
    match vector {
        0 => "division by zero",
        6 => "invalid instruction",
        8 => "double fault",
        13 => "general protection",
        16 | 19 => "floating point",
        _ => "exception",
    }
}

/// What the processor pushes, for functions with the interrupt ABI.
#[repr(C)]
pub(super) struct Pushed {
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Counts a handler as running, on the task that it interrupted, as the stubs
/// do: for handlers with the interrupt ABI, whose very first call it has to be.
#[inline(always)]
fn nested(handler: impl FnOnce()) {
    let task = super::current();
    if let Some(task) = task {
        task.in_interrupt.fetch_add(1, Ordering::Relaxed);
    }
    handler();
    if let Some(task) = task {
        task.in_interrupt.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The breakpoint's handler has the interrupt ABI: the compiler writes entry
/// and exit, as many kernels have it. Where a function's return address would
/// be lies the interrupted instruction, so such a function is never traced.
pub(super) extern "x86-interrupt" fn on_breakpoint(pushed: Pushed) {
    nested(|| trap::breakpoint(pushed.rip as usize));
}

/// An interrupt that the APIC took back. Nothing to do.
pub(super) extern "x86-interrupt" fn on_spurious(_: Pushed) {
    nested(trap::spurious);
}

/// Runs into the breakpoint.
pub(crate) fn breakpoint() {
    // SAFETY: its handler returns to the next instruction.
    unsafe { asm!("int3") };
}

/// Calls `f`; after each instruction the debugger's other trap calls
/// [`crate::trap::step`].
pub(crate) fn step_through(f: extern "C" fn()) {
    /// The processor clears the flag when it enters a handler, and the return
    /// sets it again.
    const TRAP_FLAG: u32 = 1 << 8;
    // SAFETY: the flag's handler leaves everything as it was; the call is one
    // of C. Aligned here, since the flags are pushed and popped before it.
    unsafe {
        asm!(
            "pushfq",
            "or dword ptr [rsp], {flag}",
            "popfq",
            "call {f}",
            "pushfq",
            "and dword ptr [rsp], ~{flag}",
            "popfq",
            f = in(reg) f,
            flag = const TRAP_FLAG,
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
    naked_asm!("mov rax, [rdi]", "mov [rsi], rax", "mov eax, 1", "ret")
}

/// Where a faulting `probe_read` goes on, on its stack.
#[unsafe(naked)]
unsafe extern "C" fn probe_failed() -> bool {
    naked_asm!("xor eax, eax", "ret")
}
