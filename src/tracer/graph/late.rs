//! A graph that writes a call when it ends, so that it can still be left out.
//!
//! This file knows when a call is written that way; what is written is as in
//! [`graph`](super).
//!
//! # When
//!
//! A call that ends and is kept writes the entries of the calls around it that
//! have none yet, the outermost first, and then itself: as a leaf call, in one
//! record, if no call inside it was kept and it has not slept. So a task's
//! records are in the order in which its calls began, as a reader wants them,
//! though between those of other tasks on the CPU they stand where they were
//! written.
//!
//! The entry of an enclosing call is written by whoever first adds to its
//! frame's count, an interrupt's call perhaps.

use super::{Buffer, Callback, Content, Exit, FrameData, Graph, Platform, Recorded, Stamp, key};
use crate::fgraph::Parent;
use crate::platform::Context;
use crate::tracer::filter::Deferred;
use crate::tracer::record::Note;
use crate::{Cause, Entry};

/// A [`Graph`] that records each call at its end: for
/// [`MinDuration`](crate::tracer::filter::MinDuration), so that quick calls
/// leave no record.
///
/// It differs from a graph in what can not be known, or be read any more, at a
/// call's end: it records no arguments, and a call that has not ended is told
/// only if a call inside it was kept. A kept call in which no other is kept
/// takes one record, whatever was recorded meanwhile, or two if it has slept and
/// that is left out; a discarded one takes none. The first call that is kept
/// inside of many looks at each of them, once for each.
///
/// # Example
///
/// Calls of a millisecond and more, by a clock of nanoseconds:
///
/// ```
/// use fgraph::tracer::filter::MinDuration;
/// use fgraph::tracer::{Buffer, Full, Graph, LateGraph, Record};
#[doc = example_kernel!()]
///
/// static RECORDS: [Record; 4096] = [const { Record::new() }; 4096];
/// static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
/// static SLOW: MinDuration<Kernel, LateGraph<Kernel>> =
///     MinDuration::new(Graph::new(&BUFFERS).late(), 1_000_000);
///
/// FGRAPH.register(&SLOW)?;
/// # Ok::<(), fgraph::fgraph::RegisterError>(())
/// ```
#[derive(Debug)]
pub struct LateGraph<P>(Graph<P>);

/// What a [`LateGraph`] keeps in a frame.
///
/// # Example
///
/// ```
/// use fgraph::FrameData;
/// use fgraph::tracer::LateFrame;
///
/// // Four words of a task's stack for each call, and the word over them.
/// # #[cfg(target_pointer_width = "64")]
/// assert_eq!(size_of::<<LateFrame as FrameData>::Words>(), 4 * size_of::<usize>());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LateFrame {
    /// Not 0: the entry is written, or about to be. First, for
    /// [`Parent::add`].
    written: usize,
    depth: u16,
    context: Context,
    /// When it began, and what the task had slept then.
    time: u64,
    slept: u64,
}

/// The place of `written`.
const WRITTEN: usize = 0;

type LateWords = (usize, (usize, (u64, u64)));

impl FrameData for LateFrame {
    type Words = <LateWords as FrameData>::Words;

    #[inline(always)]
    fn to_words(self) -> Self::Words {
        let [low, high] = self.depth.to_le_bytes();
        let place = u32::from_le_bytes([low, high, self.context as u8, 0]);
        (self.written, (place as usize, (self.time, self.slept))).to_words()
    }

    #[inline(always)]
    fn from_words(words: Self::Words) -> Self {
        let (written, (place, (time, slept))) = LateWords::from_words(words);
        let [low, high, context, _] = (place as u32).to_le_bytes();
        Self {
            written,
            depth: u16::from_le_bytes([low, high]),
            context: Context::from_code(context.into()),
            time,
            slept,
        }
    }
}

impl<P> Graph<P> {
    /// Records a call when it ends.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Buffer, Full, Graph, LateGraph, Record};
    #[doc = example_kernel!()]
    ///
    /// static RECORDS: [Record; 64] = [const { Record::new() }; 64];
    /// static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
    /// static LATE: LateGraph<Kernel> = Graph::new(&BUFFERS).late();
    ///
    /// FGRAPH.register(&LATE)?;
    /// fn check() {}
    /// let scope = FGRAPH.scope(check as fn() as usize, 0);
    /// assert_eq!(BUFFERS[0].written(), 0);
    /// drop(scope);
    /// assert_eq!(BUFFERS[0].written(), 1, "begin and end at once");
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn late(self) -> LateGraph<P> {
        LateGraph(self)
    }
}

