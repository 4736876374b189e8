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
use crate::ret_stack::{Found, NotNear, View, put_data};

/// Whose call an event is: a slot's owner's, or that of a callback which the
/// owner wraps and whose data lie behind the owner's own.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    slot: u8,
    /// How many words of the slot's data lie before those of the wrapped one.
    offset: u8,
    /// One more than the position, in the slot's data, of the word that is
    /// zero in frames in which the wrapped one takes no part; 0 if there is
    /// none.
    gate: u8,
}

impl Place {
    /// A slot's owner itself.
    #[inline(always)]
    pub(crate) fn owner(slot: usize) -> Self {
        Self {
            slot: slot as u8,
            offset: 0,
            gate: 0,
        }
    }

    #[inline(always)]
    fn slot(self) -> usize {
        self.slot.into()
    }

    #[inline(always)]
    fn gate(self) -> Option<usize> {
        usize::from(self.gate).checked_sub(1)
    }

    /// Behind `words` more words, of 15 at most.
    #[inline(always)]
    pub(crate) fn behind(self, words: usize) -> Self {
        Self {
            offset: self.offset + words as u8,
            ..self
        }
    }

    /// Behind a word that is zero where what follows takes no part.
    #[inline(always)]
    pub(crate) fn behind_gate(self) -> Self {
        Self {
            gate: self.offset + 1,
            ..self.behind(1)
        }
    }
}

/// What the callbacks of one entry or exit share. What a call is, they read
/// from the frame's own words.
pub(crate) struct Dispatch<'a> {
    pub(crate) view: View<'a>,
    pub(crate) table: &'a Table,
    /// The position of the frame's callback-index word.
    pub(crate) index: usize,
    /// Entry: where the next callback's data go. Exit: where those of the
    /// callbacks that are still to be called end.
    pub(crate) data: usize,
    /// Entry: the end of the room for data.
    pub(crate) limit: usize,
    pub(crate) registers: Option<&'a Registers>,
    pub(crate) context: Context,
    pub(crate) cause: Cause,
    /// When a callback has panicked: the callbacks not yet called, and at an
    /// entry those that take no part.
    pub(crate) pending: usize,
}

/// An entry's step: the callbacks still to be called, the slot of this one,
/// the call's epoch, and the callbacks that have refused. Returns the last at
/// the end.
pub(crate) type EntryThunk =
    for<'d, 'a, 't> unsafe fn(&'d mut Dispatch<'a>, &'t Table, usize, usize, usize, usize) -> usize;

/// An exit's step: the callbacks still to be called, the place of this one,
/// and the frame's epoch.
pub(crate) type ExitThunk =
    for<'d, 'a, 't> unsafe fn(&'d mut Dispatch<'a>, &'t Table, usize, usize, usize);

/// The functions that slots hold.
pub(crate) struct Thunks;

impl Thunks {
    pub(crate) const VACANT_ENTRY: EntryThunk = Self::vacant_entry;
    pub(crate) const VACANT_EXIT: ExitThunk = Self::vacant_exit;
    pub(crate) const END_ENTRY: EntryThunk = Self::end_entry;
    pub(crate) const END_EXIT: ExitThunk = Self::end_exit;

    /// The most words that a frame holds for a `C`, its index word included.
    pub(crate) const fn data_words<C: Callback>() -> usize {
        let words = <C::Frame as FrameData>::Words::LEN;
        if words == 0 { 0 } else { words + 1 }
    }

    /// Goes on with the lowest slot of `pending`, which has one bit at least.
    #[inline(always)]
    pub(crate) fn next_entry(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        epoch: usize,
        refused: usize,
    ) -> usize {
        // SAFETY: `pending` has no bits above `SLOTS`, and is not zero: the
        // end's bit is in it until its function is called. The thunk is
        // called with the slot from which it was read.
        unsafe {
            core::hint::assert_unchecked(pending != 0);
            let slot = pending.trailing_zeros() as usize;
            core::hint::assert_unchecked(slot <= SLOTS);
            let rest = pending & pending.wrapping_sub(1);
            table.entry(slot)(dispatch, table, rest, slot, epoch, refused)
        }
    }

