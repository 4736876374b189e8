//! The packed words: every bit that the crate stores, and nothing else.
//!
//! This file owns shifts and masks. It knows no array, no callback and no
//! platform; the rest of the crate hands it values and gets words back.
//! It is long because no other file shifts or masks, on either word size.
//!
//! A frame on a 64-bit target, oldest word first:
//!
//! ```text
//! near   record     func:32 │ ret:32              offsets in the code window
//!        index      set:16 │ epoch:17 │ slot:29 │ kind:2
//! wide   func       whole                         any address
//!        ret        whole
//!        slot       whole
//!        index      set:16 │ epoch:46 │ kind:2
//! data   n words, then
//!        data index distance:32 │ 22 of no use │ callback:4 │ words:4 │ kind:2
//! gap    gap index  distance:32 │ 22 of no use │ 0:8 │ kind:2
//! ```
//!
//! A scope has the slot code 0, and the offset 0 for a caller that is not known.
//!
//! The lowest bits come first. The kind is on top, and that of near frames is
//! the greatest number: one comparison of what lies from the slot up tells
//! whether a frame is near and where its slot is.
//!
//! On a 32-bit target `func`, `ret` and `slot` are whole words in both shapes,
//! the near index is `set:16 │ epoch:14 │ kind:2`, a wide frame has its epoch in
//! a word before its index, and a distance is of 16 bits.
//!
//! The zero word is load-bearing: its kind is *none*, so zeroed memory never
//! reads as a frame.

use static_assertions::const_assert;

use crate::bits;

type Field = bits::Field<usize>;

const SET: Field = Field::first(16);
#[cfg(target_pointer_width = "64")]
const EPOCH: Field = Field::after(SET, 17);
#[cfg(target_pointer_width = "64")]
const SLOT: Field = Field::rest(EPOCH, KIND.width);
#[cfg(target_pointer_width = "64")]
const WIDE_EPOCH: Field = Field::rest(SET, KIND.width);
#[cfg(target_pointer_width = "32")]
const EPOCH: Field = Field::rest(SET, KIND.width);

// Half a word: processors take that out of a word without a mask.
const DISTANCE: Field = Field::first(usize::BITS / 2);
const CALLBACK: Field = Field::below(WORDS, 4);
const WORDS: Field = Field::below(KIND, 4);

/// On top of every index.
const KIND: Field = Field::last(2);

#[cfg(target_pointer_width = "64")]
const POSITION_BITS: u32 = 30;
#[cfg(target_pointer_width = "32")]
const POSITION_BITS: u32 = 14;
const TOP: Field = Field::first(POSITION_BITS);
const GUARDS: Field = Field::after(TOP, 4);
const CLAIMED: Field = Field::after(GUARDS, POSITION_BITS);

#[cfg(target_pointer_width = "64")]
const_assert!(SLOT.width == 29 && WIDE_EPOCH.width == 46);
#[cfg(target_pointer_width = "32")]
const_assert!(EPOCH.width == 14);
const_assert!(DISTANCE.end() <= CALLBACK.shift && KIND.end() == usize::BITS);
const_assert!(CLAIMED.end() == usize::BITS);
const_assert!(MAX_DATA_WORDS == 15 && MAX_WORDS <= DISTANCE.max());

/// The largest number of data words that one callback keeps in one frame. More
/// do not compile: see [`FrameData`](crate::FrameData).
///
/// # Example
///
/// ```
/// assert_eq!(fgraph::ret_stack::MAX_DATA_WORDS, 15);
/// ```
pub const MAX_DATA_WORDS: usize = WORDS.max();

/// The largest number of words that one shadow stack can use.
///
/// # Example
///
/// ```
/// use fgraph::ret_stack::{MAX_WORDS, words_for};
///
/// // Room for 3,000 calls, on any target.
/// assert!(words_for(3000, &[]) <= MAX_WORDS);
/// ```
pub const MAX_WORDS: usize = TOP.max();

