//! Reading one buffer in order: times and tasks made whole, notes given to
//! their records, losses told where they were.
//!
//! This file knows one CPU's records. Several CPUs, and what is nested in
//! what, are [`trace`](super::trace)'s.

use super::buffer::{Buffer, Look};
use super::record::{Era, MAX_ARGUMENTS, Note, Read, Stamp, nearest};

/// A reader's memory for one buffer.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Cursor;
///
/// // One for each CPU's buffer.
/// let cursors = [const { Cursor::new() }; 4];
/// # assert_eq!(cursors.len(), 4);
/// ```
#[derive(Debug)]
pub struct Cursor {
    position: usize,
    /// The last record's time, or one near the next one's.
    time: u64,
    /// Whether `time` is of use at `position`.
    placed: bool,
    /// Records lost before `position`.
    lost: usize,
    /// Whether what found no room at the end was told.
    ended: bool,
    /// The task whose low bits stand for all of it.
    task: usize,
    notes: Notes,
}

/// Notes that wait for their record.
#[derive(Clone, Copy, Debug)]
struct Notes {
    key: u32,
    task: u16,
    arguments: [usize; MAX_ARGUMENTS],
    /// How many of them.
    count: u8,
    value: Option<usize>,
    func: Option<usize>,
}

impl Notes {
    const NONE: Self = Self {
        key: 0,
        task: 0,
        arguments: [0; MAX_ARGUMENTS],
        count: 0,
        value: None,
        func: None,
    };
}

/// One thing that a buffer tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    /// Records were lost here.
    Lost(usize),
    Record(WholeRecord),
}

/// A record with all that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeRecord {
    pub(super) read: Read,
    pub(super) time: u64,
    pub(super) task: usize,
    pub(super) depth: usize,
    pub(super) arguments: Arguments,
    pub(super) value: Option<usize>,
}

/// The first arguments of a call, as far as they were recorded.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Arguments;
///
/// let none = Arguments::default();
/// assert_eq!(none.first(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Arguments {
    values: [usize; MAX_ARGUMENTS],
    count: u8,
}

impl core::ops::Deref for Arguments {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        self.values.get(..self.count.into()).unwrap_or(&[])
    }
}

impl Default for Cursor {
    fn default() -> Self {
        Self::new()
    }
}

impl Cursor {
    /// Not in use.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Cursor, Open, Scale, Trace};
    #[doc = example_calls!()]
    ///
    /// let (mut cursors, mut open) = ([Cursor::new()], [Open::new(); 16]);
    /// let trace = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
    /// assert_eq!(trace.count(), 3);
    /// # Ok::<(), fgraph::tracer::TraceError>(())
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            position: 0,
            time: 0,
            placed: false,
            lost: 0,
            ended: false,
            task: 0,
            notes: Notes::NONE,
        }
    }

    /// Goes to the oldest unread record.
    pub(super) fn start(&mut self, buffer: &Buffer) {
        *self = Self::new();
        self.position = buffer.tail();
        self.task = buffer.last_task();
    }

    /// Passes over what is lost, and over notes, up to the next record, and
    /// tells its time; `None` if there is none yet. `last`: what is being
    /// written is lost, and a call under way is taken as it is.
    pub(super) fn peek(&mut self, buffer: &Buffer, last: bool) -> Option<u64> {
        loop {
            let newest = buffer.newest();
            let oldest = buffer.oldest(self.position, newest);
            if oldest != self.position {
                self.skip(oldest.wrapping_sub(self.position), oldest);
            }
            // Damaged records may have led it beyond the newest.
            let ahead = newest.wrapping_sub(self.position) > usize::MAX / 2;
            if self.position == newest || ahead {
                let lost = match last {
                    // It is not taken from other readers.
                    true if self.ended => 0,
                    true => buffer.lost() as usize,
                    false => buffer.take_lost() as usize,
                };
                self.lost = self.lost.saturating_add(lost);
                self.ended = last;
                return (self.lost > 0).then_some(self.time);
            }
            if !self.placed {
                self.time = buffer.time_near(self.position, newest);
                self.placed = true;
            }
            match buffer.look(self.position) {
                Look::Busy if !last => return (self.lost > 0).then_some(self.time),
                Look::Busy | Look::Lost => {
                    let next = self.position.wrapping_add(1);
                    self.skip(1, next);
                    self.placed = true;
                }
                Look::Record(Read::Note {
                    note,
                    value,
                    task,
                    key,
                }) => {
                    self.note(note, value, task, key);
                    self.position = self.position.wrapping_add(1);
                }
                Look::Record(read) => {
                    if !last && buffer.is_open(self.position) {
                        return (self.lost > 0).then_some(self.time);
                    }
                    return stamp(&read).map(|stamp| nearest(stamp.time, self.time));
                }
            }
        }
    }

    fn skip(&mut self, lost: usize, to: usize) {
        self.lost = self.lost.saturating_add(lost);
        self.position = to;
        self.placed = false;
    }

    fn note(&mut self, note: Note, value: u64, task: u16, key: u32) {
        let word = value as usize;
        match note {
            Note::Era => self.time = Era::changed(value).1.middle(),
            Note::Task => self.task = word,
            Note::Lost => self.lost = self.lost.saturating_add(word),
            Note::Function => self.notes_of(task, key).func = Some(word),
            Note::ReturnValue => self.notes_of(task, key).value = Some(word),
            Note::Argument(n) => {
                let notes = self.notes_of(task, key);
                if let Some(argument) = notes.arguments.get_mut(n) {
                    *argument = word;
                    notes.count = notes.count.max(n as u8 + 1);
                }
            }
        }
    }

    /// The notes for the record with this key; those for another go.
    fn notes_of(&mut self, task: u16, key: u32) -> &mut Notes {
        if (self.notes.key, self.notes.task) != (key, task) {
            self.notes = Notes {
                key,
                task,
                ..Notes::NONE
            };
        }
        &mut self.notes
    }

    /// What [`peek`](Self::peek) found.
    pub(super) fn take(&mut self, buffer: &Buffer) -> Option<Item> {
        if self.lost > 0 {
            return Some(Item::Lost(core::mem::take(&mut self.lost)));
        }
        let look = buffer.take(self.position);
        self.position = self.position.wrapping_add(1);
        let Look::Record(mut read) = look else {
            return Some(Item::Lost(1));
        };
        let stamp = stamp(&read)?;
        self.time = nearest(stamp.time, self.time);
        let mut notes = self.notes;
        if (notes.key, notes.task) == (super::record::key(stamp.time), stamp.task) {
            self.notes = Notes::NONE;
        } else {
            notes = Notes::NONE;
        }
        if let (Read::Entry { func, .. } | Read::Leaf { func, .. }, Some(whole)) =
            (&mut read, notes.func)
        {
            *func = whole;
        }
        let task = match self.task as u16 == stamp.task {
            true => self.task,
            false => stamp.task.into(),
        };
        Some(Item::Record(WholeRecord {
            read,
            time: self.time,
            task,
            depth: stamp.depth.into(),
            arguments: Arguments {
                values: notes.arguments,
                count: notes.count,
            },
            value: notes.value,
        }))
    }

    /// Where it is, for a buffer that may reuse what was read.
    pub(super) fn position(&self) -> usize {
        self.position
    }
}

