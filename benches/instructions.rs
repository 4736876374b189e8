//! How many instructions a call costs, counted exactly by callgrind, and where
//! they are. Without valgrind there is nothing to count, which is said.
//!
//! What a traced call takes beside its `enter` and `leave`, with what the
//! callbacks do in them, is the stub's: nearly all for registers.
//!
//! The figures are compared with `benches/instructions.tsv`, which was made by
//! the compiler that its first line names: with that compiler, a figure above
//! the table's fails. `--write` makes the table anew.

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::{Command, ExitCode};

mod support;

use fgraph::tracer::{Buffer, Full, Graph, Record};
use support::floor;
use support::text::{follow, init};
use support::tracer::{Bench, FGRAPH, attach, pair, register};

const ALL: usize = 0xffff;

static RECORDS: [Record; 64] = [const { Record::new() }; 64];
static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
static GRAPH: Graph<Bench> = Graph::new(&BUFFERS);

/// Runs a case's loop `calls` times. The set-up costs the same for any number
/// of calls, so that two runs' difference is the calls alone.
fn run(case: &str, calls: u64) {
    attach(1024);
    let (what, callbacks, data) = parse(case);
    // Needs a free slot.
    init();
    let ids = match (what, data) {
        ("recorded" | "recorded-under-scope", _) => {
            vec![FGRAPH.register(&GRAPH).expect("a slot is free")]
        }
        (_, 0) => register(callbacks, ()),
        (_, 1) => register(callbacks, 7_usize),
        _ => register(callbacks, [7_usize; 2]),
    };
    match what {
        "pair" | "recorded" => pair::pair(calls, ALL),
        "under-scope" | "recorded-under-scope" => {
            // Of a function in this program, as its calls are.
            let _outer = FGRAPH.scope(run as fn(&str, u64) as usize, 0);
            pair::pair(calls, ALL);
        }
        "wide" => pair::wide(calls),
        "none" => pair::pair(calls, 0),
        "empty" => pair::empty(calls),
        "call" => {
            follow(&ids, &[leaf as fn(u64) -> u64 as usize]);
            leaves(calls);
        }
        "unwanted" => {
            follow(&ids, &[other as fn(u64) -> u64 as usize]);
            leaves(calls);
        }
        "off" => leaves(calls),
        "floor" => {
            floor::hook(&[leaf as fn(u64) -> u64 as usize], true);
            leaves(calls);
        }
        "plain" => {
            for n in 0..calls {
                black_box(plain(n));
            }
        }
        _ => panic!("no such case: {case}"),
    }
}

#[inline(never)]
fn leaf(n: u64) -> u64 {
    black_box(n) + 1
}

#[inline(never)]
fn other(n: u64) -> u64 {
    black_box(n) + 2
}

/// Never traced: what a call costs by itself.
#[inline(never)]
fn plain(n: u64) -> u64 {
    black_box(n) + 3
}

#[inline(never)]
fn leaves(calls: u64) {
    for n in 0..calls {
        black_box(leaf(n));
    }
}

/// `pair/cb=4/data=1` is the pair with 4 callbacks of 1 data word.
fn parse(case: &str) -> (&str, usize, usize) {
    let mut parts = case.split('/');
    let mut what = parts.next().unwrap_or(case);
    let (mut callbacks, mut data) = (1, 0);
    for part in parts {
        match part.split_once('=') {
            Some(("cb", n)) => callbacks = n.parse().expect("a number of callbacks"),
            Some(("data", n)) => data = n.parse().expect("a number of words"),
            _ => what = part,
        }
    }
    (what, callbacks, data)
}

const CASES: &[&str] = &[
    "pair/empty",
    "pair/none",
    "pair/cb=1",
    "pair/cb=2",
    "pair/cb=4",
    "pair/cb=8",
    "pair/cb=16",
    "pair/cb=1/data=1",
    "pair/cb=2/data=1",
    "pair/cb=4/data=1",
    "pair/cb=16/data=1",
    "pair/cb=1/data=2",
    "pair/under-scope",
    "pair/wide",
    "pair/recorded",
    "pair/recorded-under-scope",
    "call/off",
    "call/unwanted",
    "call/floor",
    "call/cb=1",
    "call/cb=1/enter",
    "call/cb=1/leave",
    "call/cb=2",
    "call/cb=16",
];

/// A case's name may end with that of one of the hook's two functions: then only
/// what is done inside of it counts.
fn inside(case: &str) -> (&str, Option<&'static str>) {
    let parts = [
        ("/enter", "--toggle-collect=fgraph::hook::patch::enter*"),
        ("/leave", "--toggle-collect=fgraph::hook::patch::leave*"),
    ];
    let mut found = parts.iter();
    let found = found.find_map(|&(part, option)| Some((case.strip_suffix(part)?, option)));
    found.map_or((case, None), |(case, option)| (case, Some(option)))
}

/// The instructions of this program, doing `calls` calls of a case.
fn count(case: &str, calls: u64) -> Option<u64> {
    let (case, inside) = inside(case);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        // Text is patched while the program runs.
        .arg("--smc-check=all")
        .args(inside)
        .arg(std::env::current_exe().ok()?)
        .args(["--run", case, &calls.to_string()])
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let after = text.split("Collected :").nth(1)?;
    after.split_whitespace().next()?.parse().ok()
}

fn per_call(case: &str) -> f64 {
    const CALLS: u64 = 1000;
    let counted = |calls| count(case, calls).expect("callgrind counts");
    (counted(2 * CALLS) - counted(CALLS)) as f64 / CALLS as f64
}

fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let version = Command::new(rustc).arg("-V").output();
    version.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, run_arg, case, calls, ..] = &args[..]
        && run_arg == "--run"
    {
        run(case, calls.parse().expect("a number of calls"));
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: skipped, valgrind is not installed");
        let required = std::env::var("FGRAPH_REQUIRE").unwrap_or_default();
        return ExitCode::from(u8::from(required.contains("valgrind")));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.tsv");
    let table = std::fs::read_to_string(path).unwrap_or_default();
    let mut new = compiler();
    let same_compiler = table.lines().next() == Some(&new);
    let mut failed = false;
    for case in CASES {
        let mut each = per_call(case);
        if case.starts_with("call") && inside(case).1.is_none() {
            // Beyond the call itself.
            each -= per_call("call/plain");
        }
        support::line(case, each, "instructions");
        let _ = write!(new, "\n{case}\t{each:.2}");
        let limit = table
            .lines()
            .find_map(|line| line.strip_prefix(case)?.strip_prefix('\t'));
        let limit = limit.and_then(|limit| limit.parse::<f64>().ok());
        if same_compiler && limit.is_none_or(|limit| each > limit + 0.5) {
            println!("{case}: more than the {limit:?} of benches/instructions.tsv");
            failed = true;
        }
    }
    if args.iter().any(|arg| arg == "--write") {
        std::fs::write(path, new + "\n").expect("the table is writable");
        return ExitCode::SUCCESS;
    }
    if !same_compiler {
        println!("instructions: the table is of another compiler, nothing compared");
    }
    ExitCode::from(u8::from(failed))
}