/// Words of a near frame before its data: 16 bytes on any target.
///
/// # Example
///
/// ```
/// assert_eq!(fgraph::ret_stack::NEAR_WORDS * size_of::<usize>(), 16);
/// ```
#[cfg(target_pointer_width = "64")]
pub const NEAR_WORDS: usize = 2;
/// Words of a wide frame before its data: the frame of a call whose function,
/// return address or return slot lies too far off for a near one.
///
/// # Example
///
/// ```
/// use fgraph::ret_stack::{NEAR_WORDS, WIDE_WORDS};
///
/// assert!(WIDE_WORDS > NEAR_WORDS);
/// ```
#[cfg(target_pointer_width = "64")]
pub const WIDE_WORDS: usize = 4;
/// The last words of a near frame before its data that tell that it is one, and
/// on which slot.
#[cfg(target_pointer_width = "64")]
pub(crate) const TELLING: usize = 1;
/// The last words of a near frame before its data that tell that it is one, and
/// on which slot.
#[cfg(target_pointer_width = "32")]
pub(crate) const TELLING: usize = 2;

/// Words of a near frame before its data: 16 bytes on any target.
///
/// # Example
///
/// ```
/// assert_eq!(fgraph::ret_stack::NEAR_WORDS * size_of::<usize>(), 16);
/// ```
#[cfg(target_pointer_width = "32")]
pub const NEAR_WORDS: usize = 4;
/// Words of a wide frame before its data: the frame of a call whose function,
/// return address or return slot lies too far off for a near one.
///
/// # Example
///
/// ```
/// use fgraph::ret_stack::{NEAR_WORDS, WIDE_WORDS};
///
/// assert!(WIDE_WORDS > NEAR_WORDS);
/// ```
#[cfg(target_pointer_width = "32")]
pub const WIDE_WORDS: usize = 5;

/// The last epoch that a frame can record: 46 bits, or a whole word on a
/// 32-bit target. A near frame holds the first 17 (14) bits' worth; past them
/// frames are wide, so that an epoch is never truncated.
#[cfg(target_pointer_width = "64")]
pub(crate) const MAX_EPOCH: usize = usize::MAX >> (usize::BITS - 46);
#[cfg(target_pointer_width = "32")]
pub(crate) const MAX_EPOCH: usize = usize::MAX - 1;

/// What the newest word of a frame, or of a part of it, is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// No frame: zeroed memory.
    None,
    /// The index of a near frame.
    Near(Index),
    /// The index of a wide frame.
    Wide(Index),
    /// The index above a callback's data words.
    Data(DataIndex),
    /// Words that an interrupted owner had claimed, under the frames of the
    /// interrupt; the distance leads below them.
    Gap(usize),
}

const KIND_DATA: usize = 1;
const KIND_WIDE: usize = 2;
const KIND_NEAR: usize = 3;

/// Reads a word's kind.
#[inline(always)]
pub(crate) const fn kind(word: usize) -> Kind {
    match KIND.get(word) {
        KIND_NEAR => Kind::Near(Index(word)),
        KIND_WIDE => Kind::Wide(Index(word)),
        KIND_DATA if WORDS.get(word) == 0 => Kind::Gap(DISTANCE.get(word)),
        KIND_DATA => Kind::Data(DataIndex(word)),
        _ => Kind::None,
    }
}

/// A callback-index word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Index(usize);

impl Index {
    /// A near frame's.
    #[inline(always)]
    pub(crate) const fn from_near(word: usize) -> Self {
        Self(word)
    }

    /// The callbacks that want a near frame's return, and its epoch.
    #[inline(always)]
    pub(crate) const fn wanted(self) -> (usize, usize) {
        (self.set(), self.near_epoch())
    }

    /// The callbacks that want the frame's return.
    #[inline(always)]
    pub(crate) const fn set(self) -> usize {
        SET.get(self.0)
    }

    #[inline(always)]
    const fn near_epoch(self) -> usize {
        EPOCH.get(self.0)
    }

    /// The slot of a near frame.
    #[inline(always)]
    #[cfg(target_pointer_width = "64")]
    const fn slot(self, stack: Slots) -> usize {
        match SLOT.get(self.0) {
            0 => 0,
            _ => SlotCode(self.0 >> SLOT.shift).slot(stack),
        }
    }
}

impl core::fmt::Debug for Index {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut s = f.debug_struct("Index");
        s.field("kind", &KIND.get(self.0))
            .field("set", &format_args!("{:#06x}", SET.get(self.0)))
            .field("epoch", &EPOCH.get(self.0));
        #[cfg(target_pointer_width = "64")]
        s.field("slot", &format_args!("+{:#x}", SLOT.get(self.0) << 3));
        s.finish()
    }
}