impl<P> LateGraph<P> {
    /// What it was made of: its buffers, and what it could not record.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Graph, LateGraph};
    #[doc = example_kernel!()]
    ///
    /// // No buffer at all.
    /// static LATE: LateGraph<Kernel> = Graph::new(&[]).late();
    /// FGRAPH.register(&LATE)?;
    /// drop(FGRAPH.scope(0x1000, 0));
    /// assert_eq!(LATE.graph().counters().unplaced, 1);
    /// # Ok::<(), fgraph::fgraph::RegisterError>(())
    /// ```
    #[must_use]
    pub const fn graph(&self) -> &Graph<P> {
        &self.0
    }
}

impl<P: Platform> LateGraph<P> {
    /// Writes the entries of the calls around `call` that have none yet.
    fn write_around(&self, call: &Exit<'_, LateFrame>, buffer: &Buffer, task: u16) {
        let is_pending = |parent: &Parent<'_, LateFrame>| parent.get().written == 0;
        // What is around a call whose entry is written has its own.
        let pending = call.parents().take_while(is_pending).count();
        for level in (0..pending).rev() {
            if let Some(parent) = call.parents().nth(level)
                && parent.add(WRITTEN, 1) == Some(0)
            {
                write_entry(buffer, parent.func(), task, &parent.get());
            }
        }
    }

    /// Writes the end of a call, and its begin, if that is not written.
    fn write(&self, call: &Exit<'_, LateFrame>, frame: &LateFrame) {
        let graph = &self.0;
        let time = P::clock();
        let (task, cpu) = (P::task(), P::cpu());
        let slept = graph.slept(call.stack()).wrapping_sub(frame.slept);
        let ticks = graph.elapsed(frame.time.wrapping_add(slept), time);
        let Some(buffer) = graph.buffer(cpu) else {
            return;
        };
        if graph.recorded.contains(Recorded::WITHOUT_SLEEP) {
            buffer.leave_out_sleep();
        }
        buffer.keep_task(task);
        let task = task as u16;
        let value = match graph.recorded.contains(Recorded::RETURN_VALUE) {
            true => call.return_value(),
            false => None,
        };
        if frame.written == 0 {
            self.write_around(call, buffer, task);
            // A leaf call is told to have ended its ticks after its begin.
            let leaf = call.cause() == Cause::Returned && value.is_none() && slept == 0;
            let entry = Content::near_entry(&frame.stamp(task), call.func(), frame.context);
            if let Some(leaf) = entry.and_then(|e| e.leaf(ticks)).filter(|_| leaf) {
                buffer.keep_era(frame.time);
                buffer.write(&leaf);
                return;
            }
            write_entry(buffer, call.func(), task, frame);
        }
        let stamp = Stamp {
            time,
            task,
            depth: frame.depth,
        };
        buffer.keep_era(time);
        if let Some(value) = value {
            let note = Content::note(Note::ReturnValue, value as u64, task, key(time));
            buffer.write(&note);
        }
        buffer.write(&Content::exit(&stamp, call.func(), ticks, call.cause()));
    }
}

impl LateFrame {
    fn stamp(&self, task: u16) -> Stamp {
        Stamp {
            time: self.time,
            task,
            depth: self.depth,
        }
    }
}

fn write_entry(buffer: &Buffer, func: usize, task: u16, frame: &LateFrame) {
    buffer.keep_era(frame.time);
    buffer.write_entry(&frame.stamp(task), func, frame.context);
}

impl<P: Platform> Callback for LateGraph<P> {
    type Frame = LateFrame;

    #[inline]
    fn entry(&self, call: Entry<'_, LateFrame>) -> Option<LateFrame> {
        let depth = match call.parent() {
            Some(parent) => usize::from(parent.get().depth) + 1,
            None => 0,
        };
        if depth >= self.0.max_depth {
            return None;
        }
        Some(LateFrame {
            written: 0,
            depth: depth as u16,
            context: call.context(),
            slept: self.0.slept(call.stack()),
            time: P::clock(),
        })
    }

    fn exit(&self, call: Exit<'_, LateFrame>, frame: LateFrame) {
        self.write(&call, &frame);
    }
}

impl<P: Platform> Deferred for LateGraph<P> {
    /// A call whose begin is written, because one inside it was kept, gets its
    /// end all the same.
    fn discard(&self, call: Exit<'_, LateFrame>, frame: LateFrame) {
        if frame.written != 0 {
            self.write(&call, &frame);
        }
    }
}
