//! One record of a [`Buffer`](super::Buffer), sixteen bytes: how writers claim
//! it, and what readers may see.
//!
//! This file knows neither buffers nor bits; those are `words`'.

use static_assertions::const_assert;

use crate::sync::{AtomicU32, Ordering, fence};

mod time;
mod words;

pub(crate) use time::{Era, nearest};
pub(crate) use words::{
    Content, Holder, MAX_ARGUMENTS, MAX_DEPTH, MAX_TICKS, Note, Read, Stamp, State, key,
};

/// Memory for one record: sixteen bytes of a [`Buffer`](super::Buffer).
///
/// # Example
///
/// ```
/// use fgraph::tracer::Record;
///
/// static RECORDS: [Record; 1024] = [const { Record::new() }; 1024];
/// assert_eq!(size_of_val(&RECORDS), 16 * 1024);
/// ```
#[repr(C, align(16))]
pub struct Record {
    content: [AtomicU32; 3],
    /// A [`State`]: who holds the record, and what the content is. Claimed by
    /// compare-and-swap, so that a record has one writer at a time even if
    /// CPUs share a buffer.
    state: AtomicU32,
}

const_assert!(cfg!(loom) || size_of::<Record>() == 16);

impl Record {
    /// Empty.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::{Buffer, Full, Record};
    ///
    /// static RECORDS: [Record; 256] = [const { Record::new() }; 256];
    /// static BUFFER: Buffer = Buffer::new(&RECORDS, Full::Overwrite);
    /// assert_eq!(BUFFER.written(), 0);
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            content: [const { AtomicU32::new(0) }; 3],
            state: AtomicU32::new(0),
        }
    }

    /// Relaxed: a writer that claims goes through a compare-and-swap, a reader
    /// through [`read`](Self::read).
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        State(self.state.load(Ordering::Relaxed))
    }

    /// Takes the record from `seen` for a writer of `lap`.
    #[inline(always)]
    pub(crate) fn claim(&self, seen: State, lap: usize) -> bool {
        // Relaxed: nothing of the former content is read.
        let claimed = self
            .state
            .compare_exchange(
                seen.0,
                State::busy(lap).0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok();
        // A reader that sees a word of ours sees the claim too, when it looks
        // at the state again. Pairs with the fence in `read`.
        fence(Ordering::Release);
        claimed
    }

    /// Writes a claimed record.
    #[inline(always)]
    pub(crate) fn write(&self, content: &Content, lap: usize) {
        for (place, &word) in self.content.iter().zip(content.words()) {
            place.store(word, Ordering::Relaxed);
        }
        // Publishes the words to `read`.
        self.state.store(content.state(lap).0, Ordering::Release);
    }

    /// Makes the entry `content` of `lap` a leaf call that took `ticks`: one
    /// record for both ends. False, and nothing is changed, if the entry is
    /// not there, a reader has passed it, or it does not fit.
    #[inline(always)]
    pub(crate) fn close(&self, content: &Content, lap: usize, ticks: u64) -> bool {
        let Some(leaf) = content.leaf(ticks) else {
            return false;
        };
        let same = |(place, &word): (&AtomicU32, &u32)| place.load(Ordering::Relaxed) == word;
        if !self.content.iter().zip(content.words()).all(same) {
            return false;
        }
        // Relaxed: the content was published by the store that this replaces,
        // and a reader of this one still pairs with that.
        self.state
            .compare_exchange(
                content.state(lap).0,
                leaf.state(lap).0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Reads the record of `lap`: whole, or as its holder.
    pub(crate) fn read(&self, lap: usize) -> Result<Read, Holder> {
        loop {
            // Acquire pairs with the release in `write`.
            let state = State(self.state.load(Ordering::Acquire));
            let holder = state.holder(lap);
            if holder != Holder::Written {
                return Err(holder);
            }
            let words = [0, 1, 2].map(|i: usize| {
                self.content
                    .get(i)
                    .map_or(0, |word| word.load(Ordering::Relaxed))
            });
            // If a word was a later writer's, its claim is seen below.
            fence(Ordering::Acquire);
            if self.state() == state {
                return Read::from_words(words, state).ok_or(Holder::Stalled);
            }
        }
    }

    /// A reader passes an entry: from here on it is not made a leaf call, its
    /// end gets a record of its own. Other records are left alone.
    pub(crate) fn freeze(&self, lap: usize) {
        let state = self.state();
        if state.is_entry(lap) {
            // A failure means that it has been made a leaf call, or is gone:
            // the reader reads it after this. Relaxed: nothing is published.
            let _ = self.state.compare_exchange(
                state.0,
                state.frozen().0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Whether this is an entry that may still become a leaf call.
    pub(crate) fn is_open(&self, lap: usize) -> bool {
        let state = self.state();
        state.is_entry(lap) && !state.is_frozen()
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Record {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let read = self.read(self.state().lap());
        f.debug_tuple("Record").field(&read).finish()
    }
}

#[cfg(test)]
mod tests;