/// A data-index word: whose the words below it are, how many, and how far
/// below it the frame's callback-index word lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataIndex(usize);

impl DataIndex {
    /// `words` from 1 to [`MAX_DATA_WORDS`], a slot's number, and a distance
    /// within a stack.
    #[inline(always)]
    pub(crate) const fn new(callback: usize, words: usize, distance: usize) -> Self {
        Self(distance | Self::whose(callback, words) << CALLBACK.shift)
    }

    /// What the word has from the callback up.
    #[inline(always)]
    const fn whose(callback: usize, words: usize) -> usize {
        (KIND.put(KIND_DATA) | WORDS.put(words)) >> CALLBACK.shift | callback
    }

    #[inline(always)]
    pub(crate) const fn words(self) -> usize {
        WORDS.get(self.0)
    }

    #[inline(always)]
    pub(crate) const fn callback(self) -> usize {
        CALLBACK.get(self.0)
    }

    #[inline(always)]
    pub(crate) const fn distance(self) -> usize {
        DISTANCE.get(self.0)
    }

    #[inline(always)]
    pub(crate) const fn word(self) -> usize {
        self.0
    }
}

impl core::fmt::Debug for DataIndex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DataIndex")
            .field("callback", &self.callback())
            .field("words", &self.words())
            .field("distance", &self.distance())
            .finish()
    }
}

/// Whether a word is a near frame's index: the likely kind, asked alone.
#[inline(always)]
pub(crate) const fn is_near(word: usize) -> bool {
    KIND.get(word) == KIND_NEAR
}

/// How far below the index of data that of their frame lies; `None` if the word
/// is no such index.
#[inline(always)]
pub(crate) const fn distance(word: usize) -> Option<usize> {
    // As `kind`, by one comparison.
    const FIRST: usize = DataIndex::new(0, 1, 0).0 >> WORDS.shift;
    if (word >> WORDS.shift).wrapping_sub(FIRST) < WORDS.max() {
        Some(DataIndex(word).distance())
    } else {
        None
    }
}

/// The callbacks of an index word.
#[inline(always)]
pub(crate) const fn set_of(index: usize) -> usize {
    SET.get(index)
}

/// An index word without some of its callbacks.
#[inline(always)]
pub(crate) const fn without(index: usize, callbacks: usize) -> usize {
    index & !SET.put(callbacks)
}

/// Whether `word` is the data index of `callback` with `words` data words,
/// whatever its distance.
#[inline(always)]
pub(crate) const fn is_data_of(word: usize, callback: usize, words: usize) -> bool {
    word >> CALLBACK.shift == DataIndex::whose(callback, words)
}

/// A gap word: `distance` claimed words lie below it.
#[inline(always)]
pub(crate) const fn gap(distance: usize) -> usize {
    KIND.put(KIND_DATA) | DISTANCE.put(distance)
}

/// A range of 4 GiB in which an address is told by 32 bits. On a 32-bit target
/// it is the whole address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    base: usize,
}

impl Window {
    /// To both sides of its middle.
    const REACH: usize = 1 << 31;

    /// The window that reaches 2 GiB to both sides of `middle`, wrapping at
    /// the ends of the address space.
    #[inline(always)]
    pub(crate) const fn around(middle: usize) -> Self {
        Self::from_base(middle.wrapping_sub(Self::REACH))
    }

    /// The window that begins at `base`.
    #[inline(always)]
    pub(crate) const fn from_base(base: usize) -> Self {
        Self { base }
    }

    /// The window of the code: functions and return addresses. Its middle is
    /// in this crate's own code, so that whatever is linked with the crate in
    /// a small or kernel code model lies inside.
    #[inline(always)]
    pub(crate) fn code() -> Self {
        Self::around(crate::arch::middle())
    }

    #[inline(always)]
    const fn offset(self, address: usize) -> usize {
        address.wrapping_sub(self.base)
    }
}

/// The 4 GiB of a task's real stack, in which near frames tell their slots: a
/// call above them can not be taken for one on that stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slots {
    /// What has the [code](SlotCode) 0. On a 32-bit target the end, 0 if all
    /// addresses are in it.
    origin: usize,
}

#[cfg(target_pointer_width = "64")]
impl Slots {
    const TO_ORIGIN: usize = SlotCode::NONE.0 << 3;

