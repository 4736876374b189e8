//! Boots the hobby kernel in `tests/kernel` and looks at what it says.
//!
//! The kernel checks itself: each of its scenarios ends with an exit code. Here
//! it is built, run, and what it prints is held against what it must print.
//!
//! Without QEMU these tests say so and pass; where the environment variable
//! `FGRAPH_REQUIRE` names `qemu` they fail.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "outputs/readers.rs"]
#[allow(dead_code, reason = "shared with the test of the outputs")]
mod readers;
#[path = "outputs/serial.rs"]
mod serial;
#[path = "graph/uftrace.rs"]
mod uftrace;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const FINE: i32 = 0;
const PANICKED: i32 = 101;

/// The kernel's folder.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel")
}

/// The kernel's image, built once.
fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel");
        let mut cargo = Command::new(env!("CARGO"));
        // In its folder, where cargo finds the kernel's own flags.
        cargo.current_dir(folder());
        cargo
            .args(["build", "--release", "--target-dir"])
            .arg(&target);
        // What was meant for this build and not for the kernel's: flags replace
        // those of the configuration, and the rest moves what is built.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let is_ours = text.starts_with("CARGO_PROFILE_")
                || text.starts_with("CARGO_BUILD_")
                || (text.starts_with("CARGO_TARGET_") && text != "CARGO_TARGET_TMPDIR")
                || text.ends_with("RUSTFLAGS")
                || text == "RUSTC_WRAPPER"
                || text == "RUSTC_WORKSPACE_WRAPPER";
            if is_ours {
                cargo.env_remove(name);
            }
        }
        let output = cargo.output().expect("cargo runs");
        assert!(
            output.status.success(),
            "the kernel does not build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        target.join("x86_64-unknown-linux-gnu/release/kernel")
    })
}

/// Whether there is a QEMU; says so if not.
fn has_qemu() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let version = Command::new("qemu-system-x86_64").arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    if !found {
        let required = std::env::var("FGRAPH_REQUIRE").unwrap_or_default();
        assert!(
            !required.split_whitespace().any(|word| word == "qemu"),
            "QEMU is missing, and FGRAPH_REQUIRE names it"
        );
        println!("skipped: QEMU is missing");
        eprintln!("skipped: QEMU is missing");
    }
    found
}

/// One boot.
struct Run {
    text: String,
    took: Duration,
}

/// Boots with a command line; `None` without QEMU. The exit code must be
/// `code`.
fn boot(line: &str, code: i32) -> Option<Run> {
    // One at a time: two CPUs of the kernel take two of this machine.
    static ONE: Mutex<()> = Mutex::new(());
    if !has_qemu() {
        return None;
    }
    let image = image();
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    let output = Command::new(folder().join("run"))
        .arg(image)
        .args(line.split_whitespace())
        .output()
        .expect("the script runs");
    let took = begun.elapsed();
    println!("{line}: {took:.2?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{line}\n{}\n{}",
        tail(&text),
        String::from_utf8_lossy(&output.stderr)
    );
    Some(Run { text, took })
}

/// The last lines.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

impl Run {
    /// The lines that begin so, without that.
    fn lines<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.text
            .lines()
            .filter_map(move |line| line.strip_prefix(start))
    }

    /// The one line that begins so.
    fn line<'a>(&'a self, start: &'a str) -> &'a str {
        let mut lines = self.lines(start);
        match (lines.next(), lines.next()) {
            (Some(line), None) => line.trim(),
            _ => panic!("not one line {start:?} in\n{}", tail(&self.text)),
        }
    }

    /// What each task of the workload computed, none of them differently in
    /// any round.
    fn checksums(&self) -> BTreeMap<String, String> {
        let sums = self.lines("checksum ").map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, sum, "rounds", rounds, "mismatches", "0"] = words[..] else {
                panic!("not as it should be: {line}");
            };
            assert_ne!(rounds, "0", "{line}");
            (name.to_owned(), sum.to_owned())
        });
        sums.collect()
    }

    /// The number before `what` in a line, where words are separated by blanks
    /// and punctuation.
    fn count(line: &str, what: &str) -> usize {
        let words: Vec<&str> = line.split([' ', ',', ';', ':', '{', '}']).collect();
        let at = words.iter().position(|&word| word == what);
        let at = at.unwrap_or_else(|| panic!("no {what} in {line}"));
        let before = words[..at].iter().rev().find(|word| !word.is_empty());
        before
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no number before {what} in {line}"))
    }

    /// A field of a structure that was printed.
    fn field(line: &str, name: &str) -> usize {
        let value = line.split(&format!("{name}: ")).nth(1);
        let value = value.and_then(|rest| rest.split([',', ' ', '}']).next());
        value
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {line}"))
    }

    /// Each account of a callback balances; returns how many entries they have.
    fn balanced(&self) -> Vec<usize> {
        let entries: Vec<usize> = self
            .lines("counted: ")
            .map(|line| {
                let count = |what| Self::count(line, what);
                let exits = count("returned") + count("unwound") + count("with");
                assert_eq!(count("entries"), exits, "{line}");
                assert_eq!((count("strange"), count("late")), (0, 0), "{line}");
                count("entries")
            })
            .collect();
        assert!(!entries.is_empty(), "no accounts in\n{}", tail(&self.text));
        entries
    }

    /// The shadow stacks' counters after the run: all frames are gone, and
    /// nothing was lost.
    fn stacks(&self) -> &str {
        let line = self.line("stacks: ");
        for nothing in ["strays", "frames", "wrong"] {
            assert_eq!(Self::field(line, nothing), 0, "{line}");
        }
        line
    }

    /// The backtrace below the line.
    fn backtrace(&self, heading: &str) -> Vec<&str> {
        let mut lines = self.text.lines().skip_while(|line| !line.contains(heading));
        assert!(lines.next().is_some(), "no {heading:?} in\n{}", self.text);
        let lines = lines.skip_while(|line| !line.starts_with("  "));
        lines.take_while(|line| line.starts_with("  ")).collect()
    }
}

