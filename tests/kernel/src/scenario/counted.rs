//! Calls that count themselves: what tracers tell of them is held against it.
//!
//! Tasks on all CPUs call, switch in the middle of calls, and end inside of
//! them. How often, and in what order in each task, is the same every time.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::options::Options;
use crate::task::{Cause, Program};
use crate::{println, sched, symbols};

/// The functions, by the place of their count.
static FUNCTIONS: [fn(usize) -> usize; 6] = [
    fork,
    twice,
    pause,
    last,
    <Odd as Step>::step,
    <Even as Step>::step,
];

/// Relaxed, all: each count is right by itself, and read when all have ended.
static CALLS: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

fn count(place: usize) {
    CALLS[place].fetch_add(1, Ordering::Relaxed);
}

#[inline(never)]
fn fork(n: usize) -> usize {
    count(0);
    match n {
        0 => Even::step(n),
        4 => fork(n - 1) + pause(n),
        _ => fork(n - 1) + twice(n - 1),
    }
}

#[inline(never)]
fn twice(n: usize) -> usize {
    count(1);
    match n {
        0 => Odd::step(n) + Even::step(n),
        _ => fork(n - 1) + Odd::step(n),
    }
}

/// Switches to whatever else there is to do, and is moved perhaps.
#[inline(never)]
fn pause(n: usize) -> usize {
    count(2);
    sched::yield_now();
    Odd::step(n)
}

/// Where a call of [`last`] does not return.
const EXITS: usize = 0;
const PANICS: usize = 100;

#[inline(never)]
fn last(n: usize) -> usize {
    count(3);
    match n {
        EXITS => sched::exit(Cause::Finished),
        PANICS => panic!("as asked for"),
        // Not a loop: something is left to do.
        _ => core::hint::black_box(last(n - 1)) + 1,
    }
}

/// For names with more in them than words.
trait Step {
    fn step(n: usize) -> usize;
}

struct Odd;
struct Even;

impl Step for Odd {
    #[inline(never)]
    fn step(n: usize) -> usize {
        count(4);
        core::hint::black_box(n)
    }
}

impl Step for Even {
    #[inline(never)]
    fn step(n: usize) -> usize {
        count(5);
        core::hint::black_box(n + 1)
    }
}

static FORKER: Program = Program {
    name: "forker",
    run: |rounds| (0..rounds).for_each(|_| _ = fork(8)),
};

static ENDER: Program = Program {
    name: "ender",
    run: |depth| _ = last(depth),
};

/// Runs all; `rounds` is how often each task forks.
pub(super) fn run(options: &Options) -> bool {
    let forkers = [(); 4].map(|()| sched::spawn(&FORKER, options.rounds).expect("a place"));
    let exits = sched::spawn(&ENDER, EXITS + 5).expect("a place");
    let panics = sched::spawn(&ENDER, PANICS + 5).expect("a place");
    let mut fine = forkers.map(sched::join) == [Cause::Finished; 4];
    fine &= sched::join(exits) == Cause::Finished;
    fine &= sched::join(panics) == Cause::Panicked;
    for (func, calls) in FUNCTIONS.iter().zip(&CALLS) {
        let name = symbols::find(*func as usize).map_or("", |symbol| symbol.name);
        println!("called: {} {name}", calls.load(Ordering::Relaxed));
    }
    fine
}