    /// Those around `middle`, where the stack's end is not known.
    pub(crate) const fn around(middle: usize) -> Self {
        let base = Window::around(middle).base;
        Self::from_word(base.wrapping_sub(Self::TO_ORIGIN))
    }

    /// Those below `end`, a multiple of a word's size.
    pub(crate) const fn up_to(end: usize) -> Self {
        Self::around(end.wrapping_sub(Window::REACH))
    }

    /// Where they end.
    pub(crate) const fn end(self) -> usize {
        self.origin
            .wrapping_add(Self::TO_ORIGIN)
            .wrapping_add(2 * Window::REACH)
    }
}

#[cfg(target_pointer_width = "32")]
impl Slots {
    /// All, where the stack's end is not known.
    pub(crate) const fn around(_: usize) -> Self {
        Self::from_word(0)
    }

    /// Those below `end`, which is not 0.
    pub(crate) const fn up_to(end: usize) -> Self {
        Self::from_word(end)
    }

    /// Where they end.
    pub(crate) const fn end(self) -> usize {
        self.origin
    }
}

impl Slots {
    #[inline(always)]
    pub(crate) const fn from_word(word: usize) -> Self {
        Self { origin: word }
    }

    pub(crate) const fn word(self) -> usize {
        self.origin
    }
}

/// A slot as a near frame's index word tells it: what that has from the slot
/// up, the kind too. So one comparison with another word's tells whether that
/// is a near frame's, and where its slot is. On a 32-bit target it is the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotCode(usize);

#[cfg(target_pointer_width = "64")]
impl SlotCode {
    /// Of a frame without a slot. The window's first address is the only one in
    /// it that no code tells. The others' are greater; what is less is of
    /// another kind.
    pub(crate) const NONE: Self = Self(KIND_NEAR << SLOT.width);

    /// Of a slot that is not 0; if that lies outside of the window or is not
    /// aligned to eight bytes, something that is no code.
    #[inline(always)]
    pub(crate) const fn of(slot: usize, slots: Slots) -> Self {
        Self(slot.wrapping_sub(slots.origin).rotate_right(3))
    }

    #[inline(always)]
    const fn slot(self, slots: Slots) -> usize {
        slots.origin.wrapping_add(self.0 << 3)
    }

    /// Whether it is the code of a slot.
    #[inline(always)]
    pub(crate) const fn is_code(self) -> bool {
        self.0.wrapping_sub(Self::NONE.0 + 1) < SLOT.max()
    }

    /// Whether these are a near frame's without a slot.
    #[inline(always)]
    pub(crate) const fn is_none_of([index]: [usize; TELLING]) -> bool {
        index >> SLOT.shift == Self::NONE.0
    }

    /// Whether it may be the code of a slot: if not, it is that of none.
    #[inline(always)]
    pub(crate) const fn may_be_code(self) -> bool {
        // What is above the codes is in no word.
        Self::NONE.0 < self.0
    }

    /// Whether these are a near frame's on the slot of this, which
    /// [may be a code](Self::may_be_code).
    #[inline(always)]
    pub(crate) const fn is_of(self, [index]: [usize; TELLING]) -> bool {
        index >> SLOT.shift == self.0
    }

    /// Whether these are a near frame's on a slot above that of this, which
    /// [may be a code](Self::may_be_code).
    #[inline(always)]
    pub(crate) const fn is_below(self, [index]: [usize; TELLING]) -> bool {
        index >> SLOT.shift > self.0
    }
}

#[cfg(target_pointer_width = "32")]
impl SlotCode {
    /// Of a frame without a slot.
    pub(crate) const NONE: Self = Self(0);

    /// Of a slot that is not 0; if that lies outside of the window or is not
    /// aligned to four bytes, something that is no code.
    #[inline(always)]
    pub(crate) const fn of(slot: usize, slots: Slots) -> Self {
        // Both less one: the window of all ends at 0.
        let is_below = slot.wrapping_sub(1) < slots.origin.wrapping_sub(1);
        match is_below && slot.is_multiple_of(size_of::<usize>()) {
            true => Self(slot),
            false => Self::NONE,
        }
    }

    /// Whether it is the code of a slot.
    #[inline(always)]
    pub(crate) const fn is_code(self) -> bool {
        self.0 != 0
    }

