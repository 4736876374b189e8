//! A CPU's buffer of records: written by the CPU and its interrupts, read by
//! anybody.
//!
//! What a record's bits mean is [`record`](super::record)'s; what a sequence
//! of them tells is [`trace`](super::trace)'s.
//!
//! # Who may write, and when
//!
//! Each record is claimed by a compare-and-swap on its own state word, which
//! holds the *lap* of its writer; `head` is only where the search begins. An
//! interrupt between a claim and the write finds the record claimed and takes
//! the next; so does another CPU, when a task was moved between asking for the
//! CPU's number and writing. A record whose writer stalls for a whole lap is
//! passed over, so no two writers ever hold one. Writing takes one locked
//! instruction, on a line of the CPU's own.

use super::record::{Content, Era, Holder, Note, Read, Record, Stamp, key};
use crate::Context;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// What a full buffer does.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Buffer, Full, Record};
///
/// static RECORDS: [Record; 64] = [const { Record::new() }; 64];
/// /// The last 64 records, at any time.
/// static BUFFER: Buffer = Buffer::new(&RECORDS, Full::Overwrite);
/// # assert_eq!(BUFFER.written(), 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// The oldest records give way.
    Overwrite,
    /// New records are dropped, until a [live reader](super::Trace::live) has
    /// made room.
    Stop,
}

/// A CPU's buffer over records that the kernel supplies. What found no room
/// is counted, and told at the place where it was lost.
///
/// It uses the largest power of two of its records; with none, all is lost.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Buffer, Full, Record};
///
/// static RECORDS: [[Record; 4096]; 2] = [const { [const { Record::new() }; 4096] }; 2];
/// static BUFFERS: [Buffer; 2] = [
///     Buffer::new(&RECORDS[0], Full::Overwrite),
///     Buffer::new(&RECORDS[1], Full::Overwrite),
/// ];
/// assert_eq!(BUFFERS[0].capacity(), 4096);
/// ```
// Two lines: processors fetch them in pairs.
#[repr(align(128))]
#[derive(Debug)]
pub struct Buffer {
    records: &'static [Record],
    full: Full,
    /// Where the next record probably is. Counts from 0, wraps. Relaxed: the
    /// records themselves tell what is taken.
    head: AtomicUsize,
    /// Up to here a live reader has read. It alone writes it, and so reads it
    /// relaxed.
    tail: AtomicUsize,
    /// Records that found no room and are not told yet. Relaxed: a count, each
    /// part of which is taken once.
    lost: AtomicU32,
    /// The newest [`Era`]. Relaxed, as the next two: what a note tells is in the
    /// note, and one that races is written once more.
    era: AtomicU32,
    /// The last task whose number was told whole.
    task: AtomicUsize,
    /// Not 0: durations leave out what a task has slept.
    without_sleep: AtomicU32,
}

/// A reader's look at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// A record.
    Record(Read),
    /// It was lost: overwritten, or its writer stalled for a lap.
    Lost,
    /// It is being written.
    Busy,
}

impl Buffer {
    /// A buffer over `records`.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Buffer, Full, Record};
    ///
    /// static RECORDS: [Record; 100] = [const { Record::new() }; 100];
    /// static BUFFER: Buffer = Buffer::new(&RECORDS, Full::Stop);
    /// assert_eq!(BUFFER.capacity(), 64);
    /// ```
    #[must_use]
    pub const fn new(records: &'static [Record], full: Full) -> Self {
        let used = match records.len().checked_ilog2() {
            Some(log) => records.split_at(1 << log).0,
            None => records,
        };
        Self {
            records: used,
            full,
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            lost: AtomicU32::new(0),
            era: AtomicU32::new(Era::NONE.0),
            task: AtomicUsize::new(0),
            without_sleep: AtomicU32::new(0),
        }
    }

