//! The short ways: a call enters, or the newest one ends, on a stack at rest,
//! and the frames that are looked at are near ones.
//!
//! What does not fit goes the other ways, which read any frame: `view`.

use super::RetStack;
use super::view::{Claim, View};
use super::word::{self, Index, NEAR_WORDS, Record, SlotCode, State, TELLING, Window};

/// A near frame, as it was found.
#[derive(Clone, Copy)]
pub(crate) struct Near {
    /// Its first word.
    pub(super) start: usize,
    /// The last words before its data.
    telling: [usize; TELLING],
}

impl Near {
    #[inline(always)]
    pub(crate) fn start(self) -> usize {
        self.start
    }

    /// Where its callback-index word is.
    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        self.start + NEAR_WORDS - 1
    }

    /// The callbacks that want its return, and its epoch.
    #[inline(always)]
    pub(crate) fn wanted(self) -> (usize, usize) {
        Index::from_near(self.telling[TELLING - 1]).wanted()
    }
}

/// The short ways, for a stack at rest: a call enters that puts no older frame
/// in doubt, and the newest call returns, and their frames are near ones.
impl RetStack {
    /// Claims `need` words above the top, for a near frame and data: `None`,
    /// and nothing has changed, if the stack is not at rest, has less room, or
    /// no words at all.
    ///
    /// Until a state without the claim is set, interrupts stay above.
    #[inline(always)]
    pub(crate) fn claim_at_rest(
        &self,
        before: State,
        context: usize,
        need: usize,
    ) -> Option<Claim> {
        let top = before.resting_top();
        // All in one: not at rest, the top is above any length, and without
        // words the length is 0. No claim is so large that the sum wraps.
        if top.wrapping_add(need) > self.room() {
            return None;
        }
        let claimed = before.claiming(need, context);
        let index = top + NEAR_WORDS - 1;
        self.replace_state(before, claimed)
            .then_some(Claim { claimed, index })
    }

    /// Writes a near frame into a claim on a stack that was filled up to `top`,
    /// as one whose return `set` wants; false, and it is not whole, if the
    /// record does not fit one, or the slot is not below that of the newest
    /// frame, so that it is in doubt. The record's epoch is one for near frames.
    ///
    /// # Safety
    ///
    /// `top` was a stack's at rest, and [`NEAR_WORDS`] above it are claimed.
    #[inline(always)]
    pub(crate) unsafe fn put_near(&self, top: usize, record: &Record, set: usize) -> bool {
        let view = self.view_in_use();
        let Some(head) = record.near_head(Window::code()) else {
            return false;
        };
        // SAFETY: claimed, by the caller.
        unsafe { view.put_head(top, head) };
        let mut slot = SlotCode::NONE;
        if record.slot != 0 {
            slot = SlotCode::of(record.slot, self.slots());
            let fits = match top.checked_sub(NEAR_WORDS) {
                None => slot.is_code(),
                Some(_) => {
                    let is = |words| slot.is_below(words);
                    // SAFETY: frames lie below a top.
                    slot.may_be_code() && unsafe { view.near_ending_at(top, is) }.is_some()
                }
            };
            if !fits {
                return false;
            }
        }
        let index = [record.near_index(slot, set)];
        // SAFETY: as above.
        unsafe { view.put_head(top + NEAR_WORDS - 1, index) };
        true
    }

    /// A stack at rest that is not empty.
    #[inline(always)]
    pub(crate) fn filled_at_rest(&self, state: State) -> Option<View<'_>> {
        // As in `claim_at_rest`; below an empty stack all is above any length.
        let start = state.resting_top().wrapping_sub(NEAR_WORDS);
        (start < self.room()).then(|| self.view_in_use())
    }
}

impl View<'_> {
    /// The newest frame of a stack at rest that is not empty, if it is a near
    /// one on `slot`, and where it returns to.
    ///
    /// # Safety
    ///
    /// [`filled_at_rest`](RetStack::filled_at_rest) gave the view for `state`.
    #[inline(always)]
    pub(crate) unsafe fn near_on_slot(&self, state: State, slot: usize) -> Option<(Near, usize)> {
        let wanted = SlotCode::of(slot, self.stack.slots());
        if !wanted.may_be_code() {
            return None;
        }
        let is = |words| wanted.is_of(words);
        // SAFETY: no frame ends above the words.
        let near = unsafe { self.near_ending_at(state.resting_top(), is) }?;
        // SAFETY: all of a near frame lies in the stack.
        let head = unsafe { self.head_at(near.start) };
        Some((near, Record::near_ret(head, Window::code())))
    }

    /// The newest frame of a stack at rest that is not empty, if it is that of a
    /// scope of `func`, near, at `index`, and not ended before.
    ///
    /// # Safety
    ///
    /// As for [`near_on_slot`](Self::near_on_slot).
    #[inline(always)]
    pub(crate) unsafe fn near_scope(
        &self,
        state: State,
        index: usize,
        func: usize,
    ) -> Option<Near> {
        // SAFETY: no frame ends above the words.
        let near = unsafe { self.near_ending_at(state.resting_top(), SlotCode::is_none_of) }?;
        // SAFETY: all of a near frame lies in the stack.
        let head = unsafe { self.head_at(near.start) };
        let is = near.index() == index && near.wanted().0 != 0;
        (is && Record::near_func(head, Window::code()) == func).then_some(near)
    }

    /// Whether the frame is where it was found: no other is on its slot.
    ///
    /// # Safety
    ///
    /// It was found in this stack.
    #[inline(always)]
    pub(crate) unsafe fn is_still(&self, near: Near) -> bool {
        // SAFETY: the caller's.
        unsafe { self.head_at(near.start + NEAR_WORDS - TELLING) == near.telling }
    }

    /// The near frame that ends at `end`, if what tells its slot `is` the wanted
    /// one, without data or with.
    ///
    /// # Safety
    ///
    /// `end` is neither below [`NEAR_WORDS`] nor above the stack's length.
    #[inline(always)]
    pub(super) unsafe fn near_ending_at(
        &self,
        end: usize,
        is: impl Fn([usize; TELLING]) -> bool,
    ) -> Option<Near> {
        // SAFETY: the caller's.
        let telling = unsafe { self.head_at(end - TELLING) };
        let mut start = end - NEAR_WORDS;
        if is(telling) {
            return Some(Near { start, telling });
        }
        start = start.checked_sub(word::distance(telling[TELLING - 1])?)?;
        // SAFETY: below the other.
        let telling = unsafe { self.head_at(start + NEAR_WORDS - TELLING) };
        is(telling).then_some(Near { start, telling })
    }
}
