//! One entry or one exit on its way through the callbacks.
//!
//! The callbacks of a set are called as *threaded code*: each slot holds a
//! function made for its callback's type, which does that callback's work and
//! then continues with the next slot's as its last act, a jump in optimised
//! builds. What changes from step to step goes along in registers. In builds
//! where the last call is not a jump, the chain nests at most 17 deep.
//!
//! A callback that panics unwinds out of its step, which then does what is left
//! to do: the others get their exits, and the state becomes what it is when all
//! is over. Nothing has to be kept for that while none does.

use core::marker::PhantomData;

use super::Cause;
use super::callback::{Callback, Entry, Exit, FrameData, WordArray};
use super::table::{SLOTS, Table};
use crate::hook::Registers;
use crate::platform::Context;
use crate::ret_stack::word::{self, Kind, Progress, Record, State};
use crate::ret_stack::{Found, NotNear, RetStack, View};

mod unwinding;

use unwinding::{EntryUnwound, ExitUnwound};

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
    pub(crate) stack: &'a RetStack,
    /// The position of the frame's callback-index word.
    pub(crate) index: usize,
    pub(crate) registers: Option<&'a Registers>,
    /// The stack's state meanwhile.
    pub(crate) during: State,
    /// The stack's state without the frame.
    pub(crate) without: State,
    pub(crate) context: Context,
    /// Why the call ends; `Returned` while it begins.
    pub(crate) cause: Cause,
    /// It belongs to the running task and its CPU: what refers to it can not be
    /// sent to another, nor shared.
    pub(crate) not_sync: PhantomData<*const ()>,
}

/// An entry's step: the callbacks still to be called, of which this one is the
/// lowest; its slot; the call's epoch; and how far the entry has come. Returns
/// that at the end.
pub(crate) type EntryThunk = for<'d, 'a, 't> unsafe fn(
    &'d mut Dispatch<'a>,
    &'t Table,
    usize,
    usize,
    usize,
    Progress,
) -> Progress;

/// An exit's step: the callbacks still to be called after this one, its slot,
/// the frame's epoch, and where the data end of those that are still to be
/// called, this one's included.
pub(crate) type ExitThunk =
    for<'d, 'a, 't> unsafe fn(&'d mut Dispatch<'a>, &'t Table, usize, usize, usize, usize);

/// The functions that slots hold.
pub(crate) struct Thunks;

impl Thunks {
    pub(crate) const VACANT_ENTRY: EntryThunk = Self::vacant_entry;
    pub(crate) const VACANT_EXIT: ExitThunk = Self::vacant_exit;

    /// The most words that a frame holds for a `C`, its index word included.
    pub(crate) const fn data_words<C: Callback>() -> usize {
        let words = <C::Frame as FrameData>::Words::LEN;
        if words == 0 { 0 } else { words + 1 }
    }

    /// Begins with the lowest slot of `set`.
    ///
    /// # Safety
    ///
    /// `set` has a bit, and none above the slots'. From where `progress` is, all
    /// words are claimed that those owners may keep that were there at `epoch`.
    #[inline(always)]
    pub(crate) unsafe fn first_entry(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        set: usize,
        epoch: usize,
        progress: Progress,
    ) -> Progress {
        // SAFETY: the caller's. The thunk is called with the slot from which
        // it was read.
        unsafe {
            core::hint::assert_unchecked(set != 0);
            let slot = set.trailing_zeros() as usize;
            core::hint::assert_unchecked(slot < SLOTS);
            table.entry(slot)(dispatch, table, set, slot, epoch, progress)
        }
    }

    /// Goes on behind the lowest slot of `pending`.
    #[inline(always)]
    fn next_entry(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        epoch: usize,
        progress: Progress,
    ) -> Progress {
        let rest = pending & pending.wrapping_sub(1);
        if rest == 0 {
            return progress;
        }
        // SAFETY: not empty, and part of a set; each has kept no more than was
        // claimed for it.
        unsafe { Self::first_entry(dispatch, table, rest, epoch, progress) }
    }

