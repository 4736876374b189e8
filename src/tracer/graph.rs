//! The graph tracer: a callback that records calls into per-CPU buffers.
//!
//! This file knows when something is recorded, not how it is read.
//!
//! # What a call costs
//!
//! A call that calls nothing that is recorded takes one record of sixteen
//! bytes: its entry becomes a *leaf call* when it ends, if nothing was recorded
//! on the CPU in between, nor inside of it on another, and it took less than
//! 2²⁴ ticks, and is at most 255 calls deep. Every other call takes two
//! records, thirty-two bytes: one for its entry and one for its end. Arguments
//! and return values take a record each. Once in 2³⁷ ticks a record tells the
//! time's upper bits.

use core::marker::PhantomData;

mod late;

pub use late::{LateFrame, LateGraph};

use bitflags::bitflags;

use super::buffer::Buffer;
use super::record::{Content, MAX_ARGUMENTS, MAX_DEPTH, Note, Stamp, key};
use crate::fgraph::{Parent, WordArray};
use crate::hook::Registers;
use crate::sync::{AtomicU32, Ordering, count};
use crate::{Callback, Cause, Entry, Exit, FrameData, Platform, RetStack};

bitflags! {
    /// What a [`Graph`] records beside calls and their times.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Recorded;
    ///
    /// let all = Recorded::RETURN_VALUE | Recorded::WITHOUT_SLEEP;
    /// assert_eq!(all, Recorded::all());
    /// assert_eq!(Recorded::default(), Recorded::empty());
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Recorded: u8 {
        /// The return value, where the hook has it.
        const RETURN_VALUE = 1;
        /// Durations without the time that the task was switched out, as
        /// [`Fgraph::switch`](crate::Fgraph::switch) tells it.
        ///
        /// # Example
        ///
        /// ```
        /// use fgraph::tracer::{Event, Graph, Recorded};
        #[doc = example_trace!()]
        ///
        /// static AWAKE: Graph<Kernel> = Graph::new(&BUFFERS).recorded(Recorded::WITHOUT_SLEEP);
        /// # {
        /// # static FGRAPH: fgraph::Fgraph<Kernel> = fgraph::Fgraph::new();
        /// FGRAPH.register(&AWAKE)?;
        /// let scope = FGRAPH.scope(check as fn() as usize, 0);
        /// // The task is switched out for 1,000 ticks, of 3,000.
        /// FGRAPH.switch(Some(&STACK), None);
        /// FGRAPH.switch(None, Some(&STACK));
        /// drop(scope);
        /// let Some(Event::Leaf(_, end) | Event::End(_, end)) = trace.last() else { panic!() };
        /// assert_eq!(end.duration, 2000);
        /// # }
        /// # Ok::<(), fgraph::fgraph::RegisterError>(())
        /// ```
        const WITHOUT_SLEEP = 2;
    }
}

/// A callback that records the calls it follows, with their times, into one
/// [`Buffer`] a CPU. [`Trace`](super::Trace) reads them.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Buffer, Full, Graph, Record, Recorded};
#[doc = example_kernel!()]
///
/// static RECORDS: [Record; 4096] = [const { Record::new() }; 4096];
/// static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
/// static GRAPH: Graph<Kernel> = Graph::new(&BUFFERS)
///     .max_depth(20)
///     .recorded(Recorded::RETURN_VALUE);
///
/// FGRAPH.register(&GRAPH)?;
/// drop(FGRAPH.scope(0x1000, 0));
/// assert!(BUFFERS[0].written() > 0);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
pub struct Graph<P> {
    buffers: &'static [Buffer],
    recorded: Recorded,
    max_depth: usize,
    arguments: usize,
    /// Events on a CPU without a buffer.
    unplaced: AtomicU32,
    backwards: AtomicU32,
    platform: PhantomData<fn() -> P>,
}

