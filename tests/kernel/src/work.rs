//! The workload: tasks that do something with structure, and know what must
//! come out. Every round of a task gives the same checksum, so runs of any
//! length, traced or not, can be compared.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::fs::{FileSystem, ROOT, mix};
use crate::options::Options;
use crate::pipe::Pipe;
use crate::sched::{self, Handle};
use crate::sync::Mutex;
use crate::task::{Cause, Program};
use crate::{println, time};

static FILES: Mutex<FileSystem> = Mutex::new(FileSystem::new());
static PIPE: Pipe = Pipe::new();
static COUNTER: Mutex<u64> = Mutex::new(0);

static ROUNDS: AtomicUsize = AtomicUsize::new(0);
static END_NS: AtomicUsize = AtomicUsize::new(usize::MAX);
static MISMATCHES: AtomicUsize = AtomicUsize::new(0);

static PROGRAMS: [Program; 8] = [
    Program {
        name: "tree",
        run: |_| rounds("tree", tree),
    },
    Program {
        name: "lookup",
        run: |_| rounds("lookup", lookup),
    },
    Program {
        name: "producer",
        run: producer,
    },
    Program {
        name: "consumer",
        run: consumer,
    },
    Program {
        name: "locker",
        run: |_| rounds("locker", locker),
    },
    Program {
        name: "locker2",
        run: |_| rounds("locker2", locker),
    },
    Program {
        name: "sleeper",
        run: |_| rounds("sleeper", sleeper),
    },
    Program {
        name: "float",
        run: |_| rounds("float", float),
    },
];

/// Runs all of it; true if every checksum was as it must.
pub(crate) fn run(options: &Options) -> bool {
    ROUNDS.store(options.rounds, Ordering::Relaxed);
    let end = options
        .seconds
        .map_or(u64::MAX, |s| time::now() + s as u64 * 1_000_000_000);
    END_NS.store(end as usize, Ordering::Relaxed);
    fill();
    PIPE.reopen();

    let mut tasks: [Option<Handle>; PROGRAMS.len()] = [None; PROGRAMS.len()];
    for (task, program) in tasks.iter_mut().zip(&PROGRAMS) {
        *task = Some(sched::spawn(program, 0).expect("places for the workload"));
    }
    let finished = tasks
        .into_iter()
        .flatten()
        .filter(|&task| sched::join(task) == Cause::Finished);
    finished.count() == PROGRAMS.len() && MISMATCHES.load(Ordering::Relaxed) == 0
}

/// One round of some of the tasks, for whoever wants to run it by himself; it
/// always gives the same. After [`fill`].
pub(crate) fn round() -> u64 {
    [lookup, locker, tree]
        .iter()
        .fold(0, |sum, f| mix(sum, f()))
}

/// Makes the files.
pub(crate) fn fill() {
    FILES.lock().fill();
}

/// Whether there is another round after so many.
fn more(done: usize) -> bool {
    match END_NS.load(Ordering::Relaxed) {
        usize::MAX => done < ROUNDS.load(Ordering::Relaxed),
        end => done == 0 || (time::now() as usize) < end,
    }
}

/// Counts rounds whose checksum is not the first one's.
struct Rounds {
    first: Option<u64>,
    done: usize,
    mismatches: usize,
}

impl Rounds {
    const fn new() -> Self {
        Self {
            first: None,
            done: 0,
            mismatches: 0,
        }
    }

    fn add(&mut self, sum: u64) {
        self.done += 1;
        if *self.first.get_or_insert(sum) != sum {
            self.mismatches += 1;
        }
    }

    fn report(&self, name: &str) {
        let Self {
            first,
            done,
            mismatches,
        } = *self;
        MISMATCHES.fetch_add(mismatches, Ordering::Relaxed);
        let sum = first.unwrap_or(0);
        println!("checksum {name} {sum:#018x} rounds {done} mismatches {mismatches}");
    }
}

fn rounds(name: &str, round: fn() -> u64) {
    let mut rounds = Rounds::new();
    while more(rounds.done) {
        rounds.add(round());
    }
    rounds.report(name);
}

/// Walks the whole file system.
fn tree() -> u64 {
    FILES.lock().walk(ROOT)
}

/// Goes along paths, and walks from there.
fn lookup() -> u64 {
    let mut sum = 0;
    for path in [&[0, 0, 3][..], &[3, 3], &[0, 3, 0, 0], &[3, 9], &[1]] {
        let files = FILES.lock();
        let found = files.lookup(path).map_or(0, |node| files.walk(node));
        sum = mix(sum, found);
    }
    sum
}

/// Bytes of a round through the pipe.
const MESSAGE: usize = 512;

fn producer(_: usize) {
    let mut rounds = Rounds::new();
    while more(rounds.done) {
        let mut state = 1_u32;
        let mut sum = 0;
        let mut part = [0; 24];
        let mut left = MESSAGE;
        while left != 0 {
            let len = part.len().min(left);
            for byte in &mut part[..len] {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
                sum = mix(sum, u64::from(*byte));
            }
            PIPE.write(&part[..len]);
            left -= len;
        }
        rounds.add(sum);
    }
    PIPE.close();
    rounds.report("producer");
}

fn consumer(_: usize) {
    let mut rounds = Rounds::new();
    let mut sum = 0;
    let mut got = 0;
    let mut part = [0; 40];
    loop {
        let len = PIPE.read(&mut part);
        if len == 0 {
            break;
        }
        for &byte in &part[..len] {
            sum = mix(sum, u64::from(byte));
            got += 1;
            if got == MESSAGE {
                rounds.add(sum);
                (sum, got) = (0, 0);
            }
        }
    }
    rounds.report("consumer");
}

/// Adds to a shared counter and takes it away again; sleeps or yields with
/// the lock held, so that the others wait.
fn locker() -> u64 {
    let mut sum = 0;
    for step in 1..=8 {
        let mut counter = COUNTER.lock();
        let before = *counter;
        *counter += step;
        sched::yield_now();
        sum = mix(sum, *counter - before);
        *counter -= step;
    }
    sum
}

/// Sleeps; nothing may be lost, and time must have passed.
fn sleeper() -> u64 {
    const NS: u64 = 2_000_000;
    let before = time::now();
    sched::sleep(NS);
    u64::from(time::now() - before >= NS)
}

/// Floating-point numbers in registers, across preemption.
fn float() -> u64 {
    let mut x = 0.1_f64;
    let mut sum = 0.0;
    for _ in 0..5_000 {
        x = logistic(x);
        sum += x;
    }
    mix(x.to_bits(), sum.to_bits())
}

#[inline(never)]
fn logistic(x: f64) -> f64 {
    3.9 * x * (1.0 - x)
}
