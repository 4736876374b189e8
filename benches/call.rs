//! What does a traced call cost over an untraced one, through real hooks?
//!
//! *Floor* is the least that this way of catching a call can do, written by
//! hand: two stubs that save seven registers, and two handlers that push and
//! pop {function, return address}.

use std::hint::black_box;

mod support;

use fgraph::tracer::{Buffer, Full, Graph, Record};
use support::text::follow;
use support::tracer::{Bench, FGRAPH, attach, register, unregister};
use support::{Effort, floor, line, nanoseconds};

static RECORDS: [Record; 1 << 14] = [const { Record::new() }; 1 << 14];
static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
static GRAPH: Graph<Bench> = Graph::new(&BUFFERS);

mod work {
    //! What is called. Each with a twin that is never traced: the baseline.

    use std::hint::black_box;

    // One body for both, and two functions.
    macro_rules! leaf_and_recursion {
        ($leaf:ident, $recursion:ident, $fib:ident, $under:ident, $own:literal) => {
            #[inline(never)]
            pub fn $leaf(n: u64) -> u64 {
                black_box(n) + $own
            }
            #[inline(never)]
            pub fn $recursion(n: u64) -> u64 {
                if n == 0 {
                    $own
                } else {
                    black_box($recursion(black_box(n - 1))) + 1
                }
            }
            #[inline(never)]
            pub fn $fib(n: u64) -> u64 {
                if n < 2 {
                    $own
                } else {
                    $fib(n - 1) + $fib(n - 2)
                }
            }
            #[inline(never)]
            pub fn $under(depth: u64, n: u64) -> u64 {
                if depth == 0 {
                    $leaf(n)
                } else {
                    black_box($under(black_box(depth - 1), n)) + 1
                }
            }
        };
    }
    // The numbers differ so that no two functions are merged into one.
    leaf_and_recursion!(leaf, recursion, fib, under, 1);
    leaf_and_recursion!(plain_leaf, plain_recursion, plain_fib, plain_under, 2);

    macro_rules! sixty_four {
        ($table:ident, $make:ident, $own:literal) => {
            #[inline(never)]
            fn $make<const N: u64>(n: u64) -> u64 {
                black_box(n) + N + $own
            }
            pub static $table: [fn(u64) -> u64; 64] = sixty_four!(@list $make
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
                30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
                57 58 59 60 61 62 63);
        };
        (@list $make:ident $($n:literal)*) => { [$($make::<$n>),*] };
    }
    sixty_four!(MANY, many, 0);
    sixty_four!(PLAIN_MANY, plain_many, 64);
}

type Work = fn(u64) -> u64;

/// A case: what is traced, who calls it, and who calls its twins.
struct Case {
    name: &'static str,
    traced: Vec<usize>,
    subject: fn(u64),
    baseline: fn(u64),
}

fn leaves(calls: u64) {
    for n in 0..calls {
        black_box(work::leaf(n));
    }
}

fn plain_leaves(calls: u64) {
    for n in 0..calls {
        black_box(work::plain_leaf(n));
    }
}

fn times(calls: u64, each: u64, f: impl Fn() -> u64) {
    for _ in 0..calls.div_ceil(each) {
        black_box(f());
    }
}

/// A fixed order that the branch predictor has to learn.
fn many(calls: u64, table: &[Work; 64]) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for n in 0..calls {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        black_box(table[random as usize % 64](n));
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "leaf",
            traced: vec![work::leaf as Work as usize],
            subject: leaves,
            baseline: plain_leaves,
        },
        Case {
            name: "recursion30",
            traced: vec![work::recursion as Work as usize],
            subject: |calls| times(calls, 31, || work::recursion(30)),
            baseline: |calls| times(calls, 31, || work::plain_recursion(30)),
        },
        Case {
            name: "fib",
            traced: vec![work::fib as Work as usize],
            // fib(12) makes 465 calls.
            subject: |calls| times(calls, 465, || work::fib(12)),
            baseline: |calls| times(calls, 465, || work::plain_fib(12)),
        },
        Case {
            name: "random64",
            traced: work::MANY.iter().map(|&f| f as usize).collect(),
            subject: |calls| many(calls, &work::MANY),
            baseline: |calls| many(calls, &work::PLAIN_MANY),
        },
        Case {
            name: "under8",
            traced: vec![work::leaf as Work as usize],
            subject: |calls| times(calls, 1, || work::under(8, 1)),
            baseline: |calls| times(calls, 1, || work::plain_under(8, 1)),
        },
    ]
}

/// Nanoseconds that a call takes more than its twin, and the twin's.
fn over(effort: Effort, case: &Case) -> (f64, f64) {
    let (mut subject, mut baseline) = (case.subject, case.baseline);
    let times = nanoseconds(effort, &mut [&mut subject, &mut baseline]);
    (times[0] - times[1], times[1])
}

fn main() {
    let effort = Effort::from_args();
    attach(4096);
    let cases = cases();

    let mut floor_times = Vec::new();
    for case in &cases {
        floor::hook(&case.traced, true);
        let (floor, _) = over(effort, case);
        floor::hook(&case.traced, false);
        line(&format!("call/{}/floor", case.name), floor, "ns");
        floor_times.push(floor);
    }
    line("call/floor", floor_times[0], "ns");

    // Nothing enabled: the NOP alone; then others traced, this one not.
    let (off, untraced) = over(effort, &cases[0]);
    line("call/off", off, "ns");
    line("call/off/ratio", (off + untraced) / untraced, "ratio");
    let ids = register(1, ());
    follow(&ids, &[work::recursion as Work as usize]);
    let (unwanted, untraced) = over(effort, &cases[0]);
    line("call/unwanted", unwanted, "ns");
    line(
        "call/unwanted/ratio",
        (unwanted + untraced) / untraced,
        "ratio",
    );
    follow(&ids, &[]);
    unregister(ids);

    for (case, floor) in cases.iter().zip(&floor_times) {
        for count in [1, 2, 4, 8, 16] {
            let ids = register(count, ());
            follow(&ids, &case.traced);
            let (time, untraced) = over(effort, case);
            let name = format!("call/{}/cb={count}", case.name);
            line(&name, time, "ns");
            line(
                &format!("{name}/untraced"),
                (time + untraced) / untraced,
                "ratio",
            );
            if count == 1 {
                line(&format!("{name}/floor"), time / floor, "ratio");
            }
            follow(&ids, &[]);
            unregister(ids);
        }
    }

    // Recorded, which is what the other ways of `benches/others.rs` do.
    let ids = vec![FGRAPH.register(&GRAPH).expect("a slot is free")];
    follow(&ids, &cases[0].traced);
    let written = BUFFERS[0].written();
    let (recorded, _) = over(effort, &cases[0]);
    assert!(BUFFERS[0].written() > written, "it records");
    line("call/leaf/recorded", recorded, "ns");
    follow(&ids, &[]);
    unregister(ids);

    let ids = register(1, ());
    let mut scopes = |calls| {
        for n in 0..calls {
            let _scope = FGRAPH.scope(leaves as fn(u64) as usize, 0);
            black_box(work::plain_leaf(n));
        }
    };
    let mut baseline = plain_leaves;
    let times = nanoseconds(effort, &mut [&mut scopes, &mut baseline]);
    line("call/scope/cb=1", times[0] - times[1], "ns");
    unregister(ids);
}
