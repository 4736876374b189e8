//! The calls that have begun and not ended: those of each task as a chain, the
//! innermost first, in memory that the reader's caller gives.
//!
//! This file knows neither records nor what is told of them.

use crate::Context;
use crate::tracer::record::MAX_TICKS;

/// A reader's memory for one call that has begun, or one task.
///
/// # Example
///
/// ```
/// use fgraph::tracer::Open;
///
/// // For 200 calls of up to 56 tasks, or the other way about.
/// let open = [const { Open::new() }; 256];
/// # assert_eq!(open.len(), 256);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Open {
    kind: Kind,
    pub(super) call: RawCall,
    /// Nothing of the call, or task, can be earlier. Ticks.
    pub(super) until: u64,
    /// Nanoseconds in calls inside.
    pub(super) inner: u64,
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
pub(super) struct RawCall {
    pub(super) func: usize,
    pub(super) task: usize,
    pub(super) cpu: usize,
    /// As recorded.
    pub(super) depth: usize,
    /// How many calls enclose it that `depth` does not count.
    pub(super) uncounted: usize,
    pub(super) context: Context,
    pub(super) begin: u64,
    /// `begin` as recorded.
    pub(super) recorded: u64,
}

impl RawCall {
    /// Whether a call at `depth` in `context` interrupted this one where its
    /// tracer took it down, off the shadow stack: it lies inside, though its
    /// depth is the same.
    pub(super) fn is_interrupted(&self, depth: usize, context: Context) -> bool {
        depth == self.depth && context as u8 > self.context as u8
    }

    /// Whether the call, if it ended at `time`, can have taken `ticks`, of which
    /// sleep may be left out.
    pub(super) fn lasted(&self, time: u64, ticks: u64, without_sleep: bool) -> bool {
        let passed = time.wrapping_sub(self.recorded);
        match without_sleep {
            // The clock went back: it is recorded to have taken none.
            _ if passed > u64::MAX / 2 => ticks == 0,
            true => ticks <= passed,
            false => ticks == passed.min(MAX_TICKS),
        }
    }
}

impl Open {
    /// Not in use.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Cursor, Open, Scale, Trace};
    #[doc = example_calls!()]
    ///
    /// // One for the task, and none for its calls.
    /// let (mut cursors, mut open) = ([Cursor::new()], [Open::new()]);
    /// let mut trace = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
    /// assert_eq!(trace.by_ref().count(), 2, "a leaf, and an end without its begin");
    /// assert_eq!(trace.untracked(), 1);
    /// # Ok::<(), fgraph::tracer::TraceError>(())
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            kind: Kind::Free,
            call: RawCall {
                func: 0,
                task: 0,
                cpu: 0,
                depth: 0,
                uncounted: 0,
                context: Context::Task,
                begin: 0,
                recorded: 0,
            },
            until: 0,
            inner: 0,
            link: 0,
        }
    }

    fn is_task(&self, task: usize) -> bool {
        self.kind == Kind::Task && self.call.task == task
    }
}

impl Default for Open {
    fn default() -> Self {
        Self::new()
    }
}

/// The calls under way of all tasks. A task is told by its place, which
/// [`task`](Self::task) gives.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    places: &'a mut [Open],
    /// The place of the task that was found last.
    found: usize,
    /// Below it, all places are in use.
    free: usize,
}

impl<'a> UnderWay<'a> {
    /// None, in this memory.
    pub(super) fn new(places: &'a mut [Open]) -> Self {
        places.fill(Open::new());
        Self {
            places,
            found: 0,
            free: 0,
        }
    }

    /// The calls of a task, the innermost first.
    pub(super) fn of(&self, task: usize) -> impl Iterator<Item = &RawCall> + '_ {
        let is_it = |open: &&Open| open.is_task(task);
        let found = self.places.get(self.found).filter(is_it);
        let mut link = found
            .or_else(|| self.places.iter().find(is_it))
            .map(|open| open.link);
        core::iter::from_fn(move || {
            let open = self.places.get(link?)?;
            link = Some(open.link);
            (open.kind == Kind::Call).then_some(&open.call)
        })
    }

    /// The place of the task, taking one if need be.
    pub(super) fn task(&mut self, task: usize) -> Option<usize> {
        let is_it = |open: &Open| open.is_task(task);
        if self.places.get(self.found).is_some_and(is_it) {
            return Some(self.found);
        }
        let found = match self.places.iter().position(is_it) {
            Some(found) => found,
            None => {
                // A task without calls under way is not missed.
                let idle = |(i, open): (usize, &Open)| open.kind == Kind::Task && open.link == i;
                let place = self
                    .take_free()
                    .or_else(|| self.places.iter().enumerate().position(idle))?;
                let open = self.places.get_mut(place)?;
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

    /// The place of a task that has calls under way.
    pub(super) fn busy_task(&self) -> Option<usize> {
        let busy = |(i, open): (usize, &Open)| open.kind == Kind::Task && open.link != i;
        self.places.iter().enumerate().position(busy)
    }

    fn take_free(&mut self) -> Option<usize> {
        let rest = self.places.get(self.free..)?;
        let free = rest.iter().position(|open| open.kind == Kind::Free)?;
        let place = self.free + free;
        self.free = place + 1;
        Some(place)
    }

    /// The innermost call of the task at `place`.
    pub(super) fn innermost(&self, place: usize) -> Option<&RawCall> {
        let open = self.places.get(self.places.get(place)?.link)?;
        (open.kind == Kind::Call).then_some(&open.call)
    }

    /// Nothing that comes next in the task at `place` can be earlier. Ticks.
    pub(super) fn until(&self, place: usize) -> Option<u64> {
        let open = self.places.get(self.places.get(place)?.link)?;
        Some(open.until)
    }

    /// A call of the task at `place` begins; `None` if there is no room.
    pub(super) fn begin(&mut self, place: usize, call: RawCall) -> Option<()> {
        let at = self.take_free()?;
        let task = self.places.get_mut(place)?;
        let link = core::mem::replace(&mut task.link, at);
        *self.places.get_mut(at)? = Open {
            kind: Kind::Call,
            call,
            until: call.begin,
            inner: 0,
            link,
        };
        Some(())
    }

    /// The innermost call of the task at `place` ends.
    pub(super) fn end(&mut self, place: usize) -> Option<Open> {
        let at = self.places.get(place)?.link;
        let open = self.places.get_mut(at)?;
        if open.kind != Kind::Call {
            return None;
        }
        let ended = core::mem::take(open);
        self.places.get_mut(place)?.link = ended.link;
        self.free = self.free.min(at);
        Some(ended)
    }

    /// Inside what is the innermost call of the task at `place` now, a call
    /// took `duration` nanoseconds, until `time` in ticks.
    pub(super) fn pass(&mut self, place: usize, time: u64, duration: u64) {
        let link = self.places.get(place).map(|task| task.link);
        if let Some(around) = link.and_then(|link| self.places.get_mut(link)) {
            around.until = around.until.max(time);
            around.inner = around.inner.saturating_add(duration);
        }
    }
}
