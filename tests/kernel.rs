//! Boots the hobby kernel in `tests/kernel` and looks at what it says.
//!
//! The kernel checks itself: each of its scenarios ends with an exit code. Here
//! it is built, run, and what it prints is held against what it must print; on
//! x86-64 and on AArch64.
//!
//! Without QEMU, or for AArch64 without a compiler for it, these tests say so
//! and pass; where the environment variable `FGRAPH_REQUIRE` names `qemu` they
//! fail.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "common/machine.rs"]
mod machine;
#[path = "outputs/readers.rs"]
#[allow(dead_code, reason = "shared with the test of the outputs")]
mod readers;
#[path = "outputs/sent.rs"]
mod sent;
#[path = "outputs/serial.rs"]
mod serial;
#[path = "graph/uftrace.rs"]
mod uftrace;

use machine::{AARCH64, Machine, Run, X86_64};
use serial::{
    all_outputs_tell_the_same, the_graph_folds_into_stacks, the_profile_counts_calls,
    what_small_buffers_lost_is_told,
};

const FINE: i32 = 0;
const PANICKED: i32 = 101;

/// Each of these tests, on each machine.
macro_rules! on_each_machine {
    ($($test:ident)*) => {
        mod x86_64 {
            $(#[test] fn $test() { super::$test(&super::X86_64); })*
        }
        mod aarch64 {
            $(#[test] fn $test() { super::$test(&super::AARCH64); })*
        }
    };
}

on_each_machine! {
    everything_is_balanced_and_computes_the_same
    the_tracers_own_functions_may_be_hooked_too
    small_stacks_overrun_and_nothing_else_is_wrong
    each_of_sixteen_filters_sees_exactly_its_functions
    callbacks_come_and_go_while_others_run
    tasks_end_inside_traced_calls
    nmis_at_random_moments_lose_nothing
    backtraces_are_the_same_traced_and_untraced
    backtraces_are_right_at_each_instruction_of_the_tracer
    a_panic_walks_over_restored_slots
    a_panic_in_an_interrupt_walks_to_the_interrupted_calls
    calls_go_on_that_interrupts_have_restored
    tracing_goes_on_and_off_under_calls_in_flight
    the_graph_comes_over_serial
    the_graph_shows_switches
    the_graph_keeps_to_a_cpu_and_a_filter
    all_outputs_tell_the_same
    what_small_buffers_lost_is_told
    the_graph_folds_into_stacks
    the_profile_counts_calls
    the_kernel_works_by_itself
}

fn everything_is_balanced_and_computes_the_same(machine: &Machine) {
    let Some(untraced) = machine.untraced() else {
        return;
    };
    let run = machine
        .boot(
            &format!("test=everything seconds={}", machine.seconds(10)),
            FINE,
        )
        .expect("QEMU");
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

fn the_tracers_own_functions_may_be_hooked_too(machine: &Machine) {
    let Some(untraced) = machine.untraced() else {
        return;
    };
    let run = machine
        .boot(
            &format!("test=everything seconds={} own=yes", machine.seconds(3)),
            FINE,
        )
        .expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    let recursions = Run::field(run.stacks(), "recursions");
    assert!(recursions > 100_000, "{recursions}");
}

fn small_stacks_overrun_and_nothing_else_is_wrong(machine: &Machine) {
    let Some(untraced) = machine.untraced() else {
        return;
    };
    // Eight frames, in which four callbacks keep a word each.
    let run = machine
        .boot("test=everything rounds=20 words=80", FINE)
        .expect("QEMU");
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

fn each_of_sixteen_filters_sees_exactly_its_functions(machine: &Machine) {
    let Some(run) = machine.boot("test=filters rounds=20", FINE) else {
        return;
    };
    let watches: Vec<&str> = run.lines("watch ").collect();
    assert_eq!(watches.len(), 16);
    for line in watches {
        assert!(Run::count(line, "functions") > 0, "{line}");
        assert_eq!(Run::count(line, "wrong"), 0, "{line}");
    }
}

fn callbacks_come_and_go_while_others_run(machine: &Machine) {
    let Some(run) = machine.boot("test=churn rounds=10", FINE) else {
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

fn tasks_end_inside_traced_calls(machine: &Machine) {
    let Some(run) = machine.boot("test=ends", FINE) else {
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

fn nmis_at_random_moments_lose_nothing(machine: &Machine) {
    let Some(untraced) = machine.untraced() else {
        return;
    };
    let run = machine
        .boot("test=nmi trace=* rounds=40", FINE)
        .expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    run.stacks();
    let walks = run.line("walks from NMIs: ");
    assert_ne!(walks, "0, broken 0");
    assert!(walks.ends_with(", broken 0"), "{walks}");
    println!("walks from NMIs: {walks}");
}

fn backtraces_are_the_same_traced_and_untraced(machine: &Machine) {
    let Some(run) = machine.boot("test=backtraces", FINE) else {
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

fn backtraces_are_right_at_each_instruction_of_the_tracer(machine: &Machine) {
    let Some(run) = machine.boot("test=step", FINE) else {
        return;
    };
    assert_eq!(run.line("chains at each instruction: "), "equal true");
    run.balanced();
    println!("{}", run.line("stepped traced: "));
}

fn a_panic_walks_over_restored_slots(machine: &Machine) {
    let Some(untraced) = machine.boot("test=panic", PANICKED) else {
        return;
    };
    let traced = machine.boot("test=panic trace=*", PANICKED).expect("QEMU");
    let untraced = untraced.backtrace("panicked at");
    assert_eq!(untraced, traced.backtrace("panicked at"));
    assert!(untraced.len() > 12, "{untraced:?}");
}

fn a_panic_in_an_interrupt_walks_to_the_interrupted_calls(machine: &Machine) {
    let Some(untraced) = machine.boot("test=interrupt-panic", PANICKED) else {
        return;
    };
    let traced = machine
        .boot("test=interrupt-panic trace=*", PANICKED)
        .expect("QEMU");
    // Where the interrupt came may differ.
    let elsewhere = |line: &&str| !line.contains("wait_for_interrupt+");
    let lines = |run| -> Vec<String> {
        let lines = Run::backtrace(run, "panicked at").into_iter();
        lines.filter(elsewhere).map(str::to_owned).collect()
    };
    assert_eq!(lines(&untraced), lines(&traced));
    assert!(lines(&untraced).len() > 16, "{untraced:?}");
}

fn calls_go_on_that_interrupts_have_restored(machine: &Machine) {
    let Some(untraced) = machine.untraced() else {
        return;
    };
    let run = machine
        .boot(
            "test=restore trace=kernel::fs::*,*FileSystem*,*Pipe*,*Mutex*,kernel::work::*",
            FINE,
        )
        .expect("QEMU");
    assert_eq!(run.checksums(), untraced);
    run.balanced();
    let unwound = Run::field(run.stacks(), "unwound");
    assert!(unwound > 50, "{unwound}");
}

fn tracing_goes_on_and_off_under_calls_in_flight(machine: &Machine) {
    let Some(run) = machine.boot("test=deep", FINE) else {
        return;
    };
    let off = run.line("off: ");
    assert!(Run::count(off, "calls") > 120, "{off}");
    assert!(run.line("gone: ").ends_with("; 0 came back wrong"));
    run.stacks();
}

fn the_graph_comes_over_serial(machine: &Machine) {
    let Some(untraced) = machine.untraced() else {
        return;
    };
    let run = machine.boot("trace=* depth=4", FINE).expect("QEMU");
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

fn the_graph_shows_switches(machine: &Machine) {
    let Some(run) = machine.boot("trace=kernel::sched::*,*Pipe* rounds=2", FINE) else {
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

fn the_graph_keeps_to_a_cpu_and_a_filter(machine: &Machine) {
    let Some(run) = machine.boot("trace=*FileSystem* cpu=1", FINE) else {
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

fn the_kernel_works_by_itself(machine: &Machine) {
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
        machine.boot(line, code);
    }
}

/// The text of a graph without what is by chance: the durations. A call that
/// calls none is one line even if it took so long that it needed two records.
fn without_durations(run: &Run) -> Vec<String> {
    let graph = run.text.split("graph:\n").nth(1).expect("a graph");
    let graph = graph.split("graph ends: ").next().expect("some text");
    let mut lines: Vec<String> = Vec::new();
    for line in graph.lines() {
        let line = match (line.split_once(')'), line.split_once('|')) {
            (Some((cpu, _)), Some((_, calls))) => format!("{cpu})|{calls}"),
            _ => line.to_owned(),
        };
        let begun = lines.last().and_then(|last| last.strip_suffix("() {"));
        let name = begun.and_then(|begun| begun.rsplit(' ').next());
        let ends = name.is_some_and(|name| line.ends_with(&format!("}} /* {name} */")));
        match begun.filter(|_| ends).map(|begun| format!("{begun}();")) {
            Some(leaf) => *lines.last_mut().expect("it has begun") = leaf,
            None => lines.push(line),
        }
    }
    lines
}

/// Calls, tasks that end in them or panic, and a page fault: one processor's
/// graph is the other's, line by line.
#[test]
fn the_graph_is_the_same_on_both_machines() {
    let line = "test=same \
                trace=kernel::scenario::same::call::*,kernel::fs::read_file,*FileSystem*::walk,\
                kernel::trap::probe_fault";
    let run = |machine: &Machine| {
        let run = machine.boot_with(1, line, FINE)?;
        run.balanced();
        Some(without_durations(&run))
    };
    let (Some(x86_64), Some(aarch64)) = (run(&X86_64), run(&AARCH64)) else {
        return;
    };
    for part in ["branch() {", "==>", "(task exit)", "(unwound)", "  =>  "] {
        let has = x86_64.iter().any(|line| line.contains(part));
        assert!(has, "no {part:?} in {x86_64:#?}");
    }
    assert!(x86_64.len() > 500, "{}", x86_64.len());
    for (number, (one, other)) in x86_64.iter().zip(&aarch64).enumerate() {
        assert_eq!(one, other, "line {number}");
    }
    assert_eq!(x86_64.len(), aarch64.len());
}
