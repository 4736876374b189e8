//! How long a task has been switched out: two tick counts in its control
//! block.
//!
//! This file knows no clock: it is told the time.

use super::RetStack;
use crate::sync::{AtomicUsize, Ordering};

/// A tick count that only the CPU which switches the task touches.
pub(super) struct Ticks([AtomicUsize; (u64::BITS / usize::BITS) as usize]);

impl Ticks {
    pub(super) const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; (u64::BITS / usize::BITS) as usize])
    }

    // Relaxed: the scheduler's own hand-over orders one CPU's accesses with
    // the next one's.
    pub(super) fn get(&self) -> u64 {
        let mut value = 0;
        for part in self.0.iter().rev() {
            value = value << (usize::BITS - 1) << 1 | part.load(Ordering::Relaxed) as u64;
        }
        value
    }

    pub(super) fn set(&self, mut value: u64) {
        for part in &self.0 {
            part.store(value as usize, Ordering::Relaxed);
            value = value >> (usize::BITS - 1) >> 1;
        }
    }
}

impl RetStack {
    /// Ticks that the task has spent switched out since it was attached, as
    /// told by [`Fgraph::switch`](crate::Fgraph::switch). Of the platform's
    /// [clock](crate::Platform::clock). Called by the task, in any context, or
    /// where the task does not run meanwhile: another CPU's look at a task that
    /// is being switched may be torn.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_kernel!()]
    /// // This kernel's clock begins at 0 and moves by 1,000 ticks a reading.
    /// FGRAPH.switch(Some(&STACK), None);
    /// FGRAPH.switch(None, Some(&STACK));
    /// assert_eq!(STACK.slept(), 1000);
    /// ```
    #[must_use]
    pub fn slept(&self) -> u64 {
        self.slept.get()
    }

    pub(crate) fn switched_out(&self, now: u64) {
        // One more: 0 is that it is not switched out, and a clock may begin
        // there.
        self.left.set(now.saturating_add(1));
    }

    pub(crate) fn switched_in(&self, now: u64) {
        let left = self.left.get();
        if left != 0 {
            // A clock that went backwards adds nothing.
            let slept = now.saturating_add(1).saturating_sub(left);
            self.slept.set(self.slept.get().saturating_add(slept));
            self.left.set(0);
        }
    }
}
