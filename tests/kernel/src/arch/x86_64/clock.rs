//! Time: the time stamp counter, measured once against the old timer chip.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};

use super::apic;
use super::port::{in8, out8};

const PIT_HZ: u64 = 1_193_182;
/// How long the measuring takes: 10 ms.
const PIT_COUNT: u16 = (PIT_HZ / 100) as u16;

// Written once by the first CPU before the others start: relaxed will do.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds of one tick, as a fraction of 2^32.
static SCALE: AtomicU64 = AtomicU64::new(1 << 32);

/// The counter's value since boot.
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { _rdtsc() }.wrapping_sub(START.load(Ordering::Relaxed))
}

/// The same as time. In 128 bits, or it would overflow within seconds.
#[inline]
pub(crate) fn ticks_to_ns(ticks: u64) -> u64 {
    ((u128::from(ticks) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// Measures the counter and the CPU's own timer against the PIT, of which the
/// second channel can be watched without an interrupt.
pub(super) fn calibrate() {
    START.store(ticks(), Ordering::Relaxed);
    // SAFETY: ports of the PIT and its gate; no memory is touched.
    unsafe {
        out8(0x61, in8(0x61) & !2 | 1);
        out8(0x43, 0b1011_0000);
        out8(0x42, PIT_COUNT as u8);
        out8(0x42, (PIT_COUNT >> 8) as u8);
    }
    apic::begin_count();
    let begin = ticks();
    // SAFETY: as above; bit 5 rises when the count ends.
    while unsafe { in8(0x61) } & 0x20 == 0 {
        core::hint::spin_loop();
    }
    let took = ticks() - begin;
    let ns = u64::from(PIT_COUNT) * 1_000_000_000 / PIT_HZ;
    apic::end_count(ns);
    SCALE.store(
        ((u128::from(ns) << 32) / u128::from(took.max(1))) as u64,
        Ordering::Relaxed,
    );
}