    /// Goes on with the highest slot of `pending`.
    #[inline(always)]
    pub(crate) fn next_exit(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        epoch: usize,
        end: usize,
    ) {
        if pending == 0 {
            return;
        }
        // SAFETY: `pending` is part of a set. The thunk is called with the slot
        // from which it was read.
        unsafe {
            let slot = pending.ilog2() as usize;
            core::hint::assert_unchecked(slot < SLOTS);
            table.exit(slot)(dispatch, table, pending ^ 1 << slot, slot, epoch, end);
        }
    }

    unsafe fn vacant_entry(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        progress: Progress,
    ) -> Progress {
        Self::next_entry(dispatch, table, pending, epoch, progress.refusing(slot))
    }

    unsafe fn vacant_exit(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        end: usize,
    ) {
        let end = dispatch.without_data(end, slot);
        Self::next_exit(dispatch, table, pending, epoch, end);
    }

    pub(crate) unsafe fn entry<C: Callback>(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        mut progress: Progress,
    ) -> Progress {
        // SAFETY: called through the slot that holds this function, with its
        // number; the epoch was read before the function was.
        let (callback, was_there) = unsafe { table.owner::<C>(slot, epoch) };
        if !was_there {
            // SAFETY: as a slot's function would be called.
            return unsafe { Self::vacant_entry(dispatch, table, pending, slot, epoch, progress) };
        }
        let words = <C::Frame as FrameData>::Words::LEN;
        let unwound = EntryUnwound {
            dispatch: &mut *dispatch,
            table,
            pending,
            epoch,
            progress,
        };
        // SAFETY: its owner was there, so it is a `&'static C`.
        let callback = unsafe { &*callback };
        match callback.entry(Entry::new(unwound.dispatch, table, slot)) {
            Some(data) => {
                if words > 0 {
                    let data = data.to_words();
                    let dispatch = &*unwound.dispatch;
                    let (view, at) = (dispatch.view(), progress.position());
                    // SAFETY: claimed, by whoever called the first: the owner
                    // was there at the epoch; data begin behind the index word;
                    // the array's length is 1 to 15.
                    unsafe { view.put_data(dispatch.index, at, slot, data.as_slice()) };
                    progress = progress.advanced(words + 1);
                }
            }
            None => progress = progress.refusing(slot),
        }
        core::mem::forget(unwound);
        Self::next_entry(dispatch, table, pending, epoch, progress)
    }

    pub(crate) unsafe fn exit<C: Callback>(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        slot: usize,
        epoch: usize,
        mut end: usize,
    ) {
        // SAFETY: as in `entry`; the frame's epoch is older still.
        let (callback, was_there) = unsafe { table.owner::<C>(slot, epoch) };
        if !was_there {
            // SAFETY: as a slot's function would be called.
            return unsafe { Self::vacant_exit(dispatch, table, pending, slot, epoch, end) };
        }
        let mut words = <C::Frame as FrameData>::Words::ZERO;
        let len = <C::Frame as FrameData>::Words::LEN;
        if len > 0 {
            let view = dispatch.view();
            let Some(start) = view.own_data(end, slot, len) else {
                // SAFETY: as above.
                return unsafe { Self::damaged(dispatch, table, pending, slot, epoch, end) };
            };
            for (i, word) in words.as_mut_slice().iter_mut().enumerate() {
                // SAFETY: below `end`, which is not above the stack's words.
                *word = unsafe { view.get_unchecked(start + i) };
            }
            end = start;
        }
        let data = C::Frame::from_words(words);
        let unwound = ExitUnwound {
            dispatch: &mut *dispatch,
            table,
            pending,
            epoch,
            end,
        };
        // SAFETY: its owner was there, so it is a `&'static C`.
        let callback = unsafe { &*callback };
        callback.exit(Exit::new(unwound.dispatch, table, slot), data);
        core::mem::forget(unwound);
        Self::next_exit(dispatch, table, pending, epoch, end);
    }

