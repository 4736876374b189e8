//! The local APIC: this CPU's timer, and interrupts from CPU to CPU.

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::cpu::{CPUS, MAX_CPUS};
use crate::{TICK_HZ, time};

const BASE: usize = 0xfee0_0000;
const ID: usize = 0x20;
const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
const COMMAND: usize = 0x300;
const COMMAND_TARGET: usize = 0x310;
const TIMER: usize = 0x320;
const TIMER_COUNT: usize = 0x380;
const TIMER_NOW: usize = 0x390;
const TIMER_DIVIDE: usize = 0x3e0;

const PERIODIC: u32 = 1 << 17;
const DELIVERING: u32 = 1 << 12;
const NMI: u32 = 0x4400;
const INIT_ALL_OTHERS: u32 = 0xc4500;
const START_ALL_OTHERS: u32 = 0xc4600;

/// The vector of the timer's interrupt.
pub(super) const TIMER_VECTOR: u8 = 32;
/// The vector of an interrupt that was taken back.
pub(super) const SPURIOUS_VECTOR: u8 = 255;

/// Where the other CPUs begin: a page below 1 MiB, named by its number.
const TRAMPOLINE_PAGE: u32 = 8;

/// Timer counts of a tick of the kernel. All CPUs' timers run alike.
static TICK: AtomicU32 = AtomicU32::new(0);

fn read(register: usize) -> u32 {
    // SAFETY: the APIC's registers are mapped, and reading these changes nothing.
    unsafe { ptr::read_volatile((BASE + register) as *const u32) }
}

fn write(register: usize, value: u32) {
    // SAFETY: the APIC's registers are mapped. What the values do (interrupts
    // at vectors that have handlers) is this file's care.
    unsafe { ptr::write_volatile((BASE + register) as *mut u32, value) };
}

/// Lets the timer run down from its top, for `end_count`.
pub(super) fn begin_count() {
    write(TIMER_DIVIDE, 0b0011);
    write(TIMER, 1 << 16);
    write(TIMER_COUNT, u32::MAX);
}

/// So much time has passed since `begin_count`.
pub(super) fn end_count(ns: u64) {
    let counted = u64::from(u32::MAX - read(TIMER_NOW));
    let tick = counted * (1_000_000_000 / TICK_HZ) / ns;
    TICK.store((tick as u32).max(1), Ordering::Relaxed);
    write(TIMER_COUNT, 0);
}

/// Turns this CPU's APIC on and starts its timer.
pub(super) fn init() {
    super::this_cpu()
        .hardware_id
        .store(read(ID) >> 24, Ordering::Relaxed);
    write(SPURIOUS, 0x100 | u32::from(SPURIOUS_VECTOR));
    write(TIMER_DIVIDE, 0b0011);
    write(TIMER, PERIODIC | u32::from(TIMER_VECTOR));
    write(TIMER_COUNT, TICK.load(Ordering::Relaxed));
}

/// The interrupt is handled.
pub(super) fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Sends an NMI to the CPU of that number. Interrupts off: the command is two
/// writes, and an interrupt's handler may send as well.
pub(crate) fn raise_nmi(cpu: usize) {
    command(CPUS[cpu].hardware_id.load(Ordering::Relaxed), NMI);
}

fn command(target: u32, command: u32) {
    while read(COMMAND) & DELIVERING != 0 {
        core::hint::spin_loop();
    }
    write(COMMAND_TARGET, target << 24);
    write(COMMAND, command);
}

/// Copies the trampoline into place and sends all other CPUs there.
pub(super) fn start_cpus() {
    unsafe extern "C" {
        static trampoline: [u8; 0];
        static trampoline_end: [u8; 0];
    }
    let from = &raw const trampoline;
    let len = (&raw const trampoline_end) as usize - from as usize;
    // SAFETY: nothing else uses that page; the loader's data lies elsewhere.
    unsafe {
        let to = ((TRAMPOLINE_PAGE as usize) << 12) as *mut u8;
        ptr::copy_nonoverlapping(from.cast(), to, len);
    }

    command(0, INIT_ALL_OTHERS);
    time::spin(1_000_000);
    // Twice, as the manual says: the first may be lost.
    for _ in 0..2 {
        command(0, START_ALL_OTHERS | TRAMPOLINE_PAGE);
        time::spin(200_000);
    }
    let patience = time::now() + 100_000_000;
    while time::now() < patience {
        if CPUS.iter().filter(|cpu| cpu.is_online()).count() == MAX_CPUS {
            break;
        }
        core::hint::spin_loop();
    }
}
