//! Why a trace can not be read, and what to do.

/// Why a trace can not be read.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Open, Scale, Trace, TraceError};
#[doc = example_calls!()]
///
/// let mut open = [Open::new(); 16];
/// let failed = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut [], &mut open).unwrap_err();
/// assert_eq!(failed, TraceError::Cursors);
/// assert_eq!(failed.to_string(), "fewer cursors than buffers; give one for each");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// There are fewer cursors than buffers.
    Cursors,
    /// There is no memory for calls under way.
    Open,
}

impl core::fmt::Display for TraceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Cursors => "fewer cursors than buffers; give one for each",
            Self::Open => "no memory for calls under way; give an `Open` for each and each task",
        })
    }
}

impl core::error::Error for TraceError {}
