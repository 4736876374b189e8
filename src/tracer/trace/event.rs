//! What a trace tells: calls that begin and end, in nanoseconds.
//!
//! This file is data. How it comes about is [`trace`](super)'s.

use crate::tracer::Arguments;
use crate::{Cause, Context};

/// A call that was recorded. Times are in nanoseconds of the platform's clock.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Event;
#[doc = example_trace!()]
///
/// let Some(Event::Begin(call)) = trace.next() else {
///     panic!("the first call has another inside");
/// };
/// assert_eq!(Names.symbol(call.func.unwrap()).unwrap().name, "read");
/// assert_eq!((call.cpu, call.task, call.depth, call.begin), (0, 7, 0, Some(0)));
/// # use fgraph::tracer::Symbols as _;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The function; `None` at the end of a call whose begin is not known, if
    /// it was a long one.
    pub func: Option<usize>,
    /// The CPU that recorded this event.
    pub cpu: usize,
    /// The task, by [`Platform::task`](crate::Platform::task).
    pub task: usize,
    /// How many recorded calls enclose it.
    pub depth: usize,
    /// The context in which it ran; of a call whose begin is not known, a
    /// task's.
    pub context: Context,
    /// When it began, if that is known.
    pub begin: Option<u64>,
    /// Its first arguments, as far as they were recorded. Of a
    /// [`Begin`](Event::Begin) and a [`Leaf`](Event::Leaf).
    pub arguments: Arguments,
}

/// The end of a call.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Ending, Event};
#[doc = example_trace!()]
///
/// let Some(Event::End(_, end)) = trace.last() else {
///     panic!("the outermost call ends last");
/// };
/// assert_eq!((end.time, end.duration, end.own), (3000, 3000, 2000));
/// assert_eq!(end.how, Ending::Returned);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// When it ended, or when that became known. Nanoseconds.
    pub time: u64,
    /// How long it took. Nanoseconds; without sleep, if that was left out.
    pub duration: u64,
    /// The duration without that of the recorded calls inside. Nanoseconds.
    pub own: u64,
    /// How it ended.
    pub how: Ending,
    /// The return value, where it was recorded.
    pub value: Option<usize>,
}

/// How a call ended.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Ending, Event};
#[doc = example_calls!()]
/// # let unfinished = FGRAPH.scope(0x3000, 0);
/// # let mut cursors = [fgraph::tracer::Cursor::new()];
/// # let mut open = [fgraph::tracer::Open::new(); 16];
/// # let scale = fgraph::tracer::Scale::NANOSECONDS;
/// # let trace = fgraph::tracer::Trace::whole(&BUFFERS, scale, &mut cursors, &mut open).unwrap();
///
/// // A call that has not returned yet.
/// let Some(Event::End(_, end)) = trace.last() else {
///     panic!("every begin has its end");
/// };
/// assert_eq!(end.how, Ending::Unfinished);
/// assert_eq!(end.how.to_string(), "unfinished");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ending {
    /// It returned.
    Returned,
    /// It was jumped over, or its return slot was restored.
    Unwound,
    /// Its task ended inside it.
    TaskExit,
    /// It has ended, and the record of that is lost.
    Lost,
    /// It was under way at the end of the trace.
    Unfinished,
}

impl Ending {
    /// What is to be said of a call that did not just return.
    pub(in crate::tracer) const fn remark(self) -> Option<&'static str> {
        match self {
            Self::Returned => None,
            Self::Unwound => Some("unwound"),
            Self::TaskExit => Some("task exit"),
            Self::Lost => Some("end lost"),
            Self::Unfinished => Some("unfinished"),
        }
    }
}

impl core::fmt::Display for Ending {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.remark().unwrap_or("returned"))
    }
}

impl From<Cause> for Ending {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Returned => Self::Returned,
            Cause::Unwound => Self::Unwound,
            Cause::TaskExit => Self::TaskExit,
        }
    }
}

/// Something that happened.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Event;
#[doc = example_trace!()]
///
/// let kinds = trace.map(|event| match event {
///     Event::Begin(_) => "begin",
///     Event::Leaf(..) => "leaf",
///     Event::End(..) => "end",
///     Event::Lost { .. } => "lost",
/// });
/// assert_eq!(kinds.collect::<Vec<_>>(), ["begin", "leaf", "end"]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A call began, in which something else happens.
    Begin(Call),
    /// The innermost call of its task that has begun ended. If
    /// [`Call::begin`] is `None`, none has begun: it is the end of a call
    /// whose begin was lost, or was before tracing.
    End(Call, End),
    /// A call began and ended, and called nothing that was recorded.
    Leaf(Call, End),
    /// Records were lost at this place.
    Lost {
        /// The CPU that lost them.
        cpu: usize,
        /// How many.
        records: usize,
    },
}
