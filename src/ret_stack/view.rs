//! The words of an attached stack: room claimed, frames written, found and
//! taken off, as the [module above](super) tells it.
//!
//! All access to words is here.

use super::RetStack;
use super::word::{self, Kind, NEAR_WORDS, Record, Slots, State, TELLING, WIDE_WORDS, Window};
use crate::sync::{AtomicUsize, Ordering};

/// An attached stack: the words can be reached. All reads are bounded.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(super) stack: &'a RetStack,
    pub(super) words: *mut AtomicUsize,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn stack(&self) -> &'a RetStack {
        self.stack
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.stack.len.load(Ordering::Relaxed) as usize
    }

    /// The word at `at`; 0, which is no frame, outside the stack.
    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> usize {
        if at >= self.len() {
            return 0;
        }
        // SAFETY: `at` is in bounds, and the words are valid while attached.
        unsafe { self.get_unchecked(at) }
    }

    /// # Safety
    ///
    /// `at < self.len()`.
    #[inline(always)]
    pub(crate) unsafe fn get_unchecked(&self, at: usize) -> usize {
        // SAFETY: the caller's. Relaxed: the owner reads its own writes; a
        // walker knows that what it reads may be stale.
        unsafe { &*self.words.add(at) }.load(Ordering::Relaxed)
    }

    /// # Safety
    ///
    /// `at < self.len()`, and `at` lies in words that the caller has claimed.
    #[inline(always)]
    pub(crate) unsafe fn set_unchecked(&self, at: usize, word: usize) {
        // SAFETY: the caller's.
        unsafe { &*self.words.add(at) }.store(word, Ordering::Relaxed);
    }

    /// Stores a word if it is in bounds.
    pub(crate) fn set(&self, at: usize, word: usize) {
        if at < self.len() {
            // SAFETY: just checked.
            unsafe { self.set_unchecked(at, word) };
        }
    }

    /// Adds to a word, wrapping, if it is in bounds, and returns what it was.
    /// Not a load and a store: an interrupt between them may add to it too.
    pub(crate) fn add(&self, at: usize, by: usize) -> Option<usize> {
        // SAFETY: in bounds, and the words are valid while attached. Relaxed:
        // the owner and its interrupts share one CPU.
        (at < self.len()).then(|| unsafe { &*self.words.add(at) }.fetch_add(by, Ordering::Relaxed))
    }

    /// Claims room for a frame, and as many of the `data` words that callbacks
    /// may want as there are; writes the frame, as one whose return `set`
    /// wants. `state` are the positions, and the guards to come back to. `None`,
    /// and nothing has changed, if the stack's state is not `now`.
    pub(crate) fn claim(
        self,
        now: State,
        state: State,
        context: usize,
        record: &Record,
        set: usize,
        data: usize,
    ) -> Result<Option<Claim>, Full> {
        let near = record.near(set, Window::code(), self.stack.slots());
        // Only wide frames lie above a gap: popping a near one need not look.
        let near = near.filter(|_| !state.has_claim());
        let head = if near.is_some() {
            NEAR_WORDS
        } else {
            WIDE_WORDS
        };
        let start = state.reserved() + usize::from(state.has_claim());
        let index = start + head - 1;
        let len = self.len();
        if index >= len {
            return Err(Full);
        }
        let limit = (index + 1 + data).min(len);
        let claimed = state.claimed(limit).guarded(context);
        if !self.stack.replace_state(now, claimed) {
            return Ok(None);
        }
        // SAFETY: what is below `limit`, which is not above `len`, is claimed;
        // `index` is, and what comes before it from `start` on.
        unsafe {
            if state.has_claim() {
                let below = state.reserved();
                self.set_unchecked(below, word::gap(below - state.top()));
            }
            match near {
                Some(words) => self.put_head(start, words),
                None => self.put_head(start, record.wide(set)),
            }
        }
        Ok(Some(Claim { claimed, index }))
    }

    /// Writes a frame.
    ///
    /// # Safety
    ///
    /// The words from `start` on are claimed, as many as are written.
    #[inline(always)]
    pub(super) unsafe fn put_head<const HEAD: usize>(&self, start: usize, words: [usize; HEAD]) {
        for (i, word) in words.into_iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { self.set_unchecked(start + i, word) };
        }
    }
}

/// There is no room for a frame.
#[derive(Debug)]
pub(crate) struct Full;

/// Room for one frame, claimed and not yet committed.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    /// The state while it holds.
    pub(crate) claimed: State,
    /// Where the callback-index word is.
    pub(crate) index: usize,
}

