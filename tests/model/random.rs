//! Random steps, as many as are wanted, made small where they fail.
//!
//! This file knows steps and events, not what they are about.

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};

use crate::world::{Event, Memory, Step};

/// How many operations this run checks.
pub fn wanted() -> usize {
    let cases = std::env::var("FGRAPH_CASES").ok();
    cases.and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// The number of events, if they are the same.
pub fn difference(got: &[Event], expected: &[Event]) -> Result<usize, String> {
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
pub fn check(
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
