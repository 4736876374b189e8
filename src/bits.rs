//! A number in words of another width: where one of 64 bits takes two.

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
