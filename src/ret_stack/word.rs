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
//!        index      kind:2 │ set:16 │ epoch:17 │ slot:29
//! wide   func       whole                         any address
//!        ret        whole
//!        slot       whole
//!        index      kind:2 │ set:16 │ epoch:46
//! data   n words, then
//!        data index kind:2 │ words:4 │ callback:4 │ distance:54
//! gap    gap index  kind:2 │ words:4 = 0 │ callback:4 = 0 │ distance:54
//! ```
//!
//! On a 32-bit target `func`, `ret` and `slot` are whole words in both shapes,
//! the near index is `kind:2 │ set:16 │ epoch:14`, and a wide frame puts the
//! epoch's upper part into a word before its index.
//!
//! The zero word is load-bearing: its kind is *none*, so zeroed memory never
//! reads as a frame.

use static_assertions::const_assert;

/// A field of a word: its width is declared, its place derived from the
/// field before it.
#[derive(Clone, Copy)]
struct Field {
    shift: u32,
    width: u32,
}

impl Field {
    const fn first(width: u32) -> Self {
        Self { shift: 0, width }
    }

    const fn after(before: Self, width: u32) -> Self {
        Self {
            shift: before.shift + before.width,
            width,
        }
    }

    /// The rest of the word above `before`.
    const fn rest(before: Self) -> Self {
        Self::after(before, usize::BITS - before.end())
    }

    const fn end(self) -> u32 {
        self.shift + self.width
    }

    #[inline(always)]
    const fn max(self) -> usize {
        usize::MAX >> (usize::BITS - self.width)
    }

    #[inline(always)]
    const fn mask(self) -> usize {
        self.max() << self.shift
    }

    #[inline(always)]
    const fn get(self, word: usize) -> usize {
        (word >> self.shift) & self.max()
    }

    /// `value` in this field's place; bits that do not fit are dropped, so
    /// callers check against [`Field::max`] first.
    #[inline(always)]
    const fn put(self, value: usize) -> usize {
        (value & self.max()) << self.shift
    }
}

const KIND: Field = Field::first(2);

const SET: Field = Field::after(KIND, 16);
#[cfg(target_pointer_width = "64")]
const EPOCH: Field = Field::after(SET, 17);
#[cfg(target_pointer_width = "64")]
const SLOT: Field = Field::after(EPOCH, 29);
#[cfg(target_pointer_width = "32")]
const EPOCH: Field = Field::rest(SET);

const WORDS: Field = Field::after(KIND, 4);
const CALLBACK: Field = Field::after(WORDS, 4);
const DISTANCE: Field = Field::rest(CALLBACK);

#[cfg(target_pointer_width = "64")]
const POSITION_BITS: u32 = 30;
#[cfg(target_pointer_width = "32")]
const POSITION_BITS: u32 = 14;
const TOP: Field = Field::first(POSITION_BITS);
const CLAIMED: Field = Field::after(TOP, POSITION_BITS);
const GUARDS: Field = Field::after(CLAIMED, 4);

#[cfg(target_pointer_width = "64")]
const_assert!(SLOT.end() == usize::BITS);
#[cfg(target_pointer_width = "32")]
const_assert!(EPOCH.width == 14);
const_assert!(GUARDS.end() == usize::BITS);
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

