//! The interrupt controller, a GICv3: this CPU's timer, and interrupts from CPU
//! to CPU.
//!
//! Interrupts come in two groups. Those of group 1 arrive as IRQ, which the
//! kernel masks; those of group 0 as FIQ, which it never does but where an
//! exception begins and ends: its NMI.

use core::arch::asm;
use core::ptr;
use core::sync::atomic::Ordering;

use crate::cpu::CPUS;

const DISTRIBUTOR: usize = 0x0800_0000;
const DISTRIBUTOR_CONTROL: usize = DISTRIBUTOR;

/// One for each CPU, one behind the other.
const REDISTRIBUTORS: usize = 0x080a_0000;
const REDISTRIBUTOR_SIZE: usize = 0x2_0000;
const TYPE: usize = 0x08;
const WAKER: usize = 0x14;
/// The half that is about this CPU's own interrupts.
const OWN: usize = 0x1_0000;
const GROUP: usize = OWN + 0x080;
const ENABLE: usize = OWN + 0x100;
const PRIORITY: usize = OWN + 0x400;

const SLEEPS: u32 = 1 << 1;
const IS_ASLEEP: u32 = 1 << 2;
const IS_LAST: u64 = 1 << 4;

/// The interrupt that CPUs send one another as an NMI.
const NMI: u32 = 0;
/// The virtual timer's.
pub(super) const TIMER: u32 = 27;
/// Numbers from here on are none.
pub(super) const NONE: u32 = 1020;

fn read(address: usize) -> u32 {
    // SAFETY: the controller's registers are mapped, and reading these changes
    // nothing.
    unsafe { ptr::read_volatile(address as *const u32) }
}

fn write(address: usize, value: u32) {
    // SAFETY: the controller's registers are mapped. What the values do
    // (interrupts that have handlers) is this file's care.
    unsafe { ptr::write_volatile(address as *mut u32, value) };
}

/// Turns the distributor on: both groups, by affinity. Once.
pub(super) fn init() {
    const GROUPS: u32 = 0b11;
    const BY_AFFINITY: u32 = 1 << 4;
    write(DISTRIBUTOR_CONTROL, GROUPS | BY_AFFINITY);
}

/// By which the hardware knows the running CPU: four bytes of affinity.
fn affinity() -> u32 {
    let id: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) id, options(nomem, nostack, preserves_flags)) };
    (id & 0xff_ffff | id >> 8 & 0xff00_0000) as u32
}

/// The redistributor of a CPU.
fn redistributor(affinity: u32) -> usize {
    let mut base = REDISTRIBUTORS;
    loop {
        // SAFETY: as in `read`; one more is behind this one if it is not the last.
        let kind = unsafe { ptr::read_volatile((base + TYPE) as *const u64) };
        if (kind >> 32) as u32 == affinity || kind & IS_LAST != 0 {
            return base;
        }
        base += REDISTRIBUTOR_SIZE;
    }
}

/// Turns this CPU's part on.
pub(super) fn init_cpu() {
    let affinity = affinity();
    super::this_cpu()
        .hardware_id
        .store(affinity, Ordering::Relaxed);
    let base = redistributor(affinity);
    write(base + WAKER, read(base + WAKER) & !SLEEPS);
    while read(base + WAKER) & IS_ASLEEP != 0 {
        core::hint::spin_loop();
    }
    write(base + GROUP, !(1 << NMI));
    for (number, priority) in [(NMI, 0x20), (TIMER, 0xa0)] {
        let address = base + PRIORITY + number as usize;
        // SAFETY: as in `write`; these are bytes.
        unsafe { ptr::write_volatile(address as *mut u8, priority) };
    }
    write(base + ENABLE, 1 << NMI | 1 << TIMER);
    // SAFETY: what arrives from here on has handlers: the vectors are set.
    unsafe {
        asm!(
            "msr icc_sre_el1, {one}", // by registers, not by memory
            "isb",
            "msr icc_pmr_el1, {all}",
            "msr icc_igrpen0_el1, {one}",
            "msr icc_igrpen1_el1, {one}",
            "isb",
            "msr daifclr, #1",
            one = in(reg) 1_u64,
            all = in(reg) 0xff_u64,
            options(nostack, preserves_flags),
        );
    }
}

/// Takes the IRQ that waits; its number, or one from [`NONE`] on.
pub(super) fn take() -> u32 {
    let number: u64;
    // SAFETY: the interrupt is then this CPU's to handle.
    unsafe {
        asm!("mrs {}, icc_iar1_el1", "dsb sy", out(reg) number, options(nostack, preserves_flags));
    }
    number as u32
}

/// The IRQ that was taken is handled.
pub(super) fn end(number: u32) {
    // SAFETY: it was taken.
    unsafe {
        asm!(
            "msr icc_eoir1_el1, {}",
            "isb",
            in(reg) u64::from(number),
            options(nostack, preserves_flags),
        );
    }
}

/// Sends an NMI to the CPU of that number.
pub(crate) fn raise_nmi(cpu: usize) {
    let affinity = u64::from(CPUS[cpu].hardware_id.load(Ordering::Relaxed));
    let byte = |n: u32| affinity >> (8 * n) & 0xff;
    let command = 1 << (byte(0) & 15)
        | byte(1) << 16
        | u64::from(NMI) << 24
        | byte(2) << 32
        | byte(0) >> 4 << 44
        | byte(3) << 48;
    // SAFETY: the handler does what its flags say, which are seen before it
    // begins: no store is later than the barrier.
    unsafe {
        asm!("dsb ish", "msr icc_sgi0r_el1, {}", "isb", in(reg) command, options(nostack, preserves_flags));
    }
}
