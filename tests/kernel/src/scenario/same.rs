//! Calls whose graph is the same on every processor: what they call depends on
//! nothing that interrupts them, and no compiler decides whether they are calls.
//!
//! With `trace=kernel::scenario::same::call::*,…` and one CPU, the graph's text
//! is the same but for the durations.

use call::{branch, caught, leave, part, twig, unwind};

use super::UNMAPPED;
use crate::fs::{FileSystem, ROOT};
use crate::options::Options;
use crate::sync::Mutex;
use crate::task::{Cause, Program};
use crate::{println, sched, trap};

static FILES: Mutex<FileSystem> = Mutex::new(FileSystem::new());

static PROGRAMS: [(Program, Cause); 3] = [
    (
        Program {
            name: "parter",
            run: |n| _ = part(n),
        },
        Cause::Finished,
    ),
    (
        Program {
            name: "leaver",
            run: |n| _ = leave(n),
        },
        Cause::Finished,
    ),
    (
        Program {
            name: "panicker",
            run: |n| _ = unwind(n),
        },
        Cause::Panicked,
    ),
];

/// The functions to follow. Each does something after its last call, so that
/// none is a tail call.
mod call {
    use core::hint::black_box;

    use super::{Cause, UNMAPPED, sched, trap};

    #[inline(never)]
    pub(super) fn twig(n: usize) -> usize {
        black_box(n) + 1
    }

    /// A tree of calls.
    #[inline(never)]
    pub(super) fn branch(n: usize) -> usize {
        if n < 2 {
            return black_box(twig(n)) + 1;
        }
        let left = branch(n - 1);
        let right = branch(n - 2);
        black_box(left + right)
    }

    /// Goes to other tasks and comes back, at each depth.
    #[inline(never)]
    pub(super) fn part(n: usize) -> usize {
        sched::yield_now();
        let below = if n == 0 { twig(n) } else { part(n - 1) };
        sched::sleep(100_000);
        black_box(below) + 1
    }

    /// The task ends in the innermost call.
    #[inline(never)]
    pub(super) fn leave(n: usize) -> usize {
        if n == 0 {
            sched::exit(Cause::Finished);
        }
        black_box(leave(n - 1)) + 1
    }

    /// The task panics in the innermost call.
    #[inline(never)]
    pub(super) fn unwind(n: usize) -> usize {
        assert!(n != 0, "as asked for");
        black_box(unwind(n - 1)) + 1
    }

    /// A page fault, whose handler has traced calls too.
    #[inline(never)]
    pub(super) fn caught(n: usize) -> usize {
        let mapped = trap::probe(UNMAPPED).is_some();
        black_box(twig(n)) + usize::from(mapped)
    }
}

/// Makes the calls.
pub(super) fn run(_: &Options) -> bool {
    let mut fine = branch(6) == 34 && caught(1) == 2;
    let mut files = FILES.lock();
    files.fill();
    let node = files.lookup(&[0, 3, 0, 0]);
    let sums = [node.map(|node| files.walk(node)), Some(files.walk(ROOT))];
    drop(files);
    println!("sums: {sums:x?}");
    for (program, cause) in &PROGRAMS {
        let task = sched::spawn(program, 3).expect("a place");
        fine &= sched::join(task) == *cause;
        fine &= twig(1) == 2;
    }
    fine
}
