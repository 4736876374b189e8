//! The table of callbacks: who holds which slot since when, as other CPUs see
//! it while it changes.
//!
//! # Epochs
//!
//! Each registration takes the next *epoch*, for ever greater than all before.
//! A call notes the epoch when it begins and keeps it in its frame; a slot's
//! owner takes part in a call if it was registered at or before that epoch:
//!
//! ```text
//! since ≤ epoch of the frame   the owner was there when the call began
//! since > epoch of the frame   a later owner, or (since = MAX) none
//! ```
//!
//! Epochs only grow and are never truncated (see [`MAX_EPOCH`]), so a later
//! owner can not be taken for the former one, however often the slot changed
//! hands while the call slept.
//!
//! # Reading a slot as one
//!
//! A slot is four words: two functions, an object, and `since`. A writer sets
//! `since` to MAX before it changes the others, and to the new epoch after. A
//! reader takes function and object first and `since` last: if it is at or
//! below the reader's epoch, the slot did not change from before the reader's
//! epoch until that read, and what was read belongs together.
//!
//! This file does not know the shadow stack.

use core::ptr;

use super::dispatch::{Dispatch, EntryThunk, ExitThunk, Thunks};
use crate::Callback;
use crate::ret_stack::word::{MAX_EPOCH, Progress, near_need};
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, count, fence};

/// The number of callback slots that a frame's set has room for.
pub(crate) const SLOTS: usize = 16;

/// Every slot's bit.
pub(crate) const ALL_CALLBACKS: usize = usize::MAX >> (usize::BITS - SLOTS as u32);

/// No owner.
const NEVER: usize = usize::MAX;

/// The slots, as arrays of one field each: a dispatch steps through them by
/// the set's bits, with no multiplication.
#[derive(Debug)]
pub(crate) struct Table {
    /// The slots that have an owner, one bit each. Stored with release after
    /// the slot itself; loaded relaxed, because the owner's `since` decides.
    active: AtomicUsize,
    /// The newest epoch. Stored with release after the owner of that epoch
    /// is in its slot; loaded with acquire before any slot is read, so that
    /// an owner at or below the epoch is seen whole.
    epoch: AtomicUsize,
    /// The data words that all owners together may keep in one frame, their
    /// index words included. See [`data_words`](Self::data_words).
    data_words: AtomicUsize,
    /// What a call needs that enters the short way: the words of a near frame
    /// and `data_words`, or more than there can be.
    need: AtomicUsize,
    entry: [AtomicPtr<()>; SLOTS],
    exit: [AtomicPtr<()>; SLOTS],
    object: [AtomicPtr<()>; SLOTS],
    since: [AtomicUsize; SLOTS],
    /// Each owner's part of `data_words`. Written with the table's lock held, as
    /// `object` is; read under it, or as `keeps` does.
    words: [AtomicUsize; SLOTS],
    /// Entries that a callback did not see, or saw without its return being
    /// recorded, because a stack was full. Relaxed: counts order nothing.
    missed: [AtomicU32; SLOTS],
}

impl Table {
    pub(crate) const fn new() -> Self {
        Self {
            active: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            data_words: AtomicUsize::new(0),
            need: AtomicUsize::new(near_need(0, 0)),
            entry: [const { AtomicPtr::new(Thunks::VACANT_ENTRY as *mut ()) }; SLOTS],
            exit: [const { AtomicPtr::new(Thunks::VACANT_EXIT as *mut ()) }; SLOTS],
            object: [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS],
            since: [const { AtomicUsize::new(NEVER) }; SLOTS],
            words: [const { AtomicUsize::new(0) }; SLOTS],
            missed: [const { AtomicU32::new(0) }; SLOTS],
        }
    }

    #[inline(always)]
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// The word of [`active`](Self::active), for a stub to look at.
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    pub(crate) fn active_word(&self) -> &AtomicUsize {
        &self.active
    }