/// What a [`Graph`] could not record.
///
/// # Example
///
/// ```
/// use fgraph::tracer::{Graph, GraphCounters};
#[doc = example_kernel!()]
///
/// // No buffer at all.
/// static GRAPH: Graph<Kernel> = Graph::new(&[]);
/// FGRAPH.register(&GRAPH)?;
/// drop(FGRAPH.scope(0x1000, 0));
/// let lost = GraphCounters { unplaced: 2, ..GraphCounters::default() };
/// assert_eq!(GRAPH.counters(), lost);
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GraphCounters {
    /// Records of a CPU that has no buffer.
    pub unplaced: u32,
    /// Calls whose clock went backwards; they are recorded with no duration.
    pub backwards: u32,
}

/// What a [`Graph`] keeps in a frame.
///
/// # Example
///
/// ```
/// use fgraph::FrameData;
/// use fgraph::tracer::GraphFrame;
///
/// // Two words of a task's stack for each recorded call, and the word over them.
/// #[cfg(target_pointer_width = "64")]
/// assert_eq!(size_of::<<GraphFrame as FrameData>::Words>(), 16);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GraphFrame {
    /// The time at entry; less what the task had slept then, if that is left
    /// out.
    start: u64,
    depth: u16,
    /// The CPU in whose buffer the entry is, and its position's low bits there;
    /// none if a call inside was recorded on another.
    cpu: u16,
    position: u32,
}

/// Of a frame whose entry is in no buffer, or is not to become a leaf call.
const NOWHERE: u16 = u16::MAX;

const U64_WORDS: usize = <u64 as FrameData>::Words::LEN;

impl FrameData for GraphFrame {
    type Words = [usize; 2 * U64_WORDS];

    #[inline(always)]
    fn to_words(self) -> Self::Words {
        let [d0, d1] = self.depth.to_le_bytes();
        let [c0, c1] = self.cpu.to_le_bytes();
        let [p0, p1, p2, p3] = self.position.to_le_bytes();
        let place = u64::from_le_bytes([d0, d1, c0, c1, p0, p1, p2, p3]);
        let mut words = [0; 2 * U64_WORDS];
        let (start, rest) = words.split_at_mut(U64_WORDS);
        start.copy_from_slice(&self.start.to_words());
        rest.copy_from_slice(&place.to_words());
        words
    }

    #[inline(always)]
    fn from_words(words: Self::Words) -> Self {
        let part = |from: usize| {
            let word = |i| words.get(from + i).copied().unwrap_or(0);
            u64::from_words(core::array::from_fn(word))
        };
        let [d0, d1, c0, c1, p0, p1, p2, p3] = part(U64_WORDS).to_le_bytes();
        Self {
            start: part(0),
            depth: u16::from_le_bytes([d0, d1]),
            cpu: u16::from_le_bytes([c0, c1]),
            position: u32::from_le_bytes([p0, p1, p2, p3]),
        }
    }
}

impl<P> Graph<P> {
    /// Records into `buffers`: a CPU's number is the index of its buffer.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Buffer, Full, Graph, Record};
    #[doc = example_kernel!()]
    ///
    /// static RECORDS: [[Record; 64]; 2] = [const { [const { Record::new() }; 64] }; 2];
    /// /// CPU 0's and CPU 1's.
    /// static BUFFERS: [Buffer; 2] = [
    ///     Buffer::new(&RECORDS[0], Full::Overwrite),
    ///     Buffer::new(&RECORDS[1], Full::Overwrite),
    /// ];
    /// static GRAPH: Graph<Kernel> = Graph::new(&BUFFERS);
    /// assert_eq!(GRAPH.buffers().len(), 2);
    /// ```
    #[must_use]
    pub const fn new(buffers: &'static [Buffer]) -> Self {
        Self {
            buffers,
            recorded: Recorded::empty(),
            max_depth: MAX_DEPTH,
            arguments: 0,
            unplaced: AtomicU32::new(0),
            backwards: AtomicU32::new(0),
            platform: PhantomData,
        }
    }