impl View<'_> {
    /// Words from `start` on.
    ///
    /// # Safety
    ///
    /// `start + N` is not above the stack's length.
    #[inline(always)]
    pub(super) unsafe fn head_at<const N: usize>(&self, start: usize) -> [usize; N] {
        // SAFETY: the caller's.
        core::array::from_fn(|i| unsafe { self.get_unchecked(start + i) })
    }

    /// Stores one callback's data and their index word at `at`, for the frame
    /// whose index word is at `index`; returns the position above them.
    ///
    /// # Safety
    ///
    /// `index < at`, the words from there to `at + words.len()` are
    /// claimed, and `words` are 1 to [`MAX_DATA_WORDS`](super::MAX_DATA_WORDS).
    #[inline(always)]
    pub(crate) unsafe fn put_data(
        &self,
        index: usize,
        at: usize,
        callback: usize,
        words: &[usize],
    ) -> usize {
        for (i, &word) in words.iter().enumerate() {
            // SAFETY: claimed, by the caller.
            unsafe { self.set_unchecked(at + i, word) };
        }
        let end = at + words.len();
        let data = word::DataIndex::new(callback, words.len(), end - index);
        // SAFETY: as above.
        unsafe { self.set_unchecked(end, data.word()) };
        end + 1
    }

    /// The callbacks that want the return of the frame whose callback-index
    /// word is at `index`.
    pub(crate) fn set_at(&self, index: usize) -> usize {
        word::set_of(self.get(index))
    }

    /// Some callbacks do not want the return of the frame whose
    /// callback-index word is at `index`. Returns those that do.
    pub(crate) fn refuse(&self, index: usize, callbacks: usize) -> usize {
        let word = word::without(self.get(index), callbacks);
        self.set(index, word);
        word::set_of(word)
    }
}

/// A short way does not apply: a frame is wide, or a gap lies below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotNear;

/// A frame that was found on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) record: Record,
    /// Who wants the return.
    pub(crate) set: usize,
    /// Where its callback-index word is.
    pub(crate) index: usize,
    /// Its first word.
    pub(crate) start: usize,
    /// The position above its last word.
    pub(crate) end: usize,
    pub(crate) near: bool,
}

