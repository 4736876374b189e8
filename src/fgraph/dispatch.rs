//! One entry or one exit on its way through the callbacks.
//!
//! The callbacks of a set are called as *threaded code*: each slot holds a
//! function made for its callback's type, which does that callback's work and
//! then continues with the next slot's as its last act, a jump in optimised
//! builds. A set carries one bit more than there are slots, whose function
//! ends the chain, so no step asks whether it is the last. In builds where the
//! last call is not a jump, the chain nests at most 17 deep.

use super::Cause;
use super::callback::{Callback, Entry, Exit, FrameData, WordArray};
use super::table::{SLOTS, Table};
use crate::hook::Registers;
use crate::platform::Context;
use crate::ret_stack::word::{self, Kind, Record};
use crate::ret_stack::{Claim, Found, View};

/// What the callbacks of one entry or exit share.
pub(crate) struct Dispatch<'a> {
    pub(crate) view: View<'a>,
    pub(crate) table: &'a Table,
    pub(crate) record: Record,
    pub(crate) registers: Option<&'a Registers>,
    pub(crate) context: Context,
    pub(crate) cause: Cause,
    /// Where the frames that enclose this one end.
    pub(crate) below: usize,
    /// Entry: where the next callback's data go. Exit: where those of the
    /// callbacks that are still to be called end.
    pub(crate) data: usize,
    /// Entry: the room for the frame.
    pub(crate) claim: Option<Claim<'a>>,
    /// Entry: the callbacks that take no part. Exit: unused.
    pub(crate) refused: usize,
    /// The callbacks not yet called when one of them panicked.
    pub(crate) pending: usize,
}

pub(crate) type EntryThunk =
    for<'d, 'a, 't> unsafe fn(&'d mut Dispatch<'a>, &'t Table, usize, usize);
pub(crate) type ExitThunk = EntryThunk;

/// The functions that slots hold.
pub(crate) struct Thunks;

impl Thunks {
    pub(crate) const VACANT_ENTRY: EntryThunk = Self::vacant_entry;
    pub(crate) const VACANT_EXIT: ExitThunk = Self::vacant_exit;
    pub(crate) const END_ENTRY: EntryThunk = Self::end;
    pub(crate) const END_EXIT: ExitThunk = Self::end;

    /// The most words that a frame holds for a `C`, its index word included.
    pub(crate) const fn data_words<C: Callback>() -> usize {
        let words = <C::Frame as FrameData>::Words::LEN;
        if words == 0 { 0 } else { words + 1 }
    }

    /// Goes on with the lowest slot of `pending`, which has one bit at least.
    #[inline(always)]
    pub(crate) fn next_entry(dispatch: &mut Dispatch<'_>, table: &Table, pending: usize) {
        let slot = pending.trailing_zeros() as usize;
        // SAFETY: `pending` has no bits above `SLOTS`, and is not zero: the
        // end's bit is in it until its function is called. The thunk is
        // called with the slot from which it was read.
        unsafe {
            core::hint::assert_unchecked(slot <= SLOTS);
            table.entry(slot)(dispatch, table, pending & !(1 << slot), slot);
        }
    }

    /// Goes on with the highest slot of `pending`; the end is bit 0.
    #[inline(always)]
    pub(crate) fn next_exit(dispatch: &mut Dispatch<'_>, table: &Table, pending: usize) {
        let at = pending.checked_ilog2().unwrap_or(0) as usize;
        // SAFETY: as in `next_entry`.
        unsafe {
            core::hint::assert_unchecked(at <= SLOTS && pending != 0);
            table.exit(at)(dispatch, table, pending & !(1 << at), at);
        }
    }