    /// Records only calls that fewer than `depth` recorded calls enclose. The
    /// calls of other callbacks do not count.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Graph;
    #[doc = example_calls!()]
    ///
    /// static SHALLOW: Graph<Kernel> = Graph::new(&BUFFERS).max_depth(1);
    /// # let before = BUFFERS[0].written();
    /// # static ONLY: fgraph::Fgraph<Kernel> = fgraph::Fgraph::new();
    /// ONLY.register(&SHALLOW)?;
    /// let outer = ONLY.scope(read as fn() as usize, 0);
    /// drop(ONLY.scope(check as fn() as usize, 0));
    /// drop(outer);
    /// assert_eq!(BUFFERS[0].written() - before, 1, "one call, a leaf now");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn max_depth(mut self, depth: usize) -> Self {
        self.max_depth = if depth < MAX_DEPTH { depth } else { MAX_DEPTH };
        self
    }

    /// Records what else is asked for.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Graph, Recorded};
    #[doc = example_calls!()]
    ///
    /// static VALUES: Graph<Kernel> = Graph::new(&BUFFERS).recorded(Recorded::RETURN_VALUE);
    /// assert!(format!("{VALUES:?}").contains("RETURN_VALUE"));
    /// ```
    #[must_use]
    pub const fn recorded(mut self, what: Recorded) -> Self {
        self.recorded = what;
        self
    }

    /// Records the first `count` integer arguments of each call, up to six,
    /// where the hook has them.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::Graph;
    #[doc = example_calls!()]
    ///
    /// /// `Print` shows them between a call's parentheses.
    /// static ARGUMENTS: Graph<Kernel> = Graph::new(&BUFFERS).arguments(3);
    /// # assert!(format!("{ARGUMENTS:?}").contains("arguments: 3"));
    /// ```
    #[must_use]
    pub const fn arguments(mut self, count: usize) -> Self {
        self.arguments = if count < MAX_ARGUMENTS {
            count
        } else {
            MAX_ARGUMENTS
        };
        self
    }

    /// The buffers.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_calls!()]
    /// assert_eq!(GRAPH.buffers()[0].written(), 3);
    /// ```
    #[must_use]
    pub const fn buffers(&self) -> &'static [Buffer] {
        self.buffers
    }

    /// What could not be recorded, beside what the buffers tell as lost.
    ///
    /// # Example
    ///
    /// ```
    #[doc = example_calls!()]
    /// assert_eq!(GRAPH.counters().unplaced, 0, "each CPU has its buffer");
    /// ```
    #[must_use]
    pub fn counters(&self) -> GraphCounters {
        GraphCounters {
            unplaced: self.unplaced.load(Ordering::Relaxed),
            backwards: self.backwards.load(Ordering::Relaxed),
        }
    }

    #[inline(always)]
    fn buffer(&self, cpu: usize) -> Option<&'static Buffer> {
        let buffer = self.buffers.get(cpu);
        if buffer.is_none() {
            count(&self.unplaced, 1);
        }
        buffer
    }

    /// Writes the arguments, before their entry.
    #[cold]
    #[inline(never)]
    fn write_arguments(&self, buffer: &Buffer, registers: &Registers, stamp: Stamp) {
        for n in 0..self.arguments {
            if let Some(value) = registers.argument(n) {
                let note = Note::Argument(n);
                let key = key(stamp.time);
                buffer.write(&Content::note(note, value as u64, stamp.task, key));
            }
        }
    }

    /// Ticks that are left out of durations so far.
    #[inline(always)]
    fn slept(&self, stack: &RetStack) -> u64 {
        match self.recorded.contains(Recorded::WITHOUT_SLEEP) {
            true => stack.slept(),
            false => 0,
        }
    }

    /// Ticks from `start` to `end`; none if the clock went backwards.
    #[inline(always)]
    fn elapsed(&self, start: u64, end: u64) -> u64 {
        let ticks = end.wrapping_sub(start);
        if ticks > u64::MAX / 2 {
            self.count_backwards();
            return 0;
        }
        ticks
    }

    #[cold]
    #[inline(never)]
    fn count_backwards(&self) {
        count(&self.backwards, 1);
    }
}

