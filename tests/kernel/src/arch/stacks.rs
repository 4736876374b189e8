//! The stacks that are no task's: those that handlers run on, and those that
//! CPUs boot on.

use super::interrupt_stack;
use crate::cpu::MAX_CPUS;

/// Bytes of a stack that a CPU boots on.
pub(super) const BOOT_STACK: usize = 64 << 10;

unsafe extern "C" {
    /// `boot.s` has them.
    static boot_stacks: [[u8; BOOT_STACK]; MAX_CPUS];
}

/// The stack that a CPU runs on until it has tasks, and in its idle task.
pub(crate) fn boot_stack(cpu: usize) -> (usize, usize) {
    let low = (&raw const boot_stacks) as usize + cpu * BOOT_STACK;
    (low, low + BOOT_STACK)
}

/// The bounds of the stack around `address`, if it is one of an interrupt's
/// handler, or one that a CPU boots on.
pub(crate) fn handler_stack(address: usize) -> Option<(usize, usize)> {
    let is_around = |&(low, high): &(usize, usize)| (low..high).contains(&address);
    interrupt_stack(address).or_else(|| (0..MAX_CPUS).map(boot_stack).find(is_around))
}
