//! What the benches share: rounds that alternate between subject and baseline,
//! medians, and one `name<TAB>value<TAB>unit` line a figure.
#![allow(dead_code, reason = "none uses all of it")]

use std::hint::black_box;
use std::time::Instant;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod floor;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod text;
pub mod tracer;

/// How long a bench may take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    rounds: usize,
    calls: u64,
}

impl Effort {
    /// `--quick` is for checking that a bench runs at all.
    pub fn from_args() -> Self {
        if std::env::args().any(|arg| arg == "--quick") {
            Self {
                rounds: 5,
                calls: 2_000,
            }
        } else {
            Self {
                rounds: 101,
                calls: 20_000,
            }
        }
    }
}

impl Effort {
    /// How often a figure is taken.
    pub fn rounds(self) -> usize {
        self.rounds
    }

    /// Calls a round.
    pub fn calls(self) -> u64 {
        self.calls
    }
}

/// Prints one figure.
pub fn line(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the subjects in turn, round after round, and returns the median
/// nanoseconds per call of each.
pub fn nanoseconds(effort: Effort, subjects: &mut [&mut dyn FnMut(u64)]) -> Vec<f64> {
    let mut times = vec![Vec::new(); subjects.len()];
    for round in 0..=effort.rounds {
        for (subject, times) in subjects.iter_mut().zip(&mut times) {
            let begun = Instant::now();
            subject(black_box(effort.calls));
            let time = begun.elapsed().as_nanos() as f64 / effort.calls as f64;
            // The first round warms up.
            if round > 0 {
                times.push(time);
            }
        }
    }
    times.into_iter().map(median).collect()
}
