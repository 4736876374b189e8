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
    /// is being switched may be torn, and on a 32-bit target an NMI's.
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

#[cfg(test)]
mod tests {
    use crate::RetStack;

    #[test]
    fn what_passes_between_out_and_in_is_slept() {
        let stack = RetStack::new();
        let switched = |out: Option<u64>, into: u64| {
            if let Some(out) = out {
                stack.switched_out(out);
            }
            stack.switched_in(into);
            stack.slept()
        };
        assert_eq!(switched(None, 50), 0, "it was never out");
        assert_eq!(switched(Some(0), 7), 7);
        assert_eq!(switched(None, 20), 7, "it has come in already");
        assert_eq!(switched(Some(30), 35), 12);
        assert_eq!(switched(Some(100), 90), 12, "the clock went backwards");
        // At the end of all times a tick may be missing, but no more.
        assert_eq!(switched(Some(u64::MAX - 10), u64::MAX), 21);
        assert_eq!(switched(Some(u64::MAX), 5), 21);
        assert_eq!(switched(Some(0), u64::MAX - 1), u64::MAX);
        assert_eq!(switched(Some(3), 5), u64::MAX);
    }
}