    /// Goes on with the highest slot of `pending`; the end is bit 0.
    #[inline(always)]
    pub(crate) fn next_exit(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        epoch: usize,
    ) {
        // SAFETY: as in `next_entry`.
        unsafe {
            core::hint::assert_unchecked(pending != 0);
            let at = pending.ilog2() as usize;
            core::hint::assert_unchecked(at <= SLOTS);
            table.exit(at)(dispatch, table, pending ^ 1 << at, at, epoch);
        }
    }

    unsafe fn end_entry(
        _: &mut Dispatch<'_>,
        _: &Table,
        _: usize,
        _: usize,
        _: usize,
        refused: usize,
    ) -> usize {
        refused
    }

    unsafe fn end_exit(_: &mut Dispatch<'_>, _: &Table, _: usize, _: usize, _: usize) {}

    unsafe fn vacant_entry(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        refused: usize,
    ) -> usize {
        Self::next_entry(dispatch, table, pending, epoch, refused | 1 << slot)
    }

    unsafe fn vacant_exit(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        at: usize,
        epoch: usize,
    ) {
        dispatch.skip_data(at - 1);
        Self::next_exit(dispatch, table, pending, epoch);
    }

    pub(crate) unsafe fn entry<C: Callback>(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        mut refused: usize,
    ) -> usize {
        // SAFETY: called through the slot that holds this function, with its
        // number; the epoch was read before the function was.
        let (callback, was_there) = unsafe { table.owner::<C>(slot, epoch) };
        if !was_there {
            return Self::next_entry(dispatch, table, pending, epoch, refused | 1 << slot);
        }
        let words = <C::Frame as FrameData>::Words::LEN;
        if words > 0 && dispatch.data + words + 1 > dispatch.limit {
            // SAFETY: as a slot's function would be called.
            return unsafe { Self::miss(dispatch, table, pending, slot, epoch, refused) };
        }
        let unwound = OnUnwind(dispatch, pending | 1 << slot | refused);
        // SAFETY: its owner was there, so it is a `&'static C`.
        let callback = unsafe { &*callback };
        match callback.entry(Entry::new(unwound.0, slot)) {
            Some(data) => {
                if words > 0 {
                    let data = data.to_words();
                    let Dispatch {
                        view,
                        index,
                        data: at,
                        ..
                    } = *unwound.0;
                    // SAFETY: there is room, as checked above; `data` begins
                    // behind the index word; the array's length is 1 to 15.
                    let end = unsafe { put_data(view, index, at, slot, data.as_slice()) };
                    unwound.0.data = end;
                }
            }
            None => refused |= 1 << slot,
        }
        core::mem::forget(unwound);
        Self::next_entry(dispatch, table, pending, epoch, refused)
    }

    /// An entry's step for a callback whose data found no room. A function of
    /// its own, so that the others need not keep anything over a call.
    #[cold]
    #[inline(never)]
    unsafe fn miss(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        refused: usize,
    ) -> usize {
        table.count_missed(slot);
        Self::next_entry(dispatch, table, pending, epoch, refused | 1 << slot)
    }

    pub(crate) unsafe fn exit<C: Callback>(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        at: usize,
        epoch: usize,
    ) {
        let slot = at - 1;
        // SAFETY: as in `entry`; the frame's epoch is older still.
        let (callback, was_there) = unsafe { table.owner::<C>(slot, epoch) };
        if !was_there {
            // SAFETY: as a slot's function would be called.
            return unsafe { Self::vacant_exit(dispatch, table, pending, at, epoch) };
        }
        let mut words = <C::Frame as FrameData>::Words::ZERO;
        let len = <C::Frame as FrameData>::Words::LEN;
        if len > 0 {
            let Some(start) = dispatch.own_data(dispatch.data, slot, len) else {
                // SAFETY: as above.
                return unsafe { Self::damaged(dispatch, table, pending, at, epoch) };
            };
            for (i, word) in words.as_mut_slice().iter_mut().enumerate() {
                // SAFETY: below `data`, which is not above the stack's words.
                *word = unsafe { dispatch.view.get_unchecked(start + i) };
            }
            dispatch.data = start;
        }
        let data = C::Frame::from_words(words);
        let unwound = OnUnwind(dispatch, pending);
        // SAFETY: its owner was there, so it is a `&'static C`.
        let callback = unsafe { &*callback };
        callback.exit(Exit::new(unwound.0, slot), data);
        core::mem::forget(unwound);
        Self::next_exit(dispatch, table, pending, epoch);
    }

    /// An exit's step where a callback's data do not read as its own.
    #[cold]
    #[inline(never)]
    unsafe fn damaged(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        _at: usize,
        epoch: usize,
    ) {
        dispatch.view.stack().count_stray();
        Self::next_exit(dispatch, table, pending, epoch);
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
    /// Where the data of `slot` start, if they are what ends at `end`.
    #[inline(always)]
    fn own_data(&self, end: usize, slot: usize, len: usize) -> Option<usize> {
        let start = end.checked_sub(len + 1)?;
        // SAFETY: `end` is the end of a frame on the stack.
        let newest = unsafe { self.view.get_unchecked(end - 1) };
        word::is_data_of(newest, slot, len).then_some(start)
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

    /// What the frame remembers of the call.
    #[inline(always)]
    pub(crate) fn record(&self) -> Record {
        self.view.record_at(self.index).unwrap_or(Record::NONE)
    }

    /// The frames that enclose this one, newest first.
    fn enclosing(&self) -> impl Iterator<Item = Found> + '_ {
        self.view.founds_below(self.index)
    }

    /// The real caller: through the frames of the functions that tail-called
    /// this one, which are those on the same return slot.
    pub(crate) fn caller(&self) -> usize {
        let Record { ret, slot, .. } = self.record();
        self.enclosing()
            .take_while(|frame| slot != 0 && frame.record.slot == slot)
            .last()
            .map_or(ret, |oldest| oldest.record.ret)
    }

    /// The enclosing frames in which the owner of `slot` takes part.
    fn enclosing_of(&self, slot: usize) -> impl Iterator<Item = Found> + '_ {
        let since = self.table.since(slot);
        self.enclosing()
            .filter(move |frame| frame.set & (1 << slot) != 0 && since <= frame.record.epoch)
    }

    /// The first of [`parents`](Self::parents): a short way where the next frame
    /// is a near one whose newest data are its.
    #[inline(always)]
    pub(crate) fn parent(&self, place: Place, len: usize) -> Option<(usize, usize)> {
        let (slot, before) = (place.slot(), usize::from(place.offset));
        match self.view.near_below(self.index) {
            Ok(None) => return None,
            Ok(Some(frame)) => {
                let takes_part = frame.set & (1 << slot) != 0
                    && self.table.since(slot) <= frame.record.epoch
                    && place.gate().is_none();
                if takes_part && let Some(start) = self.own_data(frame.end, slot, before + len) {
                    return Some((frame.record.func, start + before));
                }
            }
            Err(NotNear) => {}
        }
        self.parents(place, len).next()
    }

    /// The enclosing frames in which `place` takes part, newest first: each
    /// one's function, and where the `len` words of `place` start.
    pub(crate) fn parents(
        &self,
        place: Place,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let before = usize::from(place.offset);
        self.enclosing_of(place.slot()).filter_map(move |frame| {
            let start = self.data_in(&frame, place.slot(), before + len)?;
            let takes_part = place
                .gate()
                .is_none_or(|gate| self.view.get(start + gate) != 0);
            takes_part.then_some((frame.record.func, start + before))
        })
    }

    pub(crate) fn depth(&self, place: Place, len: usize) -> usize {
        match place.gate() {
            None => self.enclosing_of(place.slot()).count(),
            Some(_) => self.parents(place, len).count(),
        }
    }

    /// Where the `len` words start that the owner of `slot` keeps in `frame`.
    fn data_in(&self, frame: &Found, slot: usize, len: usize) -> Option<usize> {
        let mut end = frame.end;
        if len == 0 {
            return Some(end);
        }
        while end > frame.index + 1 {
            if let Some(start) = self.own_data(end, slot, len) {
                return Some(start);
            }
            let Kind::Data(index) = word::kind(self.view.get(end - 1)) else {
                return None;
            };
            end = end.checked_sub(index.words() + 1)?;
        }
        None
    }
}
