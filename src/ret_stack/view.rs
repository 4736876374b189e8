//! The words of an attached stack: room claimed, frames written, found and
//! taken off, as the [module above](super) tells it.
//!
//! All access to words is here.

use super::RetStack;
use super::word::{self, Index, Kind, NEAR_WORDS, Record, State, WIDE_WORDS, Window};
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

    /// Claims room for a near frame and `data` words on a stack at rest:
    /// `None`, and nothing has changed, if it is not, or has less room.
    ///
    /// Until [`Claim::commit`] or [`Claim::cancel`], interrupts stay above.
    #[inline(always)]
    pub(crate) fn claim_at_rest(
        self,
        state: State,
        context: usize,
        data: usize,
    ) -> Option<Claim<'a>> {
        if !state.is_at_rest() {
            return None;
        }
        let words = NEAR_WORDS + data;
        let limit = state.resting_top() + words;
        if limit > self.len() {
            return None;
        }
        let claimed = state.claiming(words, context);
        self.stack.set_state(claimed);
        Some(Claim {
            view: self,
            state,
            claimed,
            index: limit - 1 - data,
            limit,
        })
    }

    /// Claims room for a frame, and as many of the `data` words that callbacks
    /// may want as there are; writes the frame, as one that nobody wants yet.
    /// `None` if it has no room.
    pub(crate) fn claim(
        self,
        state: State,
        context: usize,
        record: &Record,
        data: usize,
    ) -> Option<Claim<'a>> {
        let near = record.near(Window::code(), self.stack.window());
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
            return None;
        }
        let limit = (index + 1 + data).min(len);
        let claimed = state.claimed(limit).guarded(context);
        self.stack.set_state(claimed);
        if state.has_claim() {
            let below = state.reserved();
            // SAFETY: `below < index < len`, and it is claimed above.
            unsafe { self.set_unchecked(below, word::gap(below - state.top())) };
        }
        let claim = Claim {
            view: self,
            state,
            claimed,
            index,
            limit,
        };
        match near {
            Some(words) => claim.put_head(words),
            None => claim.put_head(record.wide()),
        }
        Some(claim)
    }
}

/// Room for one frame, claimed and not yet committed.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'a> {
    view: View<'a>,
    /// The state before the claim.
    state: State,
    /// The state while it holds.
    claimed: State,
    /// Where the callback-index word goes.
    pub(crate) index: usize,
    /// The end of what is claimed.
    pub(crate) limit: usize,
}

impl Claim<'_> {
    /// Writes the frame, as one that nobody wants yet; false, and nothing is
    /// written, if it is not a near one.
    #[inline(always)]
    pub(crate) fn put_near(&self, record: &Record) -> bool {
        let near = record.near(Window::code(), self.view.stack.window());
        match near {
            Some(words) => self.put_head(words),
            None => return false,
        }
        true
    }

    #[inline(always)]
    fn put_head<const HEAD: usize>(&self, words: [usize; HEAD]) {
        for (i, word) in words.into_iter().enumerate() {
            // SAFETY: at or below `index`, which is below the limit: claimed.
            unsafe { self.view.set_unchecked(self.index + 1 - HEAD + i, word) };
        }
    }

    /// Makes the frame whole: `set` is who wants the return, `end` the
    /// position above the last data.
    #[inline(always)]
    pub(crate) fn commit(&self, set: usize, end: usize) {
        // SAFETY: `index` is below the limit: claimed, and in bounds.
        unsafe {
            let index = self.view.get_unchecked(self.index);
            self.view
                .set_unchecked(self.index, word::with_set(index, set));
        }
        self.view.stack.set_state(self.state.at(end));
    }

    /// The state before the claim.
    #[inline(always)]
    pub(crate) fn before(&self) -> State {
        self.state
    }

    /// Whether interrupts have left frames above the claim.
    #[inline(always)]
    pub(crate) fn has_frames_above(&self) -> bool {
        self.view.stack.state() != self.claimed
    }

    /// Gives the room back: nobody wants the return.
    #[inline(always)]
    pub(crate) fn cancel(&self) {
        self.view.stack.set_state(self.state);
    }
}

/// Stores one callback's data and its index word at `at`, for the frame whose
/// index word is at `index`; returns the position above them.
///
/// # Safety
///
/// `index < at`, the words from there to `at + words.len()` are claimed, and
/// `words` are 1 to [`MAX_DATA_WORDS`](super::MAX_DATA_WORDS).
#[inline(always)]
pub(crate) unsafe fn put_data(
    view: View<'_>,
    index: usize,
    at: usize,
    callback: usize,
    words: &[usize],
) -> usize {
    for (i, &word) in words.iter().enumerate() {
        // SAFETY: claimed, by the caller.
        unsafe { view.set_unchecked(at + i, word) };
    }
    let end = at + words.len();
    let data = word::DataIndex::new(callback, words.len(), end - index);
    // SAFETY: as above.
    unsafe { view.set_unchecked(end, data.word()) };
    end + 1
}

