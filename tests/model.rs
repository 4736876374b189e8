//! Random operations on the crate and on a plain model: the same events, in
//! the same order, with the same data, and the same counters.
//!
//! `FGRAPH_CASES=N` checks N operations and not 100,000; run it with
//! `--release`. What fails is made small and kept in `model.regressions`, and
//! each fault that was found is a test of its own here.

mod common;
#[path = "model/found.rs"]
mod found;
#[path = "model/random.rs"]
mod random;
#[path = "model/real.rs"]
mod real;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/world.rs"]
mod world;

use random::{check, difference, wanted};
use real::Real;
use reference::Reference;
use world::{Memory, Step, play};

const STUB: usize = 0x5757_5750;

/// Plays the steps on both, and compares.
fn compare<const N: usize>(steps: &[Step], memory: &Memory) -> Result<usize, String> {
    let real = Real::<N>::new();
    let got = play(&real, steps, memory, STUB, false);
    let reference = Reference::new(N, 0, None);
    let expected = play(&reference, steps, memory, STUB, false);
    difference(&got, &expected)
}

macro_rules! slots {
    ($($name:ident $slots:literal $share:literal),* $(,)?) => {$(
        #[test]
        fn $name() {
            let share = wanted() * $share / 100;
            check(stringify!($name), share, compare::<$slots>);
        }
    )*};
}

// The shares, in percent; the rest is that of `model_hooked.rs`.
slots! {
    one_slot 1 8,
    two_slots 2 12,
    three_slots 3 12,
    four_slots 4 12,
    seven_slots 7 12,
    eight_slots 8 8,
    fifteen_slots 15 4,
    sixteen_slots 16 20,
}
