//! Fields of a word, and numbers that take several words: how bits are shifted
//! and masked, where they are packed.
//!
//! This file knows no word. What a word's fields are, who packs it says.

use core::marker::PhantomData;

/// A field of a `Word`: its width is declared, its place derived from the
/// field before it.
#[derive(Clone, Copy)]
pub(crate) struct Field<Word> {
    pub(crate) shift: u32,
    pub(crate) width: u32,
    word: PhantomData<Word>,
}

macro_rules! fields_of {
    ($word:ty) => {
        impl Field<$word> {
            pub(crate) const fn first(width: u32) -> Self {
                Self::at(0, width)
            }

            pub(crate) const fn after(before: Self, width: u32) -> Self {
                Self::at(before.shift + before.width, width)
            }

            const fn at(shift: u32, width: u32) -> Self {
                assert!(shift + width <= <$word>::BITS, "fields fit their word");
                let word = PhantomData;
                Self { shift, width, word }
            }

            #[inline(always)]
            pub(crate) const fn max(self) -> $word {
                <$word>::MAX >> (<$word>::BITS - self.width)
            }

            #[inline(always)]
            pub(crate) const fn get(self, word: $word) -> $word {
                word >> self.shift & self.max()
            }

            /// The low bits of `value`, in this field's place: callers check
            /// against [`max`](Self::max) first where others may be set.
            #[inline(always)]
            pub(crate) const fn put(self, value: $word) -> $word {
                (value & self.max()) << self.shift
            }
        }
    };
}

fields_of!(u32);
fields_of!(usize);

impl Field<usize> {
    /// At the word's top.
    pub(crate) const fn last(width: u32) -> Self {
        Self::at(usize::BITS - width, width)
    }

    pub(crate) const fn below(above: Self, width: u32) -> Self {
        Self::at(above.shift - width, width)
    }

    /// What the word has above `before` and below `above` bits at its top.
    pub(crate) const fn rest(before: Self, above: u32) -> Self {
        Self::after(before, usize::BITS - above - before.end())
    }

    pub(crate) const fn end(self) -> u32 {
        self.shift + self.width
    }

    #[inline(always)]
    pub(crate) const fn mask(self) -> usize {
        self.max() << self.shift
    }
}

/// Words that a number of 64 bits takes.
pub(crate) const U64_WORDS: usize = (u64::BITS / usize::BITS) as usize;

/// The words of `number`, the lowest first.
#[inline(always)]
pub(crate) fn split(number: u64) -> [usize; U64_WORDS] {
    core::array::from_fn(|i| (number >> (i as u32 * usize::BITS)) as usize)
}

/// The number of which these are the words.
#[inline(always)]
pub(crate) fn join(words: [usize; U64_WORDS]) -> u64 {
    let part = |(i, &word): (usize, &usize)| (word as u64) << (i as u32 * usize::BITS);
    words.iter().enumerate().map(part).fold(0, |a, b| a | b)
}
