//! Random operations on the crate and on a plain model: the same events, in
//! the same order, with the same data, and the same counters.
//!
//! `FGRAPH_CASES=N` checks N operations and not 100,000; run it with
//! `--release`. What fails is made small and kept in `model.regressions`, and
//! each fault that was found is a test of its own here.

mod common;
#[path = "model/found.rs"]
mod found;
#[path = "model/real.rs"]
mod real;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/world.rs"]
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

use real::Real;
use reference::Reference;
use world::{Event, Memory, Step, play};

const STUB: usize = 0x5757_5750;

/// How many operations this run checks.
fn wanted() -> usize {
    let cases = std::env::var("FGRAPH_CASES").ok();
    cases.and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// Plays the steps on both, and compares.
fn compare<const N: usize>(steps: &[Step], memory: &Memory) -> Result<usize, String> {
    let real = Real::<N>::new();
    let got = play(&real, steps, memory, STUB, false);
    let reference = Reference::new(N, 0, None);
    let expected = play(&reference, steps, memory, STUB, false);
    difference(&got, &expected)
}

/// The number of events, if they are the same.
fn difference(got: &[Event], expected: &[Event]) -> Result<usize, String> {
    if got == expected {
        return Ok(got.len());
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b);
    let at = at.unwrap_or(got.len().min(expected.len()));
    let lines = |events: &[Event]| {
        let line = |event| format!("  {event:x?}\n");
        events.iter().map(line).collect::<String>()
    };
    let show = |events: &[Event]| lines(&events[at..events.len().min(at + 4)]);
    Err(format!(
        "after\n{}the crate:\n{}the model:\n{}",
        lines(&got[at.saturating_sub(60)..at]),
        show(got),
        show(expected)
    ))
}

/// Checks `operations` operations in random sequences.
fn check(
    name: &str,
    operations: usize,
    compare: impl Fn(&[Step], &Memory) -> Result<usize, String>,
) {
    let memory = Memory::new();
    let checked = std::cell::Cell::new(0);
    let events = std::cell::Cell::new(0);
    let steps = proptest::collection::vec(any::<u64>().prop_map(Step), 1..400);
    while checked.get() < operations {
        let config = Config {
            cases: 1 + (operations - checked.get()) as u32 / 200,
            failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
                "tests/model.regressions",
            ))),
            max_shrink_iters: 20_000,
            ..Config::default()
        };
        let result = TestRunner::new(config).run(&steps, |steps| {
            checked.set(checked.get() + steps.len());
            let seen = compare(&steps, &memory).map_err(TestCaseError::fail)?;
            events.set(events.get() + seen);
            Ok(())
        });
        if let Err(failure) = result {
            panic!("{name}: {failure}");
        }
    }
    println!(
        "{name}: {} operations checked, {} events compared",
        checked.get(),
        events.get()
    );
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

// The shares add up to a hundred; the rest is `hooked`.
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