/// The checksums without any tracing.
fn untraced() -> Option<BTreeMap<String, String>> {
    static SUMS: OnceLock<Option<BTreeMap<String, String>>> = OnceLock::new();
    SUMS.get_or_init(|| {
        let run = boot("rounds=20", FINE)?;
        let sums = run.checksums();
        assert_eq!(sums.len(), 8, "{sums:?}");
        Some(sums)
    })
    .clone()
}

#[test]
fn everything_is_balanced_and_computes_the_same() {
    let Some(untraced) = untraced() else { return };
    let run = boot("test=everything seconds=10", FINE).expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    let entries = run.balanced();
    assert_eq!(entries.len(), 4);
    assert!(
        entries.iter().all(|&entries| entries > 100_000),
        "{entries:?}"
    );
    let stacks = run.stacks();
    assert_eq!(Run::field(stacks, "overruns"), 0, "{stacks}");
    assert_eq!(run.line("balanced: "), "true");
    let between = run.line("between calls: ");
    assert_eq!(Run::count(between, "not"), 0, "{between}");
    println!("{entries:?} entries; {between}; {stacks}");
}

#[test]
fn the_tracers_own_functions_may_be_hooked_too() {
    let Some(untraced) = untraced() else { return };
    let run = boot("test=everything seconds=3 own=yes", FINE).expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    let recursions = Run::field(run.stacks(), "recursions");
    assert!(recursions > 100_000, "{recursions}");
}

#[test]
fn small_stacks_overrun_and_nothing_else_is_wrong() {
    let Some(untraced) = untraced() else { return };
    // Eight frames, in which four callbacks keep a word each.
    let run = boot("test=everything rounds=20 words=80", FINE).expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    let stacks = run.stacks();
    assert!(Run::field(stacks, "overruns") > 0, "{stacks}");
    assert!(Run::field(stacks, "high_water") <= 80, "{stacks}");
    for line in run.lines("counted: ") {
        let missed = line
            .rsplit(' ')
            .next()
            .and_then(|word| word.parse::<u32>().ok());
        assert!(missed.is_some_and(|missed| missed > 0), "{line}");
    }
}

#[test]
fn each_of_sixteen_filters_sees_exactly_its_functions() {
    let Some(run) = boot("test=filters rounds=20", FINE) else {
        return;
    };
    let watches: Vec<&str> = run.lines("watch ").collect();
    assert_eq!(watches.len(), 16);
    for line in watches {
        assert!(Run::count(line, "functions") > 0, "{line}");
        assert_eq!(Run::count(line, "wrong"), 0, "{line}");
    }
}

#[test]
fn callbacks_come_and_go_while_others_run() {
    let Some(run) = boot("test=churn rounds=10", FINE) else {
        return;
    };
    let steady = run.line("steady: ");
    assert!(Run::count(steady, "entries") > 10_000, "{steady}");
    let churned: Vec<&str> = run.lines("churned: ").collect();
    assert_eq!(churned.len(), 4);
    for line in churned {
        assert!(Run::count(line, "entries") > 0, "{line}");
        assert_eq!(Run::count(line, "late"), 0, "{line}");
    }
    assert_eq!(Run::count(run.line("churn: "), "rounds"), 1000);
    run.stacks();
}

#[test]
fn tasks_end_inside_traced_calls() {
    let Some(run) = boot("test=ends", FINE) else {
        return;
    };
    for name in ["exiter", "sleeper", "spinner"] {
        let line = run.line(&format!("{name}: ")).to_owned();
        assert!(
            line.starts_with("11 entries, 0 returned, 0 unwound, 11 with their task"),
            "{line}"
        );
    }
    let line = run.line("panicker: ");
    assert!(
        line.starts_with("11 entries, 0 returned, 11 unwound, 0 with their task"),
        "{line}"
    );
    assert_eq!(
        run.lines("place ")
            .filter(|line| line.ends_with("Finished"))
            .count(),
        4
    );
    run.stacks();
}