/// The task was moved after its call `parent` began, and this is the first call
/// inside: where `parent` began nothing tells of it, so that an end there would
/// make a leaf call of `parent`.
#[cold]
#[inline(never)]
fn keep_open(parent: &Parent<'_, GraphFrame>, around: GraphFrame) {
    // An interrupt that does it too writes the same.
    parent.set(GraphFrame {
        cpu: NOWHERE,
        ..around
    });
}

impl<P: Platform> Callback for Graph<P> {
    type Frame = GraphFrame;

    #[inline]
    fn entry(&self, call: Entry<'_, GraphFrame>) -> Option<GraphFrame> {
        let parent = call.parent();
        let around = parent.as_ref().map(Parent::get);
        let depth = around.map_or(0, |around| usize::from(around.depth) + 1);
        if depth >= self.max_depth {
            return None;
        }
        let (task, cpu) = (P::task(), P::cpu());
        let slept = self.slept(call.stack());
        let time = P::clock();
        let mut frame = GraphFrame {
            start: time.wrapping_sub(slept),
            depth: depth as u16,
            cpu: NOWHERE,
            position: 0,
        };
        let Some(buffer) = self.buffer(cpu) else {
            return Some(frame);
        };
        let stamp = Stamp {
            time,
            task: task as u16,
            depth: frame.depth,
        };
        buffer.keep_era(time);
        buffer.keep_task(task);
        if self.arguments != 0
            && let Some(registers) = call.registers()
        {
            self.write_arguments(buffer, registers, stamp);
        }
        if let Some(position) = buffer.write_entry(&stamp, call.func(), call.context()) {
            frame.cpu = u16::try_from(cpu).unwrap_or(NOWHERE);
            // The low bits are enough to find the record, and its content
            // tells whether it is the one.
            frame.position = position as u32;
            if let (Some(parent), Some(around)) = (parent, around)
                && around.cpu != frame.cpu
                && around.cpu != NOWHERE
            {
                keep_open(&parent, around);
            }
        }
        Some(frame)
    }

    #[inline]
    fn exit(&self, call: Exit<'_, GraphFrame>, frame: GraphFrame) {
        let time = P::clock();
        let (task, cpu) = (P::task(), P::cpu());
        let slept = self.slept(call.stack());
        let ticks = self.elapsed(frame.start, time.wrapping_sub(slept));
        let Some(buffer) = self.buffer(cpu) else {
            return;
        };
        let mut stamp = Stamp {
            // As at entry, if the task has not slept since.
            time: frame.start.wrapping_add(slept),
            task: task as u16,
            depth: frame.depth,
        };
        let value = match self.recorded.contains(Recorded::RETURN_VALUE) {
            true => call.return_value(),
            false => None,
        };
        let leaf = call.cause() == Cause::Returned && value.is_none();
        if leaf
            && usize::from(frame.cpu) == cpu
            && let Some(entry) = Content::near_entry(&stamp, call.func(), call.context())
            && buffer.close(frame.position as usize, &entry, ticks)
        {
            return;
        }
        stamp.time = time;
        if self.recorded.contains(Recorded::WITHOUT_SLEEP) {
            buffer.leave_out_sleep();
        }
        buffer.keep_era(time);
        buffer.keep_task(task);
        if let Some(value) = value {
            let note = Content::note(Note::ReturnValue, value as u64, stamp.task, key(time));
            buffer.write(&note);
        }
        buffer.write(&Content::exit(&stamp, call.func(), ticks, call.cause()));
    }
}

impl<P> core::fmt::Debug for Graph<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Graph")
            .field("cpus", &self.buffers.len())
            .field("recorded", &self.recorded)
            .field("max_depth", &self.max_depth)
            .field("arguments", &self.arguments)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