/// A short way does not apply: a frame is wide, or a gap lies below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotNear;

/// A frame that was found on the stack.
#[derive(Clone, Copy, Debug)]
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
    /// where the words do not read as a frame.
    #[inline]
    pub(crate) fn frame_below(&self, mut top: usize) -> Option<Found> {
        let len = self.len();
        loop {
            let newest = top.checked_sub(1)?;
            if newest >= len {
                return None;
            }
            // SAFETY: just checked.
            match word::kind(unsafe { self.get_unchecked(newest) }) {
                Kind::Near(set) => return self.near_at(newest, set, top),
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

    /// The newest frame of a stack at rest, if it is a near one on `slot`.
    #[inline(always)]
    pub(crate) fn near_on_slot(&self, state: State, slot: usize) -> Option<Found> {
        let (index, word, words) = self.near_ending_at(state.resting_top())?;
        if !word::is_on_slot(words, slot, self.stack.window()) {
            return None;
        }
        Some(self.near(index, word, words, state.resting_top()))
    }

    /// Whether a stack at rest is empty, or its newest frame is a near one with
    /// a slot above `slot`: then no frame is in doubt when a call enters there.
    #[inline(always)]
    pub(crate) fn is_above(&self, state: State, slot: usize) -> bool {
        state.resting_top() == 0
            || self
                .near_ending_at(state.resting_top())
                .is_some_and(|(_, _, words)| word::is_above(words, slot, self.stack.window()))
    }

    /// The frame that ends at `end`, where the stack's words or other frames
    /// begin, if it is a near one: the position of its index word, that word,
    /// and all words of its head.
    #[inline(always)]
    fn near_ending_at(&self, end: usize) -> Option<(usize, Index, [usize; NEAR_WORDS])> {
        let mut index = end.checked_sub(1)?;
        // SAFETY: no frame ends above the words.
        let mut newest = unsafe { self.get_unchecked(index) };
        if !word::is_near(newest) {
            let Kind::Data(data) = word::kind(newest) else {
                return None;
            };
            index = index.checked_sub(data.distance())?;
            // SAFETY: below the frame's end.
            newest = unsafe { self.get_unchecked(index) };
        }
        let Kind::Near(word) = word::kind(newest) else {
            return None;
        };
        Some((index, word, self.head(index)?))
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
            Kind::Near(set) => self.near_at(index, set, index + 1),
            _ => self.frame_at(index, index + 1),
        };
        found.map(|found| found.record)
    }

    /// The frame below the one whose callback-index word is at `index`, if
    /// both are near and nothing lies between them.
    #[inline(always)]
    pub(crate) fn near_below(&self, index: usize) -> Result<Option<Found>, NotNear> {
        let start = (index + 1).checked_sub(NEAR_WORDS);
        let start = start.filter(|_| word::is_near(self.get(index)));
        match start.ok_or(NotNear)? {
            0 => Ok(None),
            end => {
                let (index, word, words) = self.near_ending_at(end).ok_or(NotNear)?;
                Ok(Some(self.near(index, word, words, end)))
            }
        }
    }

    /// The near frame whose callback-index word, `index` words up, is `set`.
    #[inline(always)]
    fn near_at(&self, index: usize, set: Index, end: usize) -> Option<Found> {
        Some(self.near(index, set, self.head(index)?, end))
    }

    /// The near frame of these words.
    #[inline(always)]
    fn near(&self, index: usize, set: Index, words: [usize; NEAR_WORDS], end: usize) -> Found {
        Found {
            record: Record::from_near(words, Window::code(), self.stack.window()),
            set: set.set(),
            index,
            start: index + 1 - NEAR_WORDS,
            end,
            near: true,
        }
    }

    /// The frame whose callback-index word is at `index`.
    fn frame_at(&self, index: usize, end: usize) -> Option<Found> {
        match word::kind(self.get(index)) {
            Kind::Near(set) => self.near_at(index, set, end),
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
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: `start + i <= index`, and `index` was in bounds for the
            // caller's own read.
            *word = unsafe { self.get_unchecked(start + i) };
        }
        Some(words)
    }

    /// Nobody wants the return of `frame` any more; its words stay.
    pub(crate) fn disown(&self, frame: &Found) {
        self.set(frame.index, word::without_set(self.get(frame.index)));
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
