//! What the buffers tell, as one sequence of calls that begin and end.
//!
//! This file knows calls, not bits; how they are written down is its users'.

use super::Scale;
use super::buffer::Buffer;
use super::cursor::{Arguments, Cursor, Item, WholeRecord};
use super::record::Read;
use crate::Context;

mod error;
mod event;
mod open;

pub use error::TraceError;
pub use event::{Call, End, Ending, Event};
pub use open::Open;

use open::{RawCall, UnderWay};

/// A reading of all buffers: an iterator over what happened, CPUs merged by
/// time. Whatever was lost, the begins and ends of each task nest. It allocates
/// nothing; the caller supplies a [`Cursor`] for each buffer, and an [`Open`]
/// for each call that may be under way at once and each task that has some.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Buffer, Cursor, Full, Open, Record, Scale, Trace};
///
/// static RECORDS: [Record; 1024] = [const { Record::new() }; 1024];
/// static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
///
/// let mut cursors = [const { Cursor::new() }; 1];
/// let mut open = [const { Open::new() }; 256];
/// for event in Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)? {
///     println!("{event:?}");
/// #   unreachable!("nothing was recorded");
/// }
/// # Ok::<(), fgraph::tracer::TraceError>(())
/// ```
#[derive(Debug)]
pub struct Trace<'a> {
    buffers: &'a [Buffer],
    cursors: &'a mut [Cursor],
    open: UnderWay<'a>,
    scale: Scale,
    /// What has to wait for calls to end first.
    waiting: Option<(usize, WholeRecord)>,
    /// Nothing more will be written.
    last: bool,
    live: bool,
    /// The newest time so far. Ticks.
    now: u64,
    untracked: usize,
}

impl<'a> Trace<'a> {
    /// Reads what is in the buffers now and leaves it there. Calls under way
    /// end as [`Unfinished`](Ending::Unfinished). Best read when tracing has
    /// stopped; what is overwritten meanwhile is told as lost.
    ///
    /// # Errors
    ///
    /// There is too little memory to read.
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
    /// // It is all still there.
    /// let again = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
    /// assert_eq!(again.count(), 3);
    /// # Ok::<(), fgraph::tracer::TraceError>(())
    /// ```
    pub fn whole(
        buffers: &'a [Buffer],
        scale: Scale,
        cursors: &'a mut [Cursor],
        open: &'a mut [Open],
    ) -> Result<Self, TraceError> {
        if cursors.len() < buffers.len() {
            return Err(TraceError::Cursors);
        }
        if open.is_empty() {
            return Err(TraceError::Open);
        }
        for (cursor, buffer) in cursors.iter_mut().zip(buffers) {
            cursor.start(buffer);
        }
        Ok(Self {
            buffers,
            cursors,
            open: UnderWay::new(open),
            scale,
            waiting: None,
            last: true,
            live: false,
            now: 0,
            untracked: 0,
        })
    }

    /// Reads while tracing goes on, and makes room by it. `next` returns
    /// `None` where nothing more is there yet; ask again later. One live
    /// reader at a time.
    ///
    /// CPUs are merged as far as they have written: an event of another CPU
    /// that is written later is told later.
    ///
    /// # Errors
    ///
    /// There is too little memory to read.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Cursor, Open, Scale, Trace};
    #[doc = example_calls!()]
    ///
    /// let (mut cursors, mut open) = ([Cursor::new()], [Open::new(); 16]);
    /// let mut trace = Trace::live(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
    /// assert_eq!(trace.by_ref().count(), 3);
    /// assert_eq!(trace.next(), None);
    /// drop(FGRAPH.scope(read as fn() as usize, 0));
    /// assert_eq!(trace.by_ref().count(), 1);
    /// # Ok::<(), fgraph::tracer::TraceError>(())
    /// ```
    pub fn live(
        buffers: &'a [Buffer],
        scale: Scale,
        cursors: &'a mut [Cursor],
        open: &'a mut [Open],
    ) -> Result<Self, TraceError> {
        Self::whole(buffers, scale, cursors, open).map(|trace| Self {
            last: false,
            live: true,
            ..trace
        })
    }