impl View<'_> {
    /// The newest frame that ends at or below `top`; `None` at the bottom, or
    /// where the words do not read as a frame. In line for a near one without
    /// data: walks ask for each frame.
    #[inline]
    pub(crate) fn frame_below(&self, top: usize) -> Option<Found> {
        let newest = top.checked_sub(1)?;
        if word::is_near(self.get(newest)) {
            return self.near_at(newest, top);
        }
        self.other_below(top)
    }

    /// As [`frame_below`](Self::frame_below), for any frame.
    fn other_below(&self, mut top: usize) -> Option<Found> {
        let len = self.len();
        loop {
            let newest = top.checked_sub(1)?;
            if newest >= len {
                return None;
            }
            // SAFETY: just checked.
            match word::kind(unsafe { self.get_unchecked(newest) }) {
                Kind::Near(_) => return self.near_at(newest, top),
                // Below a gap, strictly lower: the loop ends.
                Kind::Gap(claimed) => top = newest.checked_sub(claimed)?,
                Kind::Data(data) => {
                    return self.frame_at(newest.checked_sub(data.distance())?, top);
                }
                Kind::Wide(_) => return self.frame_at(newest, top),
                Kind::None => return None,
            }
        }
    }

    /// Where the `len` words of data of the callback `slot` start, if they are
    /// what ends at `end`, a frame's end or that of data in it.
    #[inline(always)]
    pub(crate) fn own_data(&self, end: usize, slot: usize, len: usize) -> Option<usize> {
        let start = end.checked_sub(len + 1)?;
        // SAFETY: `end` is the end of a frame on the stack.
        let newest = unsafe { self.get_unchecked(end - 1) };
        word::is_data_of(newest, slot, len).then_some(start)
    }

    /// Where the `len` words start that the owner of `slot` keeps in `frame`.
    pub(crate) fn data_in(&self, frame: &Found, slot: usize, len: usize) -> Option<usize> {
        let mut end = frame.end;
        if len == 0 {
            return Some(end);
        }
        while end > frame.index + 1 {
            if let Some(start) = self.own_data(end, slot, len) {
                return Some(start);
            }
            let Kind::Data(index) = word::kind(self.get(end - 1)) else {
                return None;
            };
            end = end.checked_sub(index.words() + 1)?;
        }
        None
    }

    /// Where the frame starts whose callback-index word is at `index`.
    pub(super) fn start_of(&self, index: usize) -> usize {
        self.frame_at(index, index + 1)
            .map_or(0, |found| found.start)
    }

    /// The record of the frame whose callback-index word is at `index`. In
    /// line for near frames: callbacks ask at each call.
    #[inline(always)]
    pub(crate) fn record_at(&self, index: usize) -> Option<Record> {
        let found = match word::kind(self.get(index)) {
            Kind::Near(_) => self.near_at(index, index + 1),
            _ => self.frame_at(index, index + 1),
        };
        found.map(|found| found.record)
    }

    /// Where the near frame starts whose callback-index word is at `index`.
    ///
    /// # Safety
    ///
    /// A frame has its callback-index word there, whether near or not: what lies
    /// below is not less than a near frame needs.
    #[inline(always)]
    unsafe fn near_start(&self, index: usize) -> Result<usize, NotNear> {
        // SAFETY: in the stack, by the caller.
        match word::is_near(unsafe { self.get_unchecked(index) }) {
            true => Ok(index + 1 - NEAR_WORDS),
            false => Err(NotNear),
        }
    }

    /// The function of the near frame whose callback-index word is at `index`.
    ///
    /// # Safety
    ///
    /// As for [`near_start`](Self::near_start).
    #[inline(always)]
    pub(crate) unsafe fn near_func_at(&self, index: usize) -> Result<usize, NotNear> {
        // SAFETY: the caller's; all of a near frame lies in the stack.
        unsafe {
            let start = self.near_start(index)?;
            Ok(Record::near_func(self.head_at(start), Window::code()))
        }
    }

    /// The frame below the one whose callback-index word is at `index`, if
    /// both are near and nothing lies between them.
    ///
    /// # Safety
    ///
    /// As for [`near_start`](Self::near_start).
    #[inline(always)]
    pub(crate) unsafe fn near_below(&self, index: usize) -> Result<Option<Found>, NotNear> {
        // SAFETY: the caller's.
        let end = unsafe { self.near_start(index) }?;
        if end < NEAR_WORDS {
            // There is no frame of less.
            return Ok(None);
        }
        let is = |words: [usize; TELLING]| word::is_near(words[TELLING - 1]);
        // SAFETY: below `index`, where a word was found.
        let near = unsafe { self.near_ending_at(end, is) }.ok_or(NotNear)?;
        // SAFETY: all of a near frame lies in the stack.
        let words = unsafe { self.head_at(near.start) };
        let slots = self.stack.slots();
        Ok(Some(self.near(near.index(), words, end, slots)))
    }

    /// The near frame whose callback-index word is at `index`.
    #[inline(always)]
    fn near_at(&self, index: usize, end: usize) -> Option<Found> {
        Some(self.near(index, self.head(index)?, end, self.stack.slots()))
    }

    /// The near frame of these words.
    #[inline(always)]
    fn near(&self, index: usize, words: [usize; NEAR_WORDS], end: usize, slots: Slots) -> Found {
        Found {
            record: Record::from_near(words, Window::code(), slots),
            set: word::set_of(words[NEAR_WORDS - 1]),
            index,
            start: index + 1 - NEAR_WORDS,
            end,
            near: true,
        }
    }

    /// The frame whose callback-index word is at `index`.
    fn frame_at(&self, index: usize, end: usize) -> Option<Found> {
        match word::kind(self.get(index)) {
            Kind::Near(_) => self.near_at(index, end),
            Kind::Wide(set) => Some(Found {
                record: Record::from_wide(self.head(index)?),
                set: set.set(),
                index,
                start: index + 1 - WIDE_WORDS,
                end,
                near: false,
            }),
            _ => None,
        }
    }

    /// The `N` words that end with the one at `index`.
    #[inline(always)]
    fn head<const N: usize>(&self, index: usize) -> Option<[usize; N]> {
        let start = (index + 1).checked_sub(N)?;
        // SAFETY: `index` was in bounds for the caller's own read.
        Some(unsafe { self.head_at(start) })
    }

    /// The state once `frame`, the newest, is gone: an interrupt's last frame
    /// puts back what the interrupted owner had claimed.
    #[inline(always)]
    pub(crate) fn state_below(&self, frame: &Found, state: State) -> State {
        if frame.near {
            return state.at(frame.start);
        }
        let Some(below) = frame.start.checked_sub(1) else {
            return state.at(0);
        };
        match word::kind(self.get(below)) {
            Kind::Gap(claimed) => state.at(below.saturating_sub(claimed)).claimed(below),
            _ => state.at(frame.start),
        }
    }
}
