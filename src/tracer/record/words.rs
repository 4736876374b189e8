//! What each bit of a record's four words means.
//!
//! Nothing else of the tracers shifts or masks. This file knows neither who
//! holds a record nor buffers.
//!
//! ```text
//! word 0   function's distance from the code's middle     │ long exit: ticks, low half
//! word 1   time, low half
//! word 2   task 16 │ depth 8 │ time 6 more bits │ context or cause 2
//! word 3   kind 3 │ lap 5 │ entry:      depth, high byte 8 │ frozen 1
//!                         │ far entry:  depth, high byte 8 │ address, bits 32..48
//!                         │ leaf, exit: ticks 24
//!                         │ long exit:  depth, high byte 8 │ ticks, bits 32..48
//!                         │ note:       key 24
//! ```
//!
//! A *note* is a value that belongs to a record of the same key, or to the
//! buffer: words 0 and 1 are the value, and the depth's field says what it is.

use crate::arch::middle;
use crate::bits;
use crate::{Cause, Context};

type Field = bits::Field<u32>;

const TASK: Field = Field::first(16);
const DEPTH: Field = Field::after(TASK, 8);
const TIME_HIGH: Field = Field::after(DEPTH, 6);
const TAIL: Field = Field::after(TIME_HIGH, 2);

const KIND: Field = Field::first(3);
const LAP: Field = Field::after(KIND, 5);
/// Ticks, or a key.
const REST: Field = Field::after(LAP, 24);
const DEPTH_HIGH: Field = Field::after(LAP, 8);
const FROZEN: Field = Field::after(DEPTH_HIGH, 1);
const HIGH: Field = Field::after(DEPTH_HIGH, 16);

/// A record's time has so many bits.
pub(super) const TIME_BITS: u32 = 32 + TIME_HIGH.width;

const BUSY: u32 = 1;
const ENTRY: u32 = 2;
const FAR_ENTRY: u32 = 3;
const LEAF: u32 = 4;
const EXIT: u32 = 5;
const LONG_EXIT: u32 = 6;
const NOTE: u32 = 7;

/// The deepest depth that a record tells; deeper calls are shown there.
pub(crate) const MAX_DEPTH: usize = u16::MAX as usize;

/// The longest duration that a record tells; longer ones are told as this.
pub(crate) const MAX_TICKS: u64 = join(HIGH.max(), u32::MAX);

#[inline(always)]
pub(super) const fn low(value: u64) -> u32 {
    value as u32
}

#[inline(always)]
pub(super) const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

#[inline(always)]
pub(super) const fn join(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// What a record holds in its state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(pub(super) u32);

/// Who holds a record, for one who comes to it in a lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// Nobody, or a record of an earlier lap.
    Free,
    /// A writer of an earlier lap, which has not ended.
    Stalled,
    /// A writer of this lap, which has not ended.
    Busy,
    /// A record of this lap.
    Written,
    /// A later lap.
    Ahead,
}

impl State {
    /// A writer of `lap` has claimed the record.
    #[inline(always)]
    pub(super) const fn busy(lap: usize) -> Self {
        Self(KIND.put(BUSY) | LAP.put(lap as u32))
    }

    /// Whether it holds an entry of `lap`.
    pub(super) fn is_entry(self, lap: usize) -> bool {
        KIND.get(self.0) == ENTRY && self.holder(lap) == Holder::Written
    }

    /// Of an entry: a reader has passed it.
    pub(super) const fn is_frozen(self) -> bool {
        FROZEN.get(self.0) != 0
    }

    /// The entry, and a reader has passed it.
    pub(super) const fn frozen(self) -> Self {
        Self(self.0 | FROZEN.put(1))
    }

    /// The low bits of the lap.
    pub(super) const fn lap(self) -> usize {
        LAP.get(self.0) as usize
    }

    /// How many laps it is ahead, or behind, as its bits tell it: half of the
    /// numbers each.
    #[inline(always)]
    const fn ahead(self, lap: usize) -> u32 {
        LAP.get(self.0.wrapping_sub(LAP.put(lap as u32)))
    }