    /// Tracing has stopped: a live reading goes on to its end, at which calls
    /// under way end as [`Unfinished`](Ending::Unfinished).
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Cursor, Open, Scale, Trace};
    #[doc = example_calls!()]
    ///
    /// let (mut cursors, mut open) = ([Cursor::new()], [Open::new(); 16]);
    /// let mut trace = Trace::live(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
    /// let scope = FGRAPH.scope(read as fn() as usize, 0);
    /// assert_eq!(trace.by_ref().count(), 3, "a call under way may become a leaf");
    /// trace.finish();
    /// assert_eq!(trace.by_ref().count(), 2, "its begin, and its end as unfinished");
    /// # Ok::<(), fgraph::tracer::TraceError>(())
    /// ```
    pub fn finish(&mut self) {
        self.last = true;
    }

    /// Calls that are not told because there was no [`Open`] for them.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_trace!()]
    /// assert_eq!(trace.by_ref().count(), 3);
    /// assert_eq!(trace.untracked(), 0, "all were told");
    /// ```
    #[must_use]
    pub fn untracked(&self) -> usize {
        self.untracked
    }

    /// The buffers that it reads.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_trace!()]
    /// assert_eq!(trace.buffers().len(), 1);
    /// ```
    #[must_use]
    pub fn buffers(&self) -> &'a [Buffer] {
        self.buffers
    }

    /// How many calls of `task` have begun and not ended, as far as is told.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_trace!()]
    /// trace.next();
    /// assert_eq!(trace.enclosing(7), 1, "`read` has begun");
    /// ```
    #[must_use]
    pub fn enclosing(&self, task: usize) -> usize {
        self.open.of(task).count()
    }

    /// The function of the `level`th of these calls, the innermost first.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_trace!()]
    /// trace.next();
    /// assert_eq!(trace.enclosing_func(7, 0), Some(read as fn() as usize));
    /// assert_eq!(trace.enclosing_func(7, 1), None);
    /// ```
    #[must_use]
    pub fn enclosing_func(&self, task: usize, level: usize) -> Option<usize> {
        self.open.of(task).nth(level).map(|call| call.func)
    }

    /// The buffer whose next record is the earliest.
    fn earliest(&mut self) -> Option<usize> {
        let mut earliest = None;
        for (cpu, (buffer, cursor)) in self.buffers.iter().zip(self.cursors.iter_mut()).enumerate()
        {
            if let Some(time) = cursor.peek(buffer, self.last)
                && earliest.is_none_or(|(_, least)| time < least)
            {
                earliest = Some((cpu, time));
            }
        }
        earliest.map(|(cpu, _)| cpu)
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        self.scale.nanoseconds(ticks)
    }

    /// Ends the innermost call of the task at `place`.
    fn end(&mut self, place: usize, cpu: usize, end: RawEnd) -> Option<Event> {
        let open = self.open.end(place)?;
        let call = open.call;
        let time = end.time.max(open.until);
        let (begin, over) = (self.nanoseconds(call.begin), self.nanoseconds(time));
        // The recorded duration, if it is no mere difference of times.
        let duration = match end.ticks {
            Some(ticks) if ticks != end.time.wrapping_sub(call.recorded) => self.nanoseconds(ticks),
            _ => over.saturating_sub(begin),
        };
        self.open.pass(place, time, duration);
        let call = Call {
            func: Some(call.func),
            cpu,
            task: call.task,
            depth: call.depth.saturating_add(call.uncounted),
            context: call.context,
            begin: Some(begin),
            arguments: Arguments::default(),
        };
        let end = End {
            time: over,
            duration,
            own: duration.saturating_sub(open.inner),
            how: end.how,
            value: end.value,
        };
        Some(Event::End(call, end))
    }

    /// What a record tells; `None` if it waits until calls have ended, or is
    /// not told.
    fn tell(&mut self, cpu: usize, recorded: &WholeRecord) -> Told {
        let &WholeRecord { time, depth, .. } = recorded;
        self.now = self.now.max(time);
        let Some(place) = self.open.task(recorded.task) else {
            self.untracked += 1;
            return Told::Nothing;
        };
        let innermost = self.open.innermost(place).copied();
        if innermost.is_some_and(|call| self.proves_ended(&call, cpu, recorded)) {
            let end = RawEnd {
                time,
                ticks: None,
                how: Ending::Lost,
                value: None,
            };
            return self.end(place, cpu, end).map_or(Told::Nothing, Told::First);
        }
        let told = match recorded.read {
            Read::Entry { func, context, .. } => {
                self.begin(place, cpu, recorded, func, context, None)
            }
            Read::Leaf {
                func,
                context,
                ticks,
                ..
            } => self.begin(place, cpu, recorded, func, context, Some(ticks)),
            Read::Exit {
                func, ticks, cause, ..
            } => {
                let end = RawEnd {
                    time,
                    ticks: Some(ticks),
                    how: cause.into(),
                    value: recorded.value,
                };
                match innermost.is_some_and(|call| call.depth == depth) {
                    true => self.end(place, cpu, end),
                    false => {
                        let uncounted = innermost.map_or(0, |call| call.uncounted);
                        let call = Call {
                            func,
                            cpu,
                            task: recorded.task,
                            depth: depth.saturating_add(uncounted),
                            context: Context::Task,
                            begin: None,
                            arguments: Arguments::default(),
                        };
                        Some(self.headless(call, ticks, end))
                    }
                }
            }
            Read::Note { .. } => None,
        };
        told.map_or(Told::Nothing, Told::All)
    }

    /// Whether a task's innermost call has ended if this is its next record. What
    /// is deeper has; at the same depth, only this can end it, if it is not the
    /// end of a later call whose begin was lost.
    fn proves_ended(&self, call: &RawCall, cpu: usize, recorded: &WholeRecord) -> bool {
        let &WholeRecord { time, depth, .. } = recorded;
        match recorded.read {
            Read::Exit { func, ticks, .. } => {
                let buffer = self.buffers.get(cpu);
                let without_sleep = buffer.is_some_and(Buffer::leaves_out_sleep);
                let other = func.is_some_and(|func| func != call.func)
                    || !call.lasted(time, ticks, without_sleep);
                call.depth > depth || call.depth == depth && other
            }
            Read::Entry { context, .. } | Read::Leaf { context, .. } => {
                call.depth >= depth && !call.is_interrupted(depth, context)
            }
            Read::Note { .. } => false,
        }
    }

    fn headless(&self, call: Call, ticks: u64, end: RawEnd) -> Event {
        let over = self.nanoseconds(end.time);
        let duration = match end.time.checked_sub(ticks) {
            Some(begin) => over.saturating_sub(self.nanoseconds(begin)),
            None => self.nanoseconds(ticks),
        };
        let end = End {
            time: over,
            duration,
            own: duration,
            how: end.how,
            value: end.value,
        };
        Event::End(call, end)
    }

    /// A call of the task at `place` begins; a leaf ends too.
    fn begin(
        &mut self,
        place: usize,
        cpu: usize,
        recorded: &WholeRecord,
        func: usize,
        context: Context,
        leaf: Option<u64>,
    ) -> Option<Event> {
        let begin = recorded.time.max(self.open.until(place)?);
        let uncounted = self.open.innermost(place).map_or(0, |around| {
            around.uncounted + usize::from(around.depth >= recorded.depth)
        });
        let call = Call {
            func: Some(func),
            cpu,
            task: recorded.task,
            depth: recorded.depth.saturating_add(uncounted),
            context,
            begin: Some(self.nanoseconds(begin)),
            arguments: recorded.arguments,
        };
        if let Some(ticks) = leaf {
            let over = recorded.time.saturating_add(ticks).max(begin);
            self.now = self.now.max(over);
            let time = self.nanoseconds(over);
            let duration = time.saturating_sub(self.nanoseconds(begin));
            self.open.pass(place, over, duration);
            let end = End {
                time,
                duration,
                own: duration,
                how: Ending::Returned,
                value: None,
            };
            return Some(Event::Leaf(call, end));
        }
        let under_way = RawCall {
            func,
            task: recorded.task,
            cpu,
            depth: recorded.depth,
            uncounted,
            context,
            begin,
            recorded: recorded.time,
        };
        if self.open.begin(place, under_way).is_none() {
            self.untracked += 1;
            return None;
        }
        Some(Event::Begin(call))
    }

    /// Gives what a live reader has read back to the writers.
    fn release(&self) {
        if self.live {
            for (buffer, cursor) in self.buffers.iter().zip(self.cursors.iter()) {
                buffer.release(cursor.position());
            }
        }
    }

    /// Ends a call that is under way at the end.
    fn unfinished(&mut self) -> Option<Event> {
        let place = self.open.busy_task()?;
        let cpu = self.open.innermost(place)?.cpu;
        let end = RawEnd {
            time: self.now,
            ticks: None,
            how: Ending::Unfinished,
            value: None,
        };
        self.end(place, cpu, end)
    }
}