    /// Whether these are a near frame's without a slot.
    #[inline(always)]
    pub(crate) const fn is_none_of([slot, index]: [usize; TELLING]) -> bool {
        is_near(index) && slot == 0
    }

    /// Whether it may be the code of a slot: if not, it is that of none.
    #[inline(always)]
    pub(crate) const fn may_be_code(self) -> bool {
        self.is_code()
    }

    /// Whether these are a near frame's on the slot of this, which
    /// [may be a code](Self::may_be_code).
    #[inline(always)]
    pub(crate) const fn is_of(self, [slot, index]: [usize; TELLING]) -> bool {
        is_near(index) && slot == self.0
    }

    /// Whether these are a near frame's on a slot above that of this, which
    /// [may be a code](Self::may_be_code).
    #[inline(always)]
    pub(crate) const fn is_below(self, [slot, index]: [usize; TELLING]) -> bool {
        is_near(index) && slot > self.0
    }
}

/// What a frame remembers of its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) func: usize,
    pub(crate) ret: usize,
    /// 0 for a frame without a return slot.
    pub(crate) slot: usize,
    pub(crate) epoch: usize,
}

#[cfg(target_pointer_width = "64")]
const FUNC: Field = Field::first(32);
#[cfg(target_pointer_width = "64")]
const RET: Field = Field::rest(FUNC, 0);

impl Record {
    /// Of a frame that can not be read: of no function.
    pub(crate) const NONE: Self = Self {
        func: 0,
        ret: 0,
        slot: 0,
        epoch: 0,
    };

    /// A near frame's words, if the record fits one, for callbacks that want
    /// the return.
    pub(crate) fn near(
        &self,
        set: usize,
        code: Window,
        slots: Slots,
    ) -> Option<[usize; NEAR_WORDS]> {
        let slot = match self.slot {
            0 => SlotCode::NONE,
            slot => Some(SlotCode::of(slot, slots)).filter(|code| code.is_code())?,
        };
        if EPOCH.max() < self.epoch {
            return None;
        }
        let mut words = [self.near_index(slot, set); NEAR_WORDS];
        let head = self.near_head(code)?;
        words[..NEAR_WORDS - 1].copy_from_slice(&head);
        Some(words)
    }
}

#[cfg(target_pointer_width = "64")]
impl Record {
    /// Where a near frame returns to, by its words but its index.
    #[inline(always)]
    pub(crate) const fn near_ret(head: [usize; NEAR_WORDS - 1], code: Window) -> usize {
        code.base.wrapping_add(RET.get(head[0]))
    }

    /// The function of a near frame, by its words but its index.
    #[inline(always)]
    pub(crate) const fn near_func(head: [usize; NEAR_WORDS - 1], code: Window) -> usize {
        code.base.wrapping_add(FUNC.get(head[0]))
    }

    /// A near frame's words but its index, if what they hold fits. A scope whose
    /// caller is not known, 0, has the window's first address for it; one whose
    /// caller that is does not fit.
    #[inline(always)]
    pub(crate) const fn near_head(&self, code: Window) -> Option<[usize; NEAR_WORDS - 1]> {
        let (func, mut ret) = (code.offset(self.func), code.offset(self.ret));
        if self.slot == 0 {
            ret = match self.ret {
                0 => 0,
                _ if ret == 0 => return None,
                _ => ret,
            };
        }
        if FUNC.max() < func | ret {
            return None;
        }
        Some([func | ret << RET.shift])
    }

    /// A near frame's index, for callbacks that want the return. The epoch, and
    /// the slot, whose code is given, fit one.
    #[inline(always)]
    pub(crate) const fn near_index(&self, slot: SlotCode, set: usize) -> usize {
        slot.0 << SLOT.shift | self.epoch << EPOCH.shift | set
    }

    /// A wide frame's words, for callbacks that want the return.
    #[inline(always)]
    pub(crate) const fn wide(&self, set: usize) -> [usize; WIDE_WORDS] {
        let index = KIND.put(KIND_WIDE) | WIDE_EPOCH.put(self.epoch) | SET.put(set);
        [self.func, self.ret, self.slot, index]
    }