    /// Whether one who comes to it in `lap` may claim it: as
    /// [`holder`](Self::holder), asked alone.
    #[inline(always)]
    pub(crate) const fn is_free(self, lap: usize) -> bool {
        match KIND.get(self.0) {
            0 => true,
            BUSY => false,
            _ => self.ahead(lap) >= 16,
        }
    }

    #[inline(always)]
    pub(crate) const fn holder(self, lap: usize) -> Holder {
        let kind = KIND.get(self.0);
        if kind == 0 {
            return Holder::Free;
        }
        match (self.ahead(lap), kind) {
            (0, BUSY) => Holder::Busy,
            (0, _) => Holder::Written,
            (1..16, _) => Holder::Ahead,
            (_, BUSY) => Holder::Stalled,
            _ => Holder::Free,
        }
    }
}

/// What a note's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// An argument of the entry with the same key.
    Argument(usize),
    /// The return value of the exit with the same key.
    ReturnValue,
    /// The whole address of the function of the entry with the same key.
    Function,
    /// A task whose number has more bits than a record: it goes by the low
    /// ones from here on.
    Task,
    /// A change of [`Era`](super::Era).
    Era,
    /// So many records were lost here.
    Lost,
}

/// How many arguments of a call a buffer can hold.
pub(crate) const MAX_ARGUMENTS: usize = 6;

impl Note {
    const fn code(self) -> u32 {
        match self {
            Self::ReturnValue => 0x10,
            Self::Function => 0x11,
            Self::Task => 0x12,
            Self::Era => 0x13,
            Self::Lost => 0x14,
            Self::Argument(n) => n as u32,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0x10 => Self::ReturnValue,
            0x11 => Self::Function,
            0x12 => Self::Task,
            0x13 => Self::Era,
            0x14 => Self::Lost,
            n if n < MAX_ARGUMENTS as u32 => Self::Argument(n as usize),
            _ => return None,
        })
    }
}

/// The key by which notes find their record.
pub(crate) const fn key(time: u64) -> u32 {
    REST.get(REST.put(low(time)))
}

/// When, where and who.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    /// In ticks; read back as its low bits, see [`nearest`](super::nearest).
    pub(crate) time: u64,
    /// The low bits of the task's number.
    pub(crate) task: u16,
    pub(crate) depth: u16,
}

impl Stamp {
    #[inline(always)]
    const fn word(&self, tail: u32) -> u32 {
        TASK.put(self.task as u32)
            | DEPTH.put(self.depth as u32)
            | TIME_HIGH.put(high(self.time))
            | TAIL.put(tail)
    }

    #[inline(always)]
    const fn depth_high(&self) -> u32 {
        DEPTH_HIGH.put((self.depth as u32) >> DEPTH.width)
    }
}

/// A record's words, to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    words: [u32; 3],
    /// The state word without its lap.
    state: u32,
}

impl Content {
    #[inline(always)]
    pub(super) const fn words(&self) -> &[u32; 3] {
        &self.words
    }

    /// The state word that publishes it in `lap`.
    #[inline(always)]
    pub(super) const fn state(&self, lap: usize) -> State {
        State(self.state | LAP.put(lap as u32))
    }

    /// This entry as that of a call that took `ticks` and called nothing that
    /// was recorded: one record for both ends. `None` if it does not fit.
    #[inline(always)]
    pub(crate) fn leaf(&self, ticks: u64) -> Option<Self> {
        let fits = self.state == KIND.put(ENTRY) && ticks <= REST.max() as u64;
        fits.then_some(Self {
            state: KIND.put(LEAF) | REST.put(low(ticks)),
            ..*self
        })
    }

    /// A call begins, of a function not far from the middle of the code, as
    /// nearly all are.
    #[inline(always)]
    pub(crate) fn near_entry(stamp: &Stamp, func: usize, context: Context) -> Option<Self> {
        let word = near_distance(func)?;
        Some(Self::entry(stamp, word, KIND.put(ENTRY), context))
    }

    /// A call of another function begins. False beside it: the function's
    /// address has more bits than the record holds; a [`Note::Function`] tells
    /// it.
    pub(crate) fn far_entry(stamp: &Stamp, func: usize, context: Context) -> (Self, bool) {
        let address = func as u64;
        let state = KIND.put(FAR_ENTRY) | HIGH.put(high(address));
        let whole = far_address(low(address), state) == func;
        (Self::entry(stamp, low(address), state, context), whole)
    }