    /// An exit's step where a callback's data do not read as its own.
    #[cold]
    #[inline(never)]
    unsafe fn damaged(
        dispatch: &mut Dispatch<'_>,
        table: &Table,
        pending: usize,
        _slot: usize,
        epoch: usize,
        end: usize,
    ) {
        dispatch.stack.count_stray();
        Self::next_exit(dispatch, table, pending, epoch, end);
    }
}

impl<'a> Dispatch<'a> {
    /// The stack's words.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'a> {
        self.stack.view_in_use()
    }

    /// `end`, or where the data begin that end there, if they are those of a
    /// callback that has left.
    #[cold]
    fn without_data(&self, end: usize, slot: usize) -> usize {
        let Some(newest) = end.checked_sub(1) else {
            return end;
        };
        match word::kind(self.view().get(newest)) {
            Kind::Data(index) if index.callback() == slot => newest.saturating_sub(index.words()),
            _ => end,
        }
    }

    /// The function that was called: a short way for near frames.
    #[inline(always)]
    pub(crate) fn func(&self) -> usize {
        // SAFETY: the index of a frame that is being entered or left.
        match unsafe { self.view().near_func_at(self.index) } {
            Ok(func) => func,
            Err(NotNear) => self.wide_func(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wide_func(&self) -> usize {
        self.record().func
    }

    /// What the frame remembers of the call.
    #[inline(always)]
    pub(crate) fn record(&self) -> Record {
        self.view().record_at(self.index).unwrap_or(Record::NONE)
    }

    /// The frames that enclose this one, newest first.
    fn enclosing(&self) -> impl Iterator<Item = Found> + use<'a> {
        self.view().founds_below(self.index)
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
    fn enclosing_of(&self, table: &Table, slot: usize) -> impl Iterator<Item = Found> + use<'a> {
        let since = table.since(slot);
        self.enclosing()
            .filter(move |frame| frame.set & (1 << slot) != 0 && since <= frame.record.epoch)
    }

    /// The first of [`parents`](Self::parents): a short way where the next frame
    /// is a near one whose newest data are its.
    #[inline(always)]
    pub(crate) fn parent(&self, table: &Table, place: Place, len: usize) -> Option<(usize, usize)> {
        let (slot, before) = (place.slot(), usize::from(place.offset));
        // SAFETY: the index of a frame that is being entered or left.
        match unsafe { self.view().near_below(self.index) } {
            Ok(None) => return None,
            Ok(Some(frame)) => {
                let takes_part = frame.set & (1 << slot) != 0
                    && table.since(slot) <= frame.record.epoch
                    && place.gate().is_none();
                if takes_part
                    && let Some(start) = self.view().own_data(frame.end, slot, before + len)
                {
                    return Some((frame.record.func, start + before));
                }
            }
            Err(NotNear) => {}
        }
        self.parent_otherwise(table, place, len)
    }

    /// A function of its own, so that [`parent`](Self::parent) needs no memory.
    #[cold]
    #[inline(never)]
    fn parent_otherwise(&self, table: &Table, place: Place, len: usize) -> Option<(usize, usize)> {
        self.parents(table, place, len).next()
    }

    /// The enclosing frames in which `place` takes part, newest first: each
    /// one's function, and where the `len` words of `place` start.
    pub(crate) fn parents(
        &self,
        table: &Table,
        place: Place,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let view = self.view();
        let before = usize::from(place.offset);
        self.enclosing_of(table, place.slot())
            .filter_map(move |frame| {
                let start = view.data_in(&frame, place.slot(), before + len)?;
                let takes_part = place.gate().is_none_or(|gate| view.get(start + gate) != 0);
                takes_part.then_some((frame.record.func, start + before))
            })
    }

    pub(crate) fn depth(&self, table: &Table, place: Place, len: usize) -> usize {
        match place.gate() {
            None => self.enclosing_of(table, place.slot()).count(),
            Some(_) => self.parents(table, place, len).count(),
        }
    }
}