    /// Reads a near frame back.
    #[inline(always)]
    pub(crate) const fn from_near(words: [usize; NEAR_WORDS], code: Window, stack: Slots) -> Self {
        let [record, index] = words;
        // Neither a slot nor a caller: by one comparison, which walks make often.
        let ret = match record & RET.mask() | index & SLOT.mask() {
            0 => 0,
            _ => code.base.wrapping_add(RET.get(record)),
        };
        Self {
            func: code.base.wrapping_add(FUNC.get(record)),
            ret,
            slot: Index(index).slot(stack),
            epoch: Index(index).near_epoch(),
        }
    }

    /// Reads a wide frame back.
    #[inline(always)]
    pub(crate) const fn from_wide(words: [usize; WIDE_WORDS]) -> Self {
        let [func, ret, slot, index] = words;
        Self {
            func,
            ret,
            slot,
            epoch: WIDE_EPOCH.get(index),
        }
    }
}

#[cfg(target_pointer_width = "32")]
impl Record {
    /// Where a near frame returns to, by its words but its index.
    #[inline(always)]
    pub(crate) const fn near_ret(head: [usize; NEAR_WORDS - 1], _: Window) -> usize {
        head[1]
    }

    /// The function of a near frame, by its words but its index.
    #[inline(always)]
    pub(crate) const fn near_func(head: [usize; NEAR_WORDS - 1], _: Window) -> usize {
        head[0]
    }

    /// A near frame's words but its index, if what they hold fits.
    #[inline(always)]
    pub(crate) const fn near_head(&self, _: Window) -> Option<[usize; NEAR_WORDS - 1]> {
        Some([self.func, self.ret, self.slot])
    }

    /// A near frame's index, for callbacks that want the return. The epoch fits
    /// one.
    #[inline(always)]
    pub(crate) const fn near_index(&self, _: SlotCode, set: usize) -> usize {
        KIND.put(KIND_NEAR) | EPOCH.put(self.epoch) | SET.put(set)
    }

    /// A wide frame's words, for callbacks that want the return: the epoch
    /// whole, before the index.
    #[inline(always)]
    pub(crate) const fn wide(&self, set: usize) -> [usize; WIDE_WORDS] {
        let index = KIND.put(KIND_WIDE) | SET.put(set);
        [self.func, self.ret, self.slot, self.epoch, index]
    }

    /// Reads a near frame back.
    #[inline(always)]
    pub(crate) const fn from_near(words: [usize; NEAR_WORDS], _: Window, _: Slots) -> Self {
        let [func, ret, slot, index] = words;
        Self {
            func,
            ret,
            slot,
            epoch: Index(index).near_epoch(),
        }
    }

    /// Reads a wide frame back.
    #[inline(always)]
    pub(crate) const fn from_wide(words: [usize; WIDE_WORDS]) -> Self {
        let [func, ret, slot, epoch, _] = words;
        Self {
            func,
            ret,
            slot,
            epoch,
        }
    }
}

/// The state word of a shadow stack: how far it is filled, how much is claimed
/// above that, and which contexts are inside the tracer. One word, so that one
/// plain store moves all three and an interrupt sees them together.
///
/// ```text
/// top:30 │ guards:4 │ claimed:30      (14 │ 4 │ 14 on a 32-bit target)
/// ```
///
/// At rest, with nothing claimed and nobody inside, it is the top alone; in all
/// other states, a number greater than any top.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(usize);