    /// How many records it holds at most.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Buffer, Full};
    ///
    /// let buffer = Buffer::new(&[], Full::Overwrite);
    /// assert_eq!(buffer.capacity(), 0);
    /// ```
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.records.len()
    }

    /// How many records were written since the start, read or not, overwritten
    /// or not. Wraps.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_calls!()]
    /// // Two calls: one with a call inside, one without.
    /// assert_eq!(BUFFERS[0].written(), 3);
    /// ```
    #[must_use]
    pub fn written(&self) -> usize {
        self.newest()
    }

    #[inline(always)]
    fn place(&self, position: usize) -> Option<(&Record, usize)> {
        let len = self.records.len();
        let record = self.records.get(position & len.wrapping_sub(1))?;
        // A shift: the length is a power of two.
        Some((record, position >> len.trailing_zeros()))
    }

    /// Claims and writes one record; returns its position.
    #[inline(always)]
    pub(super) fn write(&self, content: &Content) -> Option<usize> {
        if self.lost.load(Ordering::Relaxed) != 0 {
            self.tell_lost();
        }
        let written = self.try_write(content);
        if written.is_none() {
            self.count_lost();
        }
        written
    }

    /// Writes that a call begins; returns the position of its record.
    #[inline(always)]
    pub(super) fn write_entry(
        &self,
        stamp: &Stamp,
        func: usize,
        context: Context,
    ) -> Option<usize> {
        match Content::near_entry(stamp, func, context) {
            Some(content) => self.write(&content),
            None => self.write_far_entry(*stamp, func, context),
        }
    }

    #[cold]
    #[inline(never)]
    fn write_far_entry(&self, stamp: Stamp, func: usize, context: Context) -> Option<usize> {
        let (content, whole) = Content::far_entry(&stamp, func, context);
        if !whole {
            let key = key(stamp.time);
            self.write(&Content::note(Note::Function, func as u64, stamp.task, key));
        }
        self.write(&content)
    }

    #[inline(always)]
    fn try_write(&self, content: &Content) -> Option<usize> {
        let mut position = self.head.load(Ordering::Relaxed);
        loop {
            if self.full == Full::Stop && self.unread(position) >= self.records.len() {
                return None;
            }
            let (record, lap) = self.place(position)?;
            let seen = record.state();
            if !seen.is_free(lap) {
                position = self.catch_up(position);
            } else if record.claim(seen, lap) {
                self.head.store(position.wrapping_add(1), Ordering::Relaxed);
                record.write(content, lap);
                return Some(position);
            }
        }
    }

    /// Acquire pairs with the release in `release`: a reader has read what is
    /// overwritten next.
    fn unread(&self, position: usize) -> usize {
        let unread = position.wrapping_sub(self.tail.load(Ordering::Acquire));
        // A head that lags behind the tail.
        if unread > usize::MAX / 2 { 0 } else { unread }
    }

    #[cold]
    fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn tell_lost(&self) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let note = Content::note(Note::Lost, lost.into(), 0, 0);
        if self.try_write(&note).is_none() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Whether a record at `position` or behind it is taken: as far as its own
    /// state tells, the head is beyond.
    #[inline(always)]
    fn is_taken(&self, position: usize) -> bool {
        self.place(position).is_some_and(|(record, lap)| {
            matches!(
                record.state().holder(lap),
                Holder::Busy | Holder::Written | Holder::Ahead
            )
        })
    }

    /// From a position that is not free, the next that probably is. The head
    /// lags after an interrupt, or another CPU, came between a claim and its
    /// store; by a search in steps that double, catching up takes the
    /// logarithm of the distance.
    #[cold]
    #[inline(never)]
    fn catch_up(&self, position: usize) -> usize {
        let (mut taken, mut step) = (position, 1);
        let longest = self.records.len().saturating_mul(8);
        while step < longest && self.is_taken(taken.wrapping_add(step)) {
            taken = taken.wrapping_add(step);
            step *= 2;
        }
        while step > 1 {
            step /= 2;
            if self.is_taken(taken.wrapping_add(step)) {
                taken = taken.wrapping_add(step);
            }
        }
        taken.wrapping_add(1)
    }

    /// The position after the newest record.
    pub(super) fn newest(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        if self.is_taken(head) {
            return self.catch_up(head);
        }
        head
    }

    /// Makes the entry at `position` a leaf call, if nothing was written after
    /// it: see [`Record::close`].
    #[inline(always)]
    pub(super) fn close(&self, position: usize, content: &Content, ticks: u64) -> bool {
        let after = position.wrapping_add(1);
        if self.is_taken(after) {
            return false;
        }
        self.place(position)
            .is_some_and(|(record, lap)| record.close(content, lap, ticks))
    }

    /// Tells an era that differs from the last record's.
    #[inline(always)]
    pub(super) fn keep_era(&self, time: u64) {
        let era = Era::of(time);
        if self.era.load(Ordering::Relaxed) != era.0 {
            self.change_era(era);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_era(&self, era: Era) {
        let from = Era(self.era.swap(era.0, Ordering::Relaxed));
        if from != Era::NONE {
            self.write(&Content::note(Note::Era, Era::change(from, era), 0, 0));
        }
    }

    /// Tells the whole number of a task whose number does not fit a record,
    /// or of one that has the low bits of such a one.
    #[inline(always)]
    pub(super) fn keep_task(&self, task: usize) {
        let last = self.task.load(Ordering::Relaxed);
        if last != task && (task > u16::MAX.into() || last as u16 == task as u16) {
            self.change_task(task);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_task(&self, task: usize) {
        self.task.store(task, Ordering::Relaxed);
        let note = Content::note(Note::Task, task as u64, task as u16, 0);
        self.write(&note);
    }

    /// Tells readers that durations leave out what a task has slept.
    pub(super) fn leave_out_sleep(&self) {
        // Relaxed: each writer says so before its first duration. The load
        // keeps the line from being written over and over.
        if self.without_sleep.load(Ordering::Relaxed) == 0 {
            self.without_sleep.store(1, Ordering::Relaxed);
        }
    }

    // Reading.

    /// Whether a call may have lasted longer than its duration tells.
    pub(super) fn leaves_out_sleep(&self) -> bool {
        self.without_sleep.load(Ordering::Relaxed) != 0
    }

    /// The last task whose number was told whole.
    pub(super) fn last_task(&self) -> usize {
        self.task.load(Ordering::Relaxed)
    }

    /// Where a live reader goes on.
    pub(super) fn tail(&self) -> usize {
        self.tail.load(Ordering::Relaxed)
    }

    /// A live reader has read up to `position`. Release pairs with the acquire
    /// in `unread`.
    pub(super) fn release(&self, position: usize) {
        if self.tail() != position {
            self.tail.store(position, Ordering::Release);
        }
    }

    /// The oldest position that can be read, if `from` is the oldest unread.
    pub(super) fn oldest(&self, from: usize, newest: usize) -> usize {
        let unread = newest.wrapping_sub(from);
        match unread > self.records.len() && unread <= usize::MAX / 2 {
            true => newest.wrapping_sub(self.records.len()),
            false => from,
        }
    }

    pub(super) fn look(&self, position: usize) -> Look {
        let Some((record, lap)) = self.place(position) else {
            return Look::Lost;
        };
        match record.read(lap) {
            Ok(read) => Look::Record(read),
            Err(Holder::Busy) => Look::Busy,
            Err(_) => Look::Lost,
        }
    }

    /// Reads for good: an entry keeps what it is now.
    pub(super) fn take(&self, position: usize) -> Look {
        if let Some((record, lap)) = self.place(position) {
            record.freeze(lap);
        }
        self.look(position)
    }

    /// Whether the record at `position` is the newest, and an entry that may
    /// still become a leaf call.
    pub(super) fn is_open(&self, position: usize) -> bool {
        !self.is_taken(position.wrapping_add(1))
            && self
                .place(position)
                .is_some_and(|(record, lap)| record.is_open(lap))
    }

    /// A time near those of the records from `position` on.
    pub(super) fn time_near(&self, mut position: usize, newest: usize) -> u64 {
        while position != newest {
            if let Look::Record(Read::Note {
                note: Note::Era,
                value,
                ..
            }) = self.look(position)
            {
                return Era::changed(value).0.middle();
            }
            position = position.wrapping_add(1);
        }
        Era(self.era.load(Ordering::Relaxed)).middle()
    }

    /// Records that found no room since the last that did.
    pub(super) fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// As [`lost`](Self::lost), and they are told.
    pub(super) fn take_lost(&self) -> u32 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}