fn stamp(read: &Read) -> Option<Stamp> {
    match *read {
        Read::Entry { stamp, .. } | Read::Leaf { stamp, .. } | Read::Exit { stamp, .. } => {
            Some(stamp)
        }
        Read::Note { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::tracer::record::{Content, key};
    use crate::tracer::{Full, Record};

    /// Writes what some calls began with, and the calls; then reads the
    /// arguments of each call.
    fn read<const CALLS: usize>(write: impl Fn(&Buffer)) -> [Arguments; CALLS] {
        static RECORDS: [Record; 32] = [const { Record::new() }; 32];
        let buffer = &Buffer::new(&RECORDS, Full::Overwrite);
        write(buffer);
        let mut cursor = Cursor::new();
        cursor.start(buffer);
        let calls = core::array::from_fn(|_| {
            assert!(cursor.peek(buffer, true).is_some());
            match cursor.take(buffer) {
                Some(Item::Record(record)) => record.arguments,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(cursor.peek(buffer, true), None);
        calls
    }

    #[test]
    fn arguments_are_of_the_call_of_their_task_and_time() {
        let [own, other, late, used, of_task, of_time] = read(|buffer| {
            let argument = |n, value, task, time| {
                let note = Note::Argument(n);
                buffer.write(&Content::note(note, value, task, key(time)));
            };
            let call = |task, time| {
                let stamp = Stamp {
                    time,
                    task,
                    depth: 0,
                };
                buffer.write_entry(&stamp, crate::arch::middle(), Context::Task);
            };
            argument(0, 10, 1, 100);
            argument(1, 11, 1, 100);
            call(1, 100);
            // An interrupt's call comes between a call and its arguments.
            argument(0, 20, 2, 200);
            call(3, 200);
            call(2, 200);
            call(2, 200);
            // Those of a call that was lost are nobody's.
            argument(0, 30, 5, 300);
            argument(1, 41, 4, 300);
            call(4, 300);
            argument(0, 50, 6, 400);
            argument(1, 51, 6, 500);
            call(6, 500);
        });
        assert_eq!(*own, [10, 11]);
        assert_eq!(*other, []);
        assert_eq!(*late, [20]);
        assert_eq!(*used, []);
        assert_eq!(*of_task, [0, 41]);
        assert_eq!(*of_time, [0, 51]);
    }
}