    #[inline(always)]
    pub(crate) fn epoch(&self) -> usize {
        self.epoch.load(Ordering::Acquire)
    }

    /// The data words that all owners together may keep in one frame, if the
    /// epoch was read before: an owner at or below that epoch either has its
    /// part in the sum, or has left and will be found to have. Relaxed: the
    /// epoch's acquire pairs with the release that follows when a part is
    /// added; and when one is taken away, the release fence before that, in
    /// `vacate`, pairs with the acquire fence in `owner`.
    #[inline(always)]
    pub(crate) fn data_words(&self) -> usize {
        self.data_words.load(Ordering::Relaxed)
    }

    /// What a call needs that enters the short way, if the epoch was read
    /// before. As [`data_words`](Self::data_words); and the epoch is one for
    /// near frames, unless this is more than any stack has.
    #[inline(always)]
    pub(crate) fn need(&self) -> usize {
        self.need.load(Ordering::Relaxed)
    }

    /// `data_words` has changed, or the epoch will: with the table's lock held.
    /// A swap, as what follows a release fence by others' swaps alone is still
    /// ordered by it.
    fn set_need(&self, epoch: usize) {
        let need = near_need(self.data_words(), epoch);
        self.need.swap(need, Ordering::Relaxed);
    }

    /// Relaxed: `owner` and `keeps` have a fence before it where others' words
    /// were read; alone it orders nothing.
    #[inline(always)]
    pub(crate) fn since(&self, slot: usize) -> usize {
        self.since[slot].load(Ordering::Relaxed)
    }

    /// Relaxed: a hint, unless the table's lock is held.
    pub(crate) fn is_vacant(&self, slot: usize) -> bool {
        self.since
            .get(slot)
            .is_some_and(|since| since.load(Ordering::Relaxed) == NEVER)
    }

    /// Lets dispatches visit a vacant slot, whose functions refuse. Relaxed:
    /// nothing is published by it.
    pub(crate) fn visit_vacant(&self, slot: usize, visit: bool) {
        if visit {
            self.active.fetch_or(1 << slot, Ordering::Relaxed);
        } else {
            self.active.fetch_and(!(1 << slot), Ordering::Relaxed);
        }
    }

    /// The function that continues an entry at the slot `at`. Relaxed, as the
    /// next: it finds out itself, by `owner`, whether it is still to be called.
    ///
    /// # Safety
    ///
    /// `at < SLOTS`.
    #[inline(always)]
    pub(crate) unsafe fn entry(&self, at: usize) -> EntryThunk {
        // SAFETY: in bounds, by the caller.
        let thunk = unsafe { self.entry.get_unchecked(at) }.load(Ordering::Relaxed);
        // SAFETY: nothing but an `EntryThunk` is ever stored in `entry`.
        unsafe { core::mem::transmute::<*mut (), EntryThunk>(thunk) }
    }

    /// The function that continues an exit at the slot `at`.
    ///
    /// # Safety
    ///
    /// `at < SLOTS`.
    #[inline(always)]
    pub(crate) unsafe fn exit(&self, at: usize) -> ExitThunk {
        // SAFETY: in bounds, by the caller.
        let thunk = unsafe { self.exit.get_unchecked(at) }.load(Ordering::Relaxed);
        // SAFETY: nothing but an `ExitThunk` is ever stored in `exit`.
        unsafe { core::mem::transmute::<*mut (), ExitThunk>(thunk) }
    }

