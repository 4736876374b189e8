//! What of a trace goes into a directory for `uftrace`, as steps, and those as
//! words: a machine without files sends them to one that has some.

use fgraph::tracer::Event;

/// Something that a task did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A call of `func` began. Nanoseconds.
    Enter { task: usize, time: u64, func: usize },
    /// The innermost call ended, one of `func`. Nanoseconds.
    Leave { task: usize, time: u64, func: usize },
    /// So many records were lost here.
    Lost { records: usize },
}

/// Words of a step.
pub const WORDS: usize = 3;

const ENTER: u64 = 1;
const LEAVE: u64 = 2;
const LOST: u64 = 3;

impl Step {
    /// The steps of an event: two of a leaf call, none of the end of a call
    /// whose begin is not known.
    pub fn of(event: &Event) -> impl Iterator<Item = Self> + use<> {
        let (begin, end, lost) = match event {
            Event::Begin(call) => (Some(call), None, None),
            Event::End(call, end) => (None, Some((call, end.time)), None),
            Event::Leaf(call, end) => (Some(call), Some((call, end.time)), None),
            &Event::Lost { records, .. } => (None, None, Some(Self::Lost { records })),
        };
        let enter = begin.and_then(|call| {
            Some(Self::Enter {
                task: call.task,
                time: call.begin?,
                func: call.func?,
            })
        });
        let leave = end.and_then(|(call, time)| {
            call.begin?;
            Some(Self::Leave {
                task: call.task,
                time,
                func: call.func?,
            })
        });
        [lost, enter, leave].into_iter().flatten()
    }

    /// To be sent.
    pub fn to_words(self) -> [u64; WORDS] {
        match self {
            Self::Enter { task, time, func } => [ENTER | (task as u64) << 8, time, func as u64],
            Self::Leave { task, time, func } => [LEAVE | (task as u64) << 8, time, func as u64],
            Self::Lost { records } => [LOST, 0, records as u64],
        }
    }

    /// As received; `None` for words that are no step.
    pub fn from_words([head, time, value]: [u64; WORDS]) -> Option<Self> {
        let (task, value) = ((head >> 8) as usize, value as usize);
        let func = value;
        match head & 0xff {
            ENTER => Some(Self::Enter { task, time, func }),
            LEAVE => Some(Self::Leave { task, time, func }),
            LOST => Some(Self::Lost { records: value }),
            _ => None,
        }
    }
}