/// The end of a call, in ticks.
#[derive(Clone, Copy)]
struct RawEnd {
    time: u64,
    ticks: Option<u64>,
    how: Ending,
    value: Option<usize>,
}

/// What came of a record.
enum Told {
    /// It is told by this.
    All(Event),
    /// This comes first; ask again.
    First(Event),
    Nothing,
}

impl Iterator for Trace<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let (cpu, recorded) = match self.waiting.take() {
                Some(waiting) => waiting,
                None => {
                    let earliest = self.earliest();
                    let Some(cpu) = earliest else {
                        self.release();
                        return if self.last { self.unfinished() } else { None };
                    };
                    let buffer = self.buffers.get(cpu)?;
                    let cursor = self.cursors.get_mut(cpu)?;
                    let item = cursor.take(buffer);
                    self.release();
                    match item {
                        Some(Item::Lost(records)) => return Some(Event::Lost { cpu, records }),
                        Some(Item::Record(recorded)) => (cpu, recorded),
                        None => continue,
                    }
                }
            };
            match self.tell(cpu, &recorded) {
                Told::All(event) => return Some(event),
                Told::First(event) => {
                    self.waiting = Some((cpu, recorded));
                    return Some(event);
                }
                Told::Nothing => {}
            }
        }
    }
}
