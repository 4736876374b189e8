//! What the buffers tell, as one sequence of calls that begin and end.
//!
//! CPUs are merged by time. Whatever was lost, the begins and ends of each
//! task are properly nested. This file knows calls, not bits; how they are
//! written down is its users'.

use super::Scale;
use super::buffer::Buffer;
use super::cursor::{Arguments, Cursor, Item, Recorded};
use super::record::Read;
use crate::Cause;
use crate::platform::Context;

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
    pub(super) const fn remark(self) -> Option<&'static str> {
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

/// A reader's memory for one call that has begun, or one task.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Open;
///
/// let open = [const { Open::new() }; 256];
/// # let _ = open;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Open {
    kind: Kind,
    call: Raw,
    /// Nothing of the call, or task, can be earlier. Ticks.
    until: u64,
    /// Nanoseconds in calls inside.
    inner: u64,
    /// Of a task: its innermost call. Of a call: the enclosing one, or the
    /// task.
    link: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Free,
    Task,
    Call,
}

/// A call in ticks.
#[derive(Clone, Copy, Debug)]
struct Raw {
    func: usize,
    task: usize,
    cpu: usize,
    depth: usize,
    context: Context,
    begin: u64,
    /// `begin` as recorded.
    recorded: u64,
}

impl Open {
    /// Not in use.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            kind: Kind::Free,
            call: Raw {
                func: 0,
                task: 0,
                cpu: 0,
                depth: 0,
                context: Context::Task,
                begin: 0,
                recorded: 0,
            },
            until: 0,
            inner: 0,
            link: 0,
        }
    }
}

impl Default for Open {
    fn default() -> Self {
        Self::new()
    }
}

/// There is no cursor for each buffer, or no memory for calls at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLittleMemory;

impl core::fmt::Display for TooLittleMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a trace needs a cursor for each buffer, and room for calls under way")
    }
}

impl core::error::Error for TooLittleMemory {}

/// A reading of all buffers: an iterator over what happened. It allocates
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
/// }
/// # Ok::<(), fgraph::tracer::TooLittleMemory>(())
/// ```
#[derive(Debug)]
pub struct Trace<'a> {
    buffers: &'a [Buffer],
    cursors: &'a mut [Cursor],
    open: &'a mut [Open],
    scale: Scale,
    /// What has to wait for calls to end first.
    waiting: Option<(usize, Recorded)>,
    /// Nothing more will be written.
    last: bool,
    live: bool,
    /// The newest time so far. Ticks.
    now: u64,
    /// The place of the task that was found last.
    found: usize,
    /// Below it, all of `open` is in use.
    free: usize,
    untracked: usize,
}

