//! Each CPU's descriptor tables, and the stacks that the processor itself
//! switches to.

use core::arch::asm;
use core::cell::UnsafeCell;

use super::apic::SPURIOUS_VECTOR;
use super::trap;
use crate::cpu::MAX_CPUS;

pub(super) const CODE: u16 = 0x08;
const DATA: u64 = 0x00cf_9300_0000_ffff;
const TSS: u16 = 0x18;

const STACK: usize = 32 << 10;

/// Which stack a vector starts on; the processor counts them from 1.
#[derive(Clone, Copy)]
enum Stack {
    /// Only until the frame is moved to the interrupted stack.
    Entry = 1,
    Nmi = 2,
    DoubleFault = 3,
    /// Functions with the interrupt ABI stay where they were started.
    Abi = 4,
}

const STACKS: usize = 4;

#[repr(C, align(16))]
struct Stacks([[u8; STACK]; STACKS]);

#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    privilege: [u64; 3],
    reserved2: u64,
    interrupt: [u64; 7],
    reserved3: [u32; 3],
}

#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Gate([u64; 2]);

/// What one CPU has for itself.
struct Tables {
    gdt: [u64; 5],
    tss: TaskState,
    idt: [Gate; 256],
    stacks: Stacks,
}

struct PerCpu([UnsafeCell<Tables>; MAX_CPUS]);

// SAFETY: each CPU writes its own, once, in `load`; then the processor reads.
unsafe impl Sync for PerCpu {}

static TABLES: PerCpu = PerCpu(
    [const {
        UnsafeCell::new(Tables {
            gdt: [0, 0x00af_9b00_0000_ffff, DATA, 0, 0],
            tss: TaskState {
                reserved: 0,
                privilege: [0; 3],
                reserved2: 0,
                interrupt: [0; 7],
                reserved3: [0; 3],
            },
            idt: [Gate([0; 2]); 256],
            stacks: Stacks([[0; STACK]; STACKS]),
        })
    }; MAX_CPUS],
);

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// An interrupt gate: interrupts are off in its handler.
fn gate(handler: usize, stack: Stack) -> Gate {
    let handler = handler as u64;
    let low = handler & 0xffff
        | u64::from(CODE) << 16
        | (stack as u64) << 32
        | 0x8e << 40
        | (handler >> 16 & 0xffff) << 48;
    Gate([low, handler >> 32])
}

/// Fills and loads the running CPU's tables.
pub(super) fn load(cpu: usize) {
    // SAFETY: only this CPU, once.
    let tables = unsafe { &mut *TABLES.0[cpu].get() };

    let stacks = &raw const tables.stacks as usize;
    for number in 0..STACKS {
        tables.tss.interrupt[number] = (stacks + (number + 1) * STACK) as u64;
    }
    let tss = &raw const tables.tss as u64;
    tables.gdt[3] = (size_of::<TaskState>() - 1) as u64
        | (tss & 0xff_ffff) << 16
        | 0x89 << 40
        | (tss >> 24 & 0xff) << 56;
    tables.gdt[4] = tss >> 32;

    for vector in 0..trap::STUBS {
        tables.idt[vector] = gate(trap::stub(vector), Stack::Entry);
    }
    tables.idt[2] = gate(trap::nmi_entry(), Stack::Nmi);
    tables.idt[3] = gate(trap::on_breakpoint as *const () as usize, Stack::Abi);
    tables.idt[8] = gate(trap::double_fault_entry(), Stack::DoubleFault);
    let spurious = trap::on_spurious as *const () as usize;
    tables.idt[SPURIOUS_VECTOR as usize] = gate(spurious, Stack::Abi);

    let gdt = Pointer {
        limit: (size_of_val(&tables.gdt) - 1) as u16,
        base: tables.gdt.as_ptr() as u64,
    };
    let idt = Pointer {
        limit: (size_of_val(&tables.idt) - 1) as u16,
        base: tables.idt.as_ptr() as u64,
    };
    // SAFETY: the tables are static and whole, and the code and data segments
    // are those that are loaded already. gs is left alone: loading it would
    // clear its base.
    unsafe {
        asm!("lgdt [{}]", "lidt [{}]", "ltr {:x}", in(reg) &gdt, in(reg) &idt, in(reg) TSS);
    }
}

/// The bounds of the stack around `address`, if it is one that an interrupt's
/// handler starts on.
pub(crate) fn interrupt_stack(address: usize) -> Option<(usize, usize)> {
    (0..MAX_CPUS).find_map(|cpu| {
        // SAFETY: computes an address.
        let low = unsafe { &raw const (*TABLES.0[cpu].get()).stacks } as usize;
        let number = address.checked_sub(low)? / STACK;
        let low = low + number * STACK;
        (number < STACKS).then_some((low, low + STACK))
    })
}
