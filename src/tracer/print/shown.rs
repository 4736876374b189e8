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
    /// let shown = Shown::default() | Shown::TIME;
    /// assert!(shown.contains(Shown::CPU) && !shown.contains(Shown::TASK));
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Shown: u16 {
        /// The CPU's number.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::CPU));
        /// ```
        const CPU = 1;
        /// The task.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(!Shown::default().contains(Shown::TASK), "on demand");
        /// ```
        const TASK = 2;
        /// The time of each event, in seconds.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(!Shown::default().contains(Shown::TIME), "on demand");
        /// ```
        const TIME = 4;
        /// Durations.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::DURATION));
        /// ```
        const DURATION = 8;
        /// Marks of long durations: `+` over 10 µs, `!` 100 µs, `#` 1 ms, `*`
        /// 10 ms, `@` 100 ms, `$` 1 s.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::MARKS));
        /// ```
        const MARKS = 0x10;
        /// The name of the function at its closing brace too.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(!Shown::default().contains(Shown::TAIL), "on demand");
        /// ```
        const TAIL = 0x20;
        /// Return values, where they were recorded.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::RETURN_VALUE));
        /// ```
        const RETURN_VALUE = 0x40;
        /// Arguments, where they were recorded.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::ARGUMENTS));
        /// ```
        const ARGUMENTS = 0x80;
        /// A separator where a CPU goes from one task to another.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::SWITCHES));
        /// ```
        const SWITCHES = 0x100;
        /// Interrupts: `==>` before a call in an interrupt's context.
        ///
        /// # Example
        ///
        /// ```
        /// # use fgraph::tracer::Shown;
        /// assert!(Shown::default().contains(Shown::INTERRUPTS));
        /// ```
        const INTERRUPTS = 0x200;
    }
}

impl Default for Shown {
    /// All that costs no columns of its own beyond the CPU and the duration.
    fn default() -> Self {
        Self::all().difference(Self::TASK.union(Self::TIME).union(Self::TAIL))
    }
}