    unsafe fn end(_: &mut Dispatch<'_>, _: &Table, _: usize, _: usize) {}

    unsafe fn vacant_entry(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
    ) {
        dispatch.refused |= 1 << slot;
        Self::next_entry(dispatch, table, pending);
    }

    unsafe fn vacant_exit(dispatch: &mut Dispatch<'_>, table: &Table, pending: usize, at: usize) {
        dispatch.skip_data(at - 1);
        Self::next_exit(dispatch, table, pending);
    }

    pub(crate) unsafe fn entry<C: Callback>(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
    ) {
        // SAFETY: called through the slot that holds this function, with its
        // number; the record's epoch was read before the function was.
        let owner = unsafe { table.owner::<C>(slot, dispatch.record.epoch) };
        match owner {
            Some(callback) => dispatch.enter(callback, pending, slot),
            None => dispatch.refused |= 1 << slot,
        }
        Self::next_entry(dispatch, table, pending);
    }

    pub(crate) unsafe fn exit<C: Callback>(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        at: usize,
    ) {
        let slot = at - 1;
        // SAFETY: as in `entry`; the frame's epoch is older still.
        let owner = unsafe { table.owner::<C>(slot, dispatch.record.epoch) };
        match owner {
            Some(callback) => dispatch.leave(callback, pending, slot),
            None => dispatch.skip_data(slot),
        }
        Self::next_exit(dispatch, table, pending);
    }
}

/// Notes how far a dispatch came, if a callback unwinds out of it.
struct OnUnwind<'d, 'a>(&'d mut Dispatch<'a>, usize);

impl Drop for OnUnwind<'_, '_> {
    fn drop(&mut self) {
        self.0.pending = self.1;
    }
}

impl Dispatch<'_> {
    #[inline(always)]
    fn enter<C: Callback>(&mut self, callback: &C, pending: usize, slot: usize) {
        let words = <C::Frame as FrameData>::Words::LEN;
        let full = words > 0 && self.claim.is_none_or(|c| self.data + words + 1 > c.limit);
        if full {
            return self.miss(slot);
        }
        let unwound = OnUnwind(self, pending | 1 << slot);
        let wanted = callback.entry(Entry::new(unwound.0, slot));
        core::mem::forget(unwound);
        match (wanted, self.claim) {
            (Some(data), Some(claim)) if words > 0 => {
                let words = data.to_words();
                // SAFETY: there is room, as checked above; `data` begins
                // behind the head; the array's length is 1 to 15.
                self.data = unsafe { claim.put_data(self.data, slot, words.as_slice()) };
            }
            (Some(_), _) => {}
            (None, _) => self.refused |= 1 << slot,
        }
    }

    #[cold]
    fn miss(&mut self, slot: usize) {
        self.refused |= 1 << slot;
        self.table.count_missed(slot);
    }

    #[inline(always)]
    fn leave<C: Callback>(&mut self, callback: &C, pending: usize, slot: usize) {
        let mut words = <C::Frame as FrameData>::Words::ZERO;
        let len = <C::Frame as FrameData>::Words::LEN;
        if len > 0 {
            let Some(start) = self.own_data(self.data, slot, len) else {
                return self.damaged();
            };
            for (i, word) in words.as_mut_slice().iter_mut().enumerate() {
                // SAFETY: below `data`, which is below the stack's top.
                *word = unsafe { self.view.get_unchecked(start + i) };
            }
            self.data = start;
        }
        let data = C::Frame::from_words(words);
        let unwound = OnUnwind(self, pending);
        callback.exit(Exit::new(unwound.0, slot), data);
        core::mem::forget(unwound);
    }

    /// Where the data of `slot` start, if they are what ends at `end`.
    #[inline(always)]
    fn own_data(&self, end: usize, slot: usize, len: usize) -> Option<usize> {
        let start = end.checked_sub(len + 1)?;
        word::is_data_of(self.view.get(end - 1), slot, len).then_some(start)
    }

    #[cold]
    fn damaged(&self) {
        self.view.stack().count_stray();
    }

    /// Steps over the data of a callback that has left.
    #[cold]
    fn skip_data(&mut self, slot: usize) {
        let Some(newest) = self.data.checked_sub(1) else {
            return;
        };
        if let Kind::Data(index) = word::kind(self.view.get(newest))
            && index.callback() == slot
        {
            self.data = newest.saturating_sub(index.words());
        }
    }

    fn frame_below(&self, top: usize) -> Option<Found> {
        self.view.frame_below(top)
    }

    /// The real caller: through the frames of the functions that tail-called
    /// this one, which are those on the same return slot.
    pub(crate) fn caller(&self) -> usize {
        let mut caller = self.record.ret;
        let mut top = self.below;
        if self.record.slot != 0 {
            while let Some(frame) = self.frame_below(top)
                && frame.record.slot == self.record.slot
            {
                caller = frame.record.ret;
                top = frame.start;
            }
        }
        caller
    }

    /// The enclosing frames in which the owner of `slot` takes part.
    fn enclosing(&self, slot: usize) -> impl Iterator<Item = Found> + '_ {
        let since = self.table.since(slot);
        let mut top = self.below;
        core::iter::from_fn(move || {
            let frame = self.frame_below(top)?;
            top = frame.start;
            Some(frame)
        })
        .filter(move |frame| frame.set & (1 << slot) != 0 && since <= frame.record.epoch)
    }

    pub(crate) fn depth(&self, slot: usize) -> usize {
        self.enclosing(slot).count()
    }

    /// The function of the nearest enclosing frame of `slot`'s owner, and
    /// where its data start.
    pub(crate) fn parent(&self, slot: usize, len: usize) -> Option<(usize, usize)> {
        let frame = self.enclosing(slot).next()?;
        if len == 0 {
            return Some((frame.record.func, frame.end));
        }
        let mut end = frame.end;
        while end > frame.index + 1 {
            if let Some(start) = self.own_data(end, slot, len) {
                return Some((frame.record.func, start));
            }
            let Kind::Data(index) = word::kind(self.view.get(end - 1)) else {
                return None;
            };
            end = end.checked_sub(index.words() + 1)?;
        }
        None
    }
}
