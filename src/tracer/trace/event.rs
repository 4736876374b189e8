//! What a trace tells: calls that begin and end, in nanoseconds.
//!
//! This file is data. How it comes about is [`trace`](super)'s.

use crate::tracer::Arguments;
use crate::{Cause, Context};

/// A call that was recorded. Times are in nanoseconds of the platform's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The function; `None` at the end of a call whose begin is not known, if
    /// it was a long one.
    pub func: Option<usize>,
    /// The CPU that recorded this event.
    pub cpu: usize,
    /// The task.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// When it ended, or when that became known. Nanoseconds.
    pub time: u64,
    /// How long it took. Nanoseconds; without sleep, if that was left out.
    pub duration: u64,
    /// The duration without that of the recorded calls inside.
    pub own: u64,
    /// How it ended.
    pub how: Ending,
    /// The return value, where it was recorded.
    pub value: Option<usize>,
}

/// How a call ended.
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
