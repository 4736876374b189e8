//! What a graph shows: the choice alone, not how it looks.

use bitflags::bitflags;

bitflags! {
    /// What a [`Print`](super::Print) shows.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Shown;
    ///
    /// // All but these three, which are shown on demand.
    /// let default = Shown::all() - Shown::TASK - Shown::TIME - Shown::TAIL;
    /// assert_eq!(Shown::default(), default);
    /// assert!((default | Shown::TIME).contains(Shown::CPU | Shown::DURATION));
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Shown: u16 {
        /// The CPU's number.
        const CPU = 1;
        /// The task.
        const TASK = 2;
        /// The time of each event, in seconds.
        const TIME = 4;
        /// Durations.
        const DURATION = 8;
        /// Marks of long durations: `+` over 10 µs, `!` 100 µs, `#` 1 ms, `*`
        /// 10 ms, `@` 100 ms, `$` 1 s.
        const MARKS = 0x10;
        /// The name of the function at its closing brace too.
        const TAIL = 0x20;
        /// Return values, where they were recorded.
        const RETURN_VALUE = 0x40;
        /// Arguments, where they were recorded.
        const ARGUMENTS = 0x80;
        /// A separator where a CPU goes from one task to another.
        const SWITCHES = 0x100;
        /// Interrupts: `==>` before a call in an interrupt's context.
        const INTERRUPTS = 0x200;
    }
}

impl Default for Shown {
    /// All that costs no columns of its own beyond the CPU and the duration.
    fn default() -> Self {
        Self::all().difference(Self::TASK.union(Self::TIME).union(Self::TAIL))
    }
}