    #[inline(always)]
    const fn entry(stamp: &Stamp, word: u32, state: u32, context: Context) -> Self {
        Self {
            words: [word, low(stamp.time), stamp.word(context as u32)],
            state: state | stamp.depth_high(),
        }
    }

    /// A call ends that has a record of its own for its begin.
    #[inline(always)]
    pub(crate) fn exit(stamp: &Stamp, func: usize, ticks: u64, cause: Cause) -> Self {
        let words = |word| [word, low(stamp.time), stamp.word(cause as u32)];
        match near_distance(func) {
            Some(distance) if ticks <= REST.max() as u64 && stamp.depth as u32 <= DEPTH.max() => {
                Self {
                    words: words(distance),
                    state: KIND.put(EXIT) | REST.put(low(ticks)),
                }
            }
            _ => {
                let ticks = ticks.min(MAX_TICKS);
                Self {
                    words: words(low(ticks)),
                    state: KIND.put(LONG_EXIT) | HIGH.put(high(ticks)) | stamp.depth_high(),
                }
            }
        }
    }

    pub(crate) fn note(note: Note, value: u64, task: u16, key: u32) -> Self {
        Self {
            words: [
                low(value),
                high(value),
                TASK.put(task.into()) | DEPTH.put(note.code()),
            ],
            state: KIND.put(NOTE) | REST.put(key),
        }
    }
}

/// How far a function is from the middle of the code, if that fits a word.
#[inline(always)]
fn near_distance(func: usize) -> Option<u32> {
    let distance = func.wrapping_sub(middle()) as isize;
    i32::try_from(distance).ok().map(|distance| distance as u32)
}

#[inline(always)]
fn near_address(distance: u32) -> usize {
    let distance = distance as i32 as isize;
    middle().wrapping_add_signed(distance)
}

/// The address of a far entry: 48 bits, and the sign.
const fn far_address(low: u32, state: u32) -> usize {
    let unused = 32 - HIGH.width;
    (join(HIGH.get(state) << unused, 0) as i64 >> unused) as usize & !(u32::MAX as usize)
        | low as usize
}

/// A record that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Read {
    Entry {
        stamp: Stamp,
        func: usize,
        context: Context,
    },
    Leaf {
        stamp: Stamp,
        func: usize,
        context: Context,
        ticks: u64,
    },
    Exit {
        stamp: Stamp,
        func: Option<usize>,
        ticks: u64,
        cause: Cause,
    },
    Note {
        note: Note,
        value: u64,
        task: u16,
        key: u32,
    },
}

impl Read {
    /// `None` for words that no writer writes.
    pub(super) fn from_words([word, time, rest]: [u32; 3], State(state): State) -> Option<Self> {
        let stamp = |deep: bool| Stamp {
            time: join(TIME_HIGH.get(rest), time),
            task: TASK.get(rest) as u16,
            depth: match deep {
                true => (DEPTH_HIGH.get(state) << DEPTH.width | DEPTH.get(rest)) as u16,
                false => DEPTH.get(rest) as u16,
            },
        };
        let near = near_address(word);
        let context = Context::from_code(TAIL.get(rest) as usize);
        let cause = Cause::from_code(TAIL.get(rest) as usize);
        Some(match KIND.get(state) {
            ENTRY => Self::Entry {
                stamp: stamp(true),
                func: near,
                context,
            },
            FAR_ENTRY => Self::Entry {
                stamp: stamp(true),
                func: far_address(word, state),
                context,
            },
            LEAF => Self::Leaf {
                stamp: stamp(false),
                func: near,
                context,
                ticks: REST.get(state).into(),
            },
            EXIT => Self::Exit {
                stamp: stamp(false),
                func: Some(near),
                ticks: REST.get(state).into(),
                cause,
            },
            LONG_EXIT => Self::Exit {
                stamp: stamp(true),
                func: None,
                ticks: join(HIGH.get(state), word),
                cause,
            },
            NOTE => Self::Note {
                note: Note::from_code(DEPTH.get(rest))?,
                value: join(time, word),
                task: TASK.get(rest) as u16,
                key: REST.get(state),
            },
            _ => return None,
        })
    }
}
