//! How long a task has been switched out: two tick counts in its control
//! block.
//!
//! This file knows no clock: it is told the time.

use super::RetStack;

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