const KIND_NEAR: usize = 1;
const KIND_WIDE: usize = 2;
const KIND_DATA: usize = 3;

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
    const fn slot(self, stack: Window) -> usize {
        match SLOT.get(self.0) {
            0 => 0,
            slot => stack.base.wrapping_add(slot << 3),
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
    /// `words` from 1 to [`MAX_DATA_WORDS`].
    #[inline(always)]
    pub(crate) const fn new(callback: usize, words: usize, distance: usize) -> Self {
        Self(KIND_DATA | WORDS.put(words) | CALLBACK.put(callback) | DISTANCE.put(distance))
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

/// Whether a near frame is on this slot.
#[inline(always)]
#[cfg(target_pointer_width = "64")]
pub(crate) const fn is_on_slot(words: [usize; NEAR_WORDS], slot: usize, stack: Window) -> bool {
    // As in `Record::near`; an offset of zero is no frame's.
    let slot = stack.offset(slot).rotate_right(3);
    SLOT.get(words[1]) == slot && slot != 0
}

/// Whether a near frame has a slot, and that is above `slot`, where both are in
/// the window.
#[inline(always)]
#[cfg(target_pointer_width = "64")]
pub(crate) const fn is_above(words: [usize; NEAR_WORDS], slot: usize, stack: Window) -> bool {
    SLOT.get(words[1]) > stack.offset(slot).rotate_right(3)
}

/// Whether a near frame is on this slot.
#[inline(always)]
#[cfg(target_pointer_width = "32")]
pub(crate) const fn is_on_slot(words: [usize; NEAR_WORDS], slot: usize, _: Window) -> bool {
    words[2] == slot && slot != 0
}

/// Whether a near frame has a slot, and that is above `slot`.
#[inline(always)]
#[cfg(target_pointer_width = "32")]
pub(crate) const fn is_above(words: [usize; NEAR_WORDS], slot: usize, _: Window) -> bool {
    words[2] > slot
}

/// An index word with an empty set, given `set`.
#[inline(always)]
pub(crate) const fn with_set(index: usize, set: usize) -> usize {
    index | SET.put(set)
}

/// An index word with its set empty.
#[inline(always)]
pub(crate) const fn without_set(index: usize) -> usize {
    index & !SET.mask()
}

/// Whether `word` is the data index of `callback` with `words` data words,
/// whatever its distance.
#[inline(always)]
pub(crate) const fn is_data_of(word: usize, callback: usize, words: usize) -> bool {
    let whose = KIND.mask() | WORDS.mask() | CALLBACK.mask();
    word & whose == DataIndex::new(callback, words, 0).word()
}

/// A gap word: `distance` claimed words lie below it.
#[inline(always)]
pub(crate) const fn gap(distance: usize) -> usize {
    KIND_DATA | DISTANCE.put(distance)
}

/// A range of 4 GiB in which an address is told by 32 bits. On a 32-bit target
/// it is the whole address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    base: usize,
}

impl Window {
    /// The window that reaches 2 GiB to both sides of `middle`, wrapping at
    /// the ends of the address space.
    #[inline(always)]
    pub(crate) const fn around(middle: usize) -> Self {
        Self::from_base(middle.wrapping_sub(1 << 31))
    }

    /// The window that begins at `base`.
    #[inline(always)]
    pub(crate) const fn from_base(base: usize) -> Self {
        Self { base }
    }

    /// The address around which it lies.
    pub(crate) const fn middle(self) -> usize {
        self.base.wrapping_add(1 << 31)
    }

    pub(crate) const fn base(self) -> usize {
        self.base
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
const RET: Field = Field::rest(FUNC);

impl Record {
    /// Of a frame that can not be read: of no function.
    pub(crate) const NONE: Self = Self {
        func: 0,
        ret: 0,
        slot: 0,
        epoch: 0,
    };
}

#[cfg(target_pointer_width = "64")]
impl Record {
    /// A near frame's words with an empty set, if the record fits one.
    #[inline(always)]
    pub(crate) const fn near(&self, code: Window, stack: Window) -> Option<[usize; NEAR_WORDS]> {
        let (func, ret) = (code.offset(self.func), code.offset(self.ret));
        // In units of eight bytes: an offset that is not a multiple of eight
        // turns into a large number.
        let slot = stack.offset(self.slot).rotate_right(3);
        // Zero stands for "no slot", so the window's first address is wide.
        let slot = match self.slot {
            0 => 0,
            _ if slot.wrapping_sub(1) < SLOT.max() => slot,
            _ => return None,
        };
        if FUNC.max() < func | ret || EPOCH.max() < self.epoch {
            return None;
        }
        let index = KIND_NEAR | EPOCH.put(self.epoch) | SLOT.put(slot);
        Some([FUNC.put(func) | RET.put(ret), index])
    }

    /// A wide frame's words with an empty set.
    #[inline(always)]
    pub(crate) const fn wide(&self) -> [usize; WIDE_WORDS] {
        let index = KIND_WIDE | (self.epoch << EPOCH.shift);
        [self.func, self.ret, self.slot, index]
    }

    /// Reads a near frame back.
    #[inline(always)]
    pub(crate) const fn from_near(words: [usize; NEAR_WORDS], code: Window, stack: Window) -> Self {
        let [record, index] = words;
        Self {
            func: code.base.wrapping_add(FUNC.get(record)),
            ret: code.base.wrapping_add(RET.get(record)),
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
            epoch: index >> EPOCH.shift,
        }
    }
}

#[cfg(target_pointer_width = "32")]
impl Record {
    /// A near frame's words with an empty set, if the record fits one.
    #[inline(always)]
    pub(crate) const fn near(&self, _: Window, _: Window) -> Option<[usize; NEAR_WORDS]> {
        if EPOCH.max() < self.epoch {
            return None;
        }
        let index = KIND_NEAR | EPOCH.put(self.epoch);
        Some([self.func, self.ret, self.slot, index])
    }

    /// A wide frame's words with an empty set: the epoch whole, before the
    /// index.
    #[inline(always)]
    pub(crate) const fn wide(&self) -> [usize; WIDE_WORDS] {
        [self.func, self.ret, self.slot, self.epoch, KIND_WIDE]
    }

    /// Reads a near frame back.
    #[inline(always)]
    pub(crate) const fn from_near(words: [usize; NEAR_WORDS], _: Window, _: Window) -> Self {
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
/// top:30 │ claimed:30 │ guards:4      (14 │ 14 │ 4 on a 32-bit target)
/// ```
///
/// At rest, with nothing claimed and nobody inside, it is the top alone.
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

    /// Whether nothing is claimed and nobody is inside.
    #[inline(always)]
    pub(crate) const fn is_at_rest(self) -> bool {
        self.0 <= TOP.max()
    }

    /// The top of a stack at rest.
    #[inline(always)]
    pub(crate) const fn resting_top(self) -> usize {
        self.0
    }

    /// A stack at rest, with `words` claimed above its top by `context`, which
    /// is then inside the tracer.
    #[inline(always)]
    pub(crate) const fn claiming(self, words: usize, context: usize) -> Self {
        Self(self.0 | words << CLAIMED.shift | 1 << (GUARDS.shift + context as u32))
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

#[cfg(test)]
mod tests;