    /// The object of `slot`, and whether its owner was there at `epoch`: only
    /// then is it a `C`.
    ///
    /// # Safety
    ///
    /// The caller is the function that the slot of this `C` holds, was read
    /// from the slot, and `epoch` was read from this table (now or when the
    /// frame was made) before that. `slot < SLOTS`.
    #[inline(always)]
    pub(crate) unsafe fn owner<C: Callback>(&self, slot: usize, epoch: usize) -> (*const C, bool) {
        // SAFETY: in bounds, by the caller.
        let (object, since) = unsafe {
            (
                self.object.get_unchecked(slot),
                self.since.get_unchecked(slot),
            )
        };
        let object = object.load(Ordering::Relaxed);
        // Orders the reads of function and object before that of `since`;
        // pairs with the release fences in `vacate` and `take`.
        fence(Ordering::Acquire);
        // At or below an epoch that was current before the function was read:
        // the slot has not changed since, so the object is the one that was
        // stored with this function, a `&'static C`.
        let was_there = since.load(Ordering::Relaxed) <= epoch;
        (object.cast::<C>(), was_there)
    }

    /// The slot of a callback, if it has one. The function is compared with
    /// the object, because objects of different types, or of no size, may
    /// share an address. With the table's lock held.
    fn find<C: Callback>(&self, object: *mut ()) -> Option<usize> {
        let entry = Thunks::entry::<C> as EntryThunk as *mut ();
        (0..SLOTS).find(|&slot| {
            self.since(slot) != NEVER
                && self.object[slot].load(Ordering::Relaxed) == object
                && self.entry[slot].load(Ordering::Relaxed) == entry
        })
    }

    /// Puts a callback into a free slot that is not in `avoid`. With the
    /// table's lock held.
    pub(crate) fn take<C: Callback>(
        &self,
        callback: &'static C,
        slots: usize,
        avoid: usize,
    ) -> Result<(usize, usize), TakeError> {
        let object = ptr::from_ref(callback).cast_mut().cast::<()>();
        if self.find::<C>(object).is_some() {
            return Err(TakeError::Present);
        }
        let free = |&slot: &usize| self.since(slot) == NEVER && avoid & (1 << slot) == 0;
        let slot = (0..slots).find(free).ok_or(TakeError::Full)?;
        let epoch = self.epoch.load(Ordering::Relaxed);
        if epoch >= MAX_EPOCH {
            return Err(TakeError::Exhausted);
        }
        let epoch = epoch + 1;
        // Another CPU may have ended the last owner's `since`, known here by the
        // lock: orders that before the stores below for whoever reads one of
        // them; pairs with the acquire fence in `owner`.
        fence(Ordering::Release);
        // Relaxed, all of them: `since` and `epoch` publish them.
        self.missed[slot].store(0, Ordering::Relaxed);
        self.entry[slot].store(
            Thunks::entry::<C> as EntryThunk as *mut (),
            Ordering::Relaxed,
        );
        self.exit[slot].store(Thunks::exit::<C> as ExitThunk as *mut (), Ordering::Relaxed);
        self.object[slot].store(object, Ordering::Relaxed);
        let words = Thunks::data_words::<C>();
        self.words[slot].store(words, Ordering::Relaxed);
        self.data_words.fetch_add(words, Ordering::Relaxed);
        self.set_need(epoch);
        // Release pairs with the acquire fence in `owner`: who reads this
        // `since` has read this object or will find it changed.
        self.since[slot].store(epoch, Ordering::Release);
        // Release pairs with the acquire in `epoch`: who reads this epoch
        // finds the slot whole.
        self.epoch.store(epoch, Ordering::Release);
        self.active.fetch_or(1 << slot, Ordering::Release);
        Ok((slot, epoch))
    }

    /// Frees the slot of the owner that came at `epoch`; false if it has left
    /// already. With the table's lock held.
    pub(crate) fn vacate(&self, slot: usize, epoch: usize) -> bool {
        if slot >= SLOTS || self.since(slot) != epoch {
            return false;
        }
        // Relaxed: `since` decides, and the fence below orders that.
        self.active.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.since[slot].store(NEVER, Ordering::Relaxed);
        // Orders the end of `since` before the change of the rest; pairs with
        // the acquire fence in `owner`.
        fence(Ordering::Release);
        true
    }