impl<'a> Trace<'a> {
    /// Reads what is in the buffers now and leaves it there. Calls under way
    /// end as [`Unfinished`](Ending::Unfinished). Best read when tracing has
    /// stopped; what is overwritten meanwhile is told as lost.
    ///
    /// # Errors
    ///
    /// [`TooLittleMemory`].
    pub fn whole(
        buffers: &'a [Buffer],
        scale: Scale,
        cursors: &'a mut [Cursor],
        open: &'a mut [Open],
    ) -> Result<Self, TooLittleMemory> {
        if cursors.len() < buffers.len() || open.is_empty() {
            return Err(TooLittleMemory);
        }
        for (cursor, buffer) in cursors.iter_mut().zip(buffers) {
            cursor.start(buffer);
        }
        open.fill(Open::new());
        Ok(Self {
            buffers,
            cursors,
            open,
            scale,
            waiting: None,
            last: true,
            live: false,
            now: 0,
            found: 0,
            free: 0,
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
    /// [`TooLittleMemory`].
    pub fn live(
        buffers: &'a [Buffer],
        scale: Scale,
        cursors: &'a mut [Cursor],
        open: &'a mut [Open],
    ) -> Result<Self, TooLittleMemory> {
        Self::whole(buffers, scale, cursors, open).map(|trace| Self {
            last: false,
            live: true,
            ..trace
        })
    }

    /// Tracing has stopped: a live reading goes on to its end, at which calls
    /// under way end as [`Unfinished`](Ending::Unfinished).
    pub fn finish(&mut self) {
        self.last = true;
    }

    /// Calls that are not told because there was no [`Open`] for them.
    #[must_use]
    pub fn untracked(&self) -> usize {
        self.untracked
    }

    /// The buffers that it reads.
    #[must_use]
    pub fn buffers(&self) -> &'a [Buffer] {
        self.buffers
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.buffers.len()
    }

    /// How many calls of `task` have begun and not ended, as far as is told.
    #[must_use]
    pub fn enclosing(&self, task: usize) -> usize {
        self.under_way(task).count()
    }

    /// The function of the `level`th of these calls, the innermost first.
    #[must_use]
    pub fn enclosing_func(&self, task: usize, level: usize) -> Option<usize> {
        self.under_way(task).nth(level).map(|call| call.func)
    }

    fn under_way(&self, task: usize) -> impl Iterator<Item = &Raw> + '_ {
        let is_it = |open: &&Open| open.kind == Kind::Task && open.call.task == task;
        let found = self.open.get(self.found).filter(is_it);
        let mut link = found
            .or_else(|| self.open.iter().find(is_it))
            .map(|open| open.link);
        core::iter::from_fn(move || {
            let open = self.open.get(link?)?;
            link = Some(open.link);
            (open.kind == Kind::Call).then_some(&open.call)
        })
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

    /// The place of the task, taking one if need be.
    fn task(&mut self, task: usize) -> Option<usize> {
        let is_it = |open: &Open| open.kind == Kind::Task && open.call.task == task;
        if self.open.get(self.found).is_some_and(is_it) {
            return Some(self.found);
        }
        let found = match self.open.iter().position(is_it) {
            Some(found) => found,
            None => {
                // A task without calls under way is not missed.
                let idle = |(i, open): (usize, &Open)| open.kind == Kind::Task && open.link == i;
                let place = self
                    .take_free()
                    .or_else(|| self.open.iter().enumerate().position(idle))?;
                let open = self.open.get_mut(place)?;
                *open = Open::new();
                open.kind = Kind::Task;
                open.call.task = task;
                open.link = place;
                place
            }
        };
        self.found = found;
        Some(found)
    }

    fn take_free(&mut self) -> Option<usize> {
        let rest = self.open.get(self.free..)?;
        let free = rest.iter().position(|open| open.kind == Kind::Free)?;
        let place = self.free + free;
        self.free = place + 1;
        Some(place)
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        self.scale.nanoseconds(ticks)
    }

    /// The innermost call of the task at `place`.
    fn innermost(&self, place: usize) -> Option<(usize, &Open)> {
        let at = self.open.get(place)?.link;
        let open = self.open.get(at)?;
        (open.kind == Kind::Call).then_some((at, open))
    }

    /// Ends the innermost call of the task at `place`.
    fn end(&mut self, place: usize, cpu: usize, end: RawEnd) -> Option<Event> {
        let (at, open) = self.innermost(place)?;
        let open = *open;
        let time = end.time.max(open.until);
        let call = open.call;
        let (begin, over) = (self.nanoseconds(call.begin), self.nanoseconds(time));
        // The recorded duration, if it is no mere difference of times.
        let duration = match end.ticks {
            Some(ticks) if ticks != end.time.wrapping_sub(call.recorded) => self.nanoseconds(ticks),
            _ => over.saturating_sub(begin),
        };
        self.open.get_mut(place)?.link = open.link;
        if let Some(above) = self.open.get_mut(open.link) {
            above.until = above.until.max(time);
            above.inner = above.inner.saturating_add(duration);
        }
        *self.open.get_mut(at)? = Open::new();
        self.free = self.free.min(at);
        let call = Call {
            func: Some(call.func),
            cpu,
            task: call.task,
            depth: call.depth,
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
    fn tell(&mut self, cpu: usize, recorded: &Recorded) -> Told {
        let &Recorded { time, depth, .. } = recorded;
        self.now = self.now.max(time);
        let Some(place) = self.task(recorded.task) else {
            self.untracked += 1;
            return Told::Nothing;
        };
        // What is deeper than this has ended; at the same depth, only this
        // can end it.
        let innermost = self.innermost(place).map(|(_, open)| open.call);
        let ended = match recorded.read {
            Read::Exit { func, .. } => innermost.is_some_and(|call| {
                call.depth > depth
                    || call.depth == depth && func.is_some_and(|func| func != call.func)
            }),
            _ => innermost.is_some_and(|call| call.depth >= depth),
        };
        if ended {
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
                    false => Some(self.headless(cpu, recorded, func, ticks, end)),
                }
            }
            Read::Note { .. } => None,
        };
        told.map_or(Told::Nothing, Told::All)
    }

    fn headless(
        &self,
        cpu: usize,
        recorded: &Recorded,
        func: Option<usize>,
        ticks: u64,
        end: RawEnd,
    ) -> Event {
        let call = Call {
            func,
            cpu,
            task: recorded.task,
            depth: recorded.depth,
            context: Context::Task,
            begin: None,
            arguments: Arguments::default(),
        };
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
        recorded: &Recorded,
        func: usize,
        context: Context,
        leaf: Option<u64>,
    ) -> Option<Event> {
        let link = self.open.get(place)?.link;
        let begin = recorded.time.max(self.open.get(link)?.until);
        let call = Call {
            func: Some(func),
            cpu,
            task: recorded.task,
            depth: recorded.depth,
            context,
            begin: Some(self.nanoseconds(begin)),
            arguments: recorded.arguments,
        };
        if let Some(ticks) = leaf {
            let over = begin.saturating_add(ticks);
            self.now = self.now.max(over);
            let time = self.nanoseconds(over);
            let duration = time.saturating_sub(self.nanoseconds(begin));
            let above = self.open.get_mut(link)?;
            above.until = over;
            above.inner = above.inner.saturating_add(duration);
            let end = End {
                time,
                duration,
                own: duration,
                how: Ending::Returned,
                value: None,
            };
            return Some(Event::Leaf(call, end));
        }
        let Some(at) = self.take_free() else {
            self.untracked += 1;
            return None;
        };
        *self.open.get_mut(at)? = Open {
            kind: Kind::Call,
            call: Raw {
                func,
                task: recorded.task,
                cpu,
                depth: recorded.depth,
                context,
                begin,
                recorded: recorded.time,
            },
            until: begin,
            inner: 0,
            link,
        };
        self.open.get_mut(place)?.link = at;
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
        let under_way =
            |(i, open): (usize, &Open)| (open.kind == Kind::Task && open.link != i).then_some(i);
        let place = self.open.iter().enumerate().find_map(under_way)?;
        let cpu = self.innermost(place)?.1.call.cpu;
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