impl State {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline(always)]
    pub(crate) const fn from_word(word: usize) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub(crate) const fn word(self) -> usize {
        self.0
    }

    /// Filled up to `top`, nothing claimed, nobody inside.
    #[inline(always)]
    pub(crate) const fn resting(top: usize) -> Self {
        Self(top)
    }

    /// The top of a stack at rest; in other states, a number greater than any
    /// top.
    #[inline(always)]
    pub(crate) const fn resting_top(self) -> usize {
        self.0
    }

    /// A stack at rest, with `words` claimed above its top by `context`, which
    /// is then inside the tracer.
    #[inline(always)]
    pub(crate) const fn claiming(self, words: usize, context: usize) -> Self {
        // Sums, for which processors have an instruction; no bit meets another.
        Self(self.0 + (words << CLAIMED.shift) + (1 << (GUARDS.shift + context as u32)))
    }

    /// Words of whole frames.
    #[inline(always)]
    pub(crate) const fn top(self) -> usize {
        TOP.get(self.0)
    }

    /// Where the next owner may write: the top, or above what an interrupted
    /// owner has claimed.
    #[inline(always)]
    pub(crate) const fn reserved(self) -> usize {
        TOP.get(self.0) + CLAIMED.get(self.0)
    }

    /// Whether an interrupted owner has claimed words above the top.
    #[inline(always)]
    pub(crate) const fn has_claim(self) -> bool {
        self.0 & CLAIMED.mask() != 0
    }

    /// Whether `context` (0 to 3) is inside the tracer.
    #[inline(always)]
    pub(crate) const fn is_guarded(self, context: usize) -> bool {
        self.0 & GUARDS.put(1 << context) != 0
    }

    /// Whether any context is inside the tracer.
    pub(crate) const fn is_any_guarded(self) -> bool {
        self.0 & GUARDS.mask() != 0
    }

    #[inline(always)]
    pub(crate) const fn guarded(self, context: usize) -> Self {
        Self(self.0 | GUARDS.put(1 << context))
    }

    /// `context` is no longer inside the tracer, and what it had claimed is
    /// void.
    pub(crate) const fn abandoned(self, context: usize) -> Self {
        Self(self.0 & !CLAIMED.mask() & !GUARDS.put(1 << context))
    }

    /// Every context inside the tracer.
    pub(crate) const fn all_guarded(self) -> Self {
        Self(self.0 | GUARDS.mask())
    }

    /// The guards of `other`, with this one's positions.
    #[inline(always)]
    pub(crate) const fn with_guards_of(self, other: Self) -> Self {
        Self((self.0 & !GUARDS.mask()) | (other.0 & GUARDS.mask()))
    }

    /// Filled up to `top`, with nothing claimed; the guards stay.
    #[inline(always)]
    pub(crate) const fn at(self, top: usize) -> Self {
        Self((self.0 & GUARDS.mask()) | TOP.put(top))
    }

    /// Claimed up to `reserved`, which is not below the top.
    #[inline(always)]
    pub(crate) const fn claimed(self, reserved: usize) -> Self {
        let claimed = CLAIMED.put(reserved.wrapping_sub(self.top()));
        Self((self.0 & !CLAIMED.mask()) | claimed)
    }
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("State")
            .field("top", &self.top())
            .field("reserved", &self.reserved())
            .field("guards", &format_args!("{:#06b}", GUARDS.get(self.0)))
            .finish()
    }
}

/// How far an entry has come: where the next callback's data go, and which
/// callbacks take no part. While all do, it is the position alone.
///
/// ```text
/// position:32 │ refused:16            (16 │ 16 on a 32-bit target)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress(usize);

const POSITION: Field = Field::first(usize::BITS / 2);
const REFUSED: Field = Field::after(POSITION, 16);
const_assert!(MAX_WORDS <= POSITION.max());

impl Progress {
    #[inline(always)]
    pub(crate) const fn at(position: usize) -> Self {
        Self(position)
    }

    #[inline(always)]
    pub(crate) const fn position(self) -> usize {
        POSITION.get(self.0)
    }

    #[inline(always)]
    pub(crate) const fn refused(self) -> usize {
        REFUSED.get(self.0)
    }

    /// The position, if no callback has refused.
    #[inline(always)]
    pub(crate) const fn of_all(self) -> Option<usize> {
        if self.0 > MAX_WORDS {
            return None;
        }
        Some(self.0)
    }

    /// By so many words, of which there are as many in the stack.
    #[inline(always)]
    pub(crate) const fn advanced(self, words: usize) -> Self {
        Self(self.0 + words)
    }

    /// The callback in `slot` takes no part.
    #[inline(always)]
    pub(crate) const fn refusing(self, slot: usize) -> Self {
        Self(self.0 | 1 << (REFUSED.shift + slot as u32))
    }

    /// None of these callbacks takes part.
    pub(crate) const fn refusing_all(self, set: usize) -> Self {
        Self(self.0 | REFUSED.put(set))
    }

    /// As if none of these callbacks had refused.
    pub(crate) const fn undecided(self, set: usize) -> Self {
        Self(self.0 & !REFUSED.put(set))
    }
}

/// The words that a call's frame and data need on a stack at rest: more than
/// there can be, if the frame can not be a near one, because of its epoch.
pub(crate) const fn near_need(data: usize, epoch: usize) -> usize {
    if epoch > EPOCH.max() {
        return MAX_WORDS + 1;
    }
    NEAR_WORDS + data
}

#[cfg(test)]
mod tests;