    /// Takes the departed callback's functions out of its slot. With the
    /// table's lock held, after `vacate`, whose fence orders the stores.
    pub(crate) fn clear(&self, slot: usize) {
        self.entry[slot].store(Thunks::VACANT_ENTRY as *mut (), Ordering::Relaxed);
        self.exit[slot].store(Thunks::VACANT_EXIT as *mut (), Ordering::Relaxed);
        self.object[slot].store(ptr::null_mut(), Ordering::Relaxed);
        let words = self.words[slot].load(Ordering::Relaxed);
        self.data_words.fetch_sub(words, Ordering::Relaxed);
        self.set_need(self.epoch.load(Ordering::Relaxed));
    }

    pub(crate) fn count_missed(&self, slot: usize) {
        if let Some(missed) = self.missed.get(slot) {
            count(missed, 1);
        }
    }

    pub(crate) fn missed(&self, slot: usize) -> u32 {
        self.missed
            .get(slot)
            .map_or(0, |m| m.load(Ordering::Relaxed))
    }

    /// The most words that the owner of `slot` keeps in a frame, its index word
    /// included; `None` if it was not there at `epoch`, which was read before.
    fn keeps(&self, slot: usize, epoch: usize) -> Option<usize> {
        let words = self.words[slot].load(Ordering::Relaxed);
        // As in `owner`: what was read is this owner's.
        fence(Ordering::Acquire);
        (self.since(slot) <= epoch).then_some(words)
    }

    /// Calls the entries of the callbacks of `set`, in slot order, with the first
    /// data at `at`; returns how far it came.
    ///
    /// # Safety
    ///
    /// `set` has a bit, and none above the slots'. From `at` on, `data_words`
    /// are claimed, read after `epoch` was.
    #[inline(always)]
    pub(crate) unsafe fn enter(
        &self,
        dispatch: &mut Dispatch<'_>,
        set: usize,
        epoch: usize,
        at: usize,
    ) -> Progress {
        // SAFETY: the caller's.
        unsafe { Thunks::first_entry(dispatch, self, set, epoch, Progress::at(at)) }
    }

    /// As [`enter`](Self::enter), where less may be claimed: up to `limit`. A
    /// callback whose data find no room is not called and takes no part.
    ///
    /// # Safety
    ///
    /// As for [`enter`](Self::enter), but for what is claimed: the words from
    /// `at` to `limit`.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn enter_tight(
        &self,
        dispatch: &mut Dispatch<'_>,
        set: usize,
        epoch: usize,
        at: usize,
        limit: usize,
    ) -> Progress {
        let mut progress = Progress::at(at);
        let mut overrun = false;
        for slot in (0..SLOTS).filter(|slot| set & (1 << slot) != 0) {
            let room = limit.saturating_sub(progress.position());
            if self.keeps(slot, epoch).is_some_and(|words| words > room) {
                self.count_missed(slot);
                if !overrun {
                    dispatch.stack.count_overrun();
                }
                overrun = true;
                progress = progress.refusing(slot);
                continue;
            }
            // Should this one unwind, those behind it have not been called.
            let behind = set & (ALL_CALLBACKS << slot << 1);
            let before = progress.refusing_all(behind);
            // SAFETY: one of the set's bits; if its owner was there at the epoch,
            // its data fit.
            progress = unsafe { Thunks::first_entry(dispatch, self, 1 << slot, epoch, before) };
            progress = progress.undecided(behind);
        }
        progress
    }

    /// Calls the exits of the callbacks of `set`, in reverse slot order, whose
    /// data end at `end`.
    #[inline(always)]
    pub(crate) fn leave(&self, dispatch: &mut Dispatch<'_>, set: usize, epoch: usize, end: usize) {
        Thunks::next_exit(dispatch, self, set, epoch, end);
    }
}

/// Why a callback got no slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TakeError {
    Present,
    Full,
    Exhausted,
}