#[test]
fn nmis_at_random_moments_lose_nothing() {
    let Some(untraced) = untraced() else { return };
    let run = boot("test=nmi trace=* rounds=40", FINE).expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    run.stacks();
    let walks = run.line("walks from NMIs: ");
    assert_ne!(walks, "0, broken 0");
    assert!(walks.ends_with(", broken 0"), "{walks}");
    println!("walks from NMIs: {walks}");
}

#[test]
fn backtraces_are_the_same_traced_and_untraced() {
    let Some(run) = boot("test=backtraces", FINE) else {
        return;
    };
    for kind in ["task", "interrupt", "NMI", "page fault"] {
        let untraced = run.backtrace(&format!("backtrace from {kind}, untraced:"));
        let traced = run.backtrace(&format!("backtrace from {kind}, traced:"));
        // Where the interrupt came may differ; where it returns to may not.
        let from = usize::from(kind != "task");
        assert!(untraced.len() > 10, "{untraced:?}");
        assert_eq!(untraced[from..], traced[from..], "{kind}");
        assert!(
            untraced
                .last()
                .is_some_and(|last| last.contains("kernel::sched::first"))
        );
    }
    run.balanced();
}

#[test]
fn backtraces_are_right_at_each_instruction_of_the_tracer() {
    let Some(run) = boot("test=step", FINE) else {
        return;
    };
    assert_eq!(run.line("chains at each instruction: "), "equal true");
    run.balanced();
    println!("{}", run.line("stepped traced: "));
}

#[test]
fn a_panic_walks_over_restored_slots() {
    let Some(untraced) = boot("test=panic", PANICKED) else {
        return;
    };
    let traced = boot("test=panic trace=*", PANICKED).expect("QEMU");
    let untraced = untraced.backtrace("panicked at");
    assert_eq!(untraced, traced.backtrace("panicked at"));
    assert!(untraced.len() > 12, "{untraced:?}");
}

#[test]
fn tracing_goes_on_and_off_under_calls_in_flight() {
    let Some(run) = boot("test=deep", FINE) else {
        return;
    };
    let off = run.line("off: ");
    assert!(Run::count(off, "calls") > 120, "{off}");
    assert!(run.line("gone: ").ends_with("; 0 came back wrong"));
    run.stacks();
}

#[test]
fn the_graph_comes_over_serial() {
    let Some(untraced) = untraced() else { return };
    let run = boot("trace=* depth=4", FINE).expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    let graph = run.text.split("graph:\n").nth(1).expect("a graph");
    let graph = graph.split("graph ends").next().expect("some text");
    // Names, nesting, and both CPUs; what else is among the newest records is
    // chance.
    for part in ["kernel::", "() {", "}", " us ", " 0) ", " 1) "] {
        assert!(graph.contains(part), "no {part:?} in the graph");
    }
    println!(
        "boot to graph: {:?}, {} lines",
        run.took,
        graph.lines().count()
    );
}

#[test]
fn the_graph_shows_switches() {
    let Some(run) = boot("trace=kernel::sched::*,*Pipe* rounds=2", FINE) else {
        return;
    };
    run.balanced();
    let graph = run.text.split("graph:\n").nth(1).expect("a graph");
    assert!(!graph.contains("LOST"), "{graph}");
    for part in [
        "kernel::sched::yield_now() {",
        "/* kernel::sched::yield_now */",
        "kernel::sched::sleep() {",
        "producer-",
        "  =>  ",
    ] {
        assert!(graph.contains(part), "no {part:?} in the graph");
    }
}

#[test]
fn the_graph_keeps_to_a_cpu_and_a_filter() {
    let Some(run) = boot("trace=*FileSystem* cpu=1", FINE) else {
        return;
    };
    run.balanced();
    let graph = run.text.split("graph:\n").nth(1).expect("a graph");
    let graph = graph.split("graph ends: ").next().expect("some text");
    let mut begun = 0;
    for line in graph.lines().filter(|line| line.contains("kernel::")) {
        assert!(line.contains("FileSystem"), "{line}");
        // On the other CPU calls can only end, of tasks that were moved.
        let ends = line.contains('}');
        assert!(ends || line.starts_with(" 1)"), "{line}");
        begun += usize::from(!ends);
    }
    assert!(begun > 0, "{graph}");
}

#[test]
fn the_kernel_works_by_itself() {
    for (line, code) in [
        ("test=hello", FINE),
        ("test=fault", FINE),
        ("test=task-fault trace=*", FINE),
        ("test=task-panic trace=*", FINE),
        ("test=kill trace=*", FINE),
        ("test=breakpoint trace=*", FINE),
        ("test=stop rounds=5", FINE),
        ("test=grace trace=* rounds=20", FINE),
        ("test=nobody", 2),
        ("no=option", 2),
    ] {
        boot(line, code);
    }
}
