//! Every output of the kernel, out of what came over its serial port, read by
//! its own reader.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use crate::machine::{Machine, Run};
use crate::readers::{self, Table, Tree};
use crate::sent::{bytes, section};
use crate::{FINE, uftrace};

/// What counts its own calls.
const COUNTED: &str = "*counted::fork,*counted::twice,*counted::pause,*counted::last,\
                       *counted::*Step>::step";

/// A directory of this process.
fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fgraph-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("it can be made");
    path
}

/// What every output tells of the same records.
struct Outputs {
    json: Tree,
    folded: Vec<String>,
    graph: BTreeMap<String, Vec<Shown>>,
    lost_in_graph: u64,
    fxt: Option<Tree>,
    /// `None` too if no call was recorded.
    uftrace: Option<readers::Uftrace>,
    lost_in_steps: u64,
}

const FORMATS: &str = "graph,folded,json,fxt,uftrace";

fn read(machine: &Machine, run: &Run, name: &str) -> Outputs {
    let directory = scratch(&format!("{}-{name}", machine.name));
    let path = directory.join("trace.fxt");
    std::fs::write(&path, bytes(&run.text, "fxt")).expect("it can be written");
    let (folded, summary) = section(run, "folded")
        .rsplit_once("folded: ")
        .expect("a summary");
    if !folded.is_empty() {
        readers::folded(folded);
    }
    let json = readers::json(section(run, "json"));
    assert_eq!(Run::field(summary, "calls"), json.stacks.len(), "{summary}");
    assert_eq!(Run::field(summary, "lost") as u64, json.lost, "{summary}");
    let graph = section(run, "graph");
    let (graph, lost_in_graph) = (tasks_of(graph), readers::graph(graph).1);

    let steps = steps(&bytes(&run.text, "uftrace"));
    let lost_in_steps = steps.iter().map(|step| match *step {
        uftrace::Step::Lost { records } => records as u64,
        _ => 0,
    });
    let lost_in_steps = lost_in_steps.sum();
    let target = directory.join("uftrace");
    let mut functions = functions(machine);
    let range = functions.first().expect("symbols").0 & !0xfff
        ..functions.last().expect("symbols").0 + 0x1000;
    let program = uftrace::Program {
        path: "/kernel",
        range,
        functions: &mut functions.drain(..),
    };
    let has_calls = steps
        .iter()
        .any(|step| matches!(step, uftrace::Step::Enter { .. }));
    uftrace::write(&target, steps.into_iter(), program).expect("it can be written");
    let outputs = Outputs {
        folded: folded.lines().map(str::to_owned).collect(),
        graph,
        lost_in_graph,
        fxt: readers::fxt(&path),
        // What is lost does not come out of its dump.
        uftrace: has_calls
            .then(|| readers::uftrace(&target, json.lost == 0))
            .flatten(),
        lost_in_steps,
        json,
    };
    std::fs::remove_dir_all(directory).expect("it can be removed");
    outputs
}

fn steps(bytes: &[u8]) -> Vec<uftrace::Step> {
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("whole words")))
        .collect();
    let steps = words.chunks(uftrace::steps::WORDS).map(|words| {
        let step = uftrace::Step::from_words(words.try_into().expect("whole steps"));
        step.unwrap_or_else(|| panic!("no step: {words:x?}"))
    });
    steps.collect()
}

/// The table of the kernel's symbols that the script gives it: address, size
/// and name.
fn functions(machine: &Machine) -> Vec<(usize, usize, String)> {
    let table = format!("{}.symbols", machine.image().display());
    let table = std::fs::read_to_string(table).expect("the script has made it");
    let lines = table.lines().map(|line| {
        let (start, name) = line.split_once(' ').expect("an address and a name");
        let start = usize::from_str_radix(start, 16).expect("an address");
        (start, name.to_owned())
    });
    let starts: Vec<(usize, String)> = lines.collect();
    let mut functions = Vec::new();
    for (i, (start, name)) in starts.iter().enumerate() {
        let next = starts[i..].iter().find(|(next, _)| next > start);
        let size = next.map_or(1, |(next, _)| next - start);
        functions.push((*start, size, name.clone()));
    }
    functions
}

/// A call as a graph shows it.
struct Shown {
    name: String,
    depth: usize,
    /// Nanoseconds, from this to less than that: as many digits are shown as
    /// there is room for.
    total: Range<u64>,
}

/// The calls of each task, in the order in which they begin, of a graph with a
/// column for the task and with tail names.
fn tasks_of(graph: &str) -> BTreeMap<String, Vec<Shown>> {
    let mut tasks: BTreeMap<String, Vec<Shown>> = BTreeMap::new();
    let mut open: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for line in graph.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.splitn(3, '|').collect();
        let [place, duration, call] = columns[..] else {
            continue;
        };
        let (_, task) = place.split_once(')').expect("a CPU");
        let task = task.trim().to_owned();
        let text = call.trim_start();
        let depth = (call.len() - text.len()) / 2 - 1;
        let calls = tasks.entry(task.clone()).or_default();
        let open = open.entry(task).or_default();
        if let Some(tail) = text.strip_prefix('}') {
            let name = tail.trim().strip_prefix("/* ").expect("a tail");
            let end = name.find(['(', '*']).expect("the tail ends");
            // A call that began before the records is shown by its end alone.
            let Some(begun) = open.pop_if(|&mut place| calls[place].depth == depth) else {
                assert!(tail.contains("(begin lost)"), "{line}");
                continue;
            };
            let begun = &mut calls[begun];
            assert_eq!(begun.name, name[..end].trim(), "{line}");
            begun.total = nanoseconds(duration);
            continue;
        }
        let (name, rest) = text.rsplit_once("()").expect("a name");
        let is_leaf = rest.starts_with(';');
        if !is_leaf {
            open.push(calls.len());
        }
        calls.push(Shown {
            name: name.to_owned(),
            depth,
            total: nanoseconds(duration),
        });
    }
    tasks
}

/// A column's duration. An empty one tells nothing.
fn nanoseconds(column: &str) -> Range<u64> {
    let mut words = column.split_whitespace().rev();
    let mut unit = match words.next() {
        Some("us") => 1000,
        Some("s") => 1_000_000_000,
        _ => return 0..u64::MAX,
    };
    let mut total = 0;
    let mut decimals = false;
    for c in words.next().expect("a number").chars() {
        match c.to_digit(10) {
            Some(digit) => {
                total = total * 10 + u64::from(digit);
                unit /= if decimals { 10 } else { 1 };
            }
            None => decimals = true,
        }
    }
    total * unit..(total + 1) * unit
}

pub fn all_outputs_tell_the_same(machine: &Machine) {
    let rounds = std::env::var("FGRAPH_ROUNDS").unwrap_or("4".to_owned());
    let line = format!(
        "test=counted trace={COUNTED} rounds={rounds} tasks=yes records=131072 \
         format=profile,{FORMATS}"
    );
    let Some(run) = machine.boot(&line, FINE) else {
        return;
    };
    run.balanced();
    let counted = counted(&run);
    let outputs = read(machine, &run, "kernel");

    let json = &outputs.json;
    assert_eq!(json.lost, 0);
    assert_eq!(calls(&json.table), counted, "JSON");
    is_folded(&outputs.folded, json);
    if let Some(fxt) = &outputs.fxt {
        tells(fxt, json, "fxt");
        assert_eq!(fxt.tasks, json.tasks, "fxt");
    }
    is_shown(&outputs.graph, json);
    is_profiled(section(&run, "profile"), json);
    if let Some(uftrace) = &outputs.uftrace {
        let tree = uftrace.tree.as_ref().expect("nothing is lost");
        tells(tree, json, "uftrace");
        is_reported(&uftrace.report, json);
        is_replayed(&uftrace.replay, json);
        assert_eq!(graphed(&uftrace.graph), counted, "uftrace graph");
    }
    // Tasks were switched, and moved, and ended inside of calls.
    let graph = section(&run, "graph");
    for part in ["  =>  ", "\n 0) ", "\n 1) ", "(task exit)", "(unwound)"] {
        assert!(graph.contains(part), "no {part:?} in the graph");
    }
    println!("{} calls, {:.2?}", counted.values().sum::<u64>(), run.took);
}

/// What the functions have counted themselves.
fn counted(run: &Run) -> BTreeMap<String, u64> {
    let counted: BTreeMap<String, u64> = run
        .lines("called: ")
        .map(|line| {
            let (calls, name) = line.split_once(' ').expect("a count and a name");
            (name.to_owned(), calls.parse().expect("a count"))
        })
        .collect();
    assert!(counted.len() == 6 && counted.values().all(|&calls| calls > 0));
    counted
}

fn calls(table: &Table) -> BTreeMap<String, u64> {
    let calls = table.iter().map(|(name, told)| (name.clone(), told.calls));
    calls.collect()
}

/// The same calls of each task, in that order, with the same times.
fn tells(tree: &Tree, json: &Tree, format: &str) {
    assert_eq!(tree.lost, json.lost, "{format}");
    assert!(tree.calls.keys().eq(json.calls.keys()), "{format}");
    for (task, calls) in &json.calls {
        is_same(&tree.calls[task], calls, &format!("{format}: task {task}"));
    }
}

/// The same stacks, in that order, with the same own times.
fn is_folded(folded: &[String], json: &Tree) {
    is_same(folded, &json.folded(), "folded");
}

/// Shows the first that differs, where all would be too much.
fn is_same<T: PartialEq + std::fmt::Debug>(some: &[T], others: &[T], what: &str) {
    for (i, (one, other)) in some.iter().zip(others).enumerate() {
        assert_eq!(one, other, "{what}, {i}");
    }
    assert_eq!(some.len(), others.len(), "{what}");
}

/// The graph shows the same calls of each task, in that order, with what can
/// be seen of their durations.
fn is_shown(graph: &BTreeMap<String, Vec<Shown>>, json: &Tree) {
    assert_eq!(graph.len(), json.calls.len());
    for (task, calls) in &json.calls {
        let shown = &graph[&format!("{}-{task}", json.tasks[task])];
        assert_eq!(shown.len(), calls.len(), "task {task}");
        for (shown, call) in shown.iter().zip(calls) {
            assert_eq!((&shown.name, shown.depth), (&call.name, call.depth));
            assert!(shown.total.contains(&call.total), "{call:?}");
        }
    }
}

/// The profile, which runs inside the graph's calls and reads the clock itself,
/// counts the same and measures no more.
fn is_profiled(profile: &str, json: &Tree) {
    let mut lines = profile.lines();
    let heading = lines.next().expect("a heading");
    assert!(heading.starts_with("hits   ") || heading.contains(" hits  "));
    let micros = |word: &str| nanoseconds(&format!("{word} us")).start;
    let mut own = 0;
    let mut seen = 0;
    for line in lines {
        let mut rest = line;
        let mut word = || {
            let (word, more) = rest.trim_start().split_once(' ').expect("columns");
            rest = more;
            word
        };
        let hits: u64 = word().parse().expect("a count");
        let [total, self_, _average, min, max] = [(); 5].map(|()| micros(word()));
        let told = json.table[rest.trim()];
        assert_eq!(hits, told.calls, "{line}");
        assert!(min <= max && max <= total && total <= told.total, "{line}");
        own += self_;
        seen += 1;
    }
    assert_eq!(seen, json.table.len());
    let all: u64 = json.table.values().map(|told| told.own).sum();
    assert!(0 < own && own <= all, "{own} of {all}");
}

/// `uftrace report` counts the same.
fn is_reported(report: &str, json: &Tree) {
    let rows = report.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, calls, ..] = words[..] else {
            return None;
        };
        let calls = calls.parse::<u64>().ok()?;
        let name = line.split_once(&format!(" {calls}  "))?.1;
        Some((name.to_owned(), calls))
    });
    let rows: BTreeMap<String, u64> = rows.collect();
    assert_eq!(rows, calls(&json.table), "{report}");
}

/// `uftrace replay` shows the same calls of each task in that order.
fn is_replayed(replay: &str, json: &Tree) {
    let mut tasks: BTreeMap<u64, Vec<(String, usize)>> = BTreeMap::new();
    for line in replay.lines().filter(|line| !line.starts_with('#')) {
        let Some((columns, call)) = line.split_once('|') else {
            continue;
        };
        let task = columns.split(['[', ']']).nth(1).expect("a task");
        let task = task.trim().parse().expect("a number");
        let text = call.trim_start();
        if let Some((name, _)) = text.rsplit_once("()") {
            let depth = (call.len() - text.len() - 1) / 2;
            tasks
                .entry(task)
                .or_default()
                .push((name.to_owned(), depth));
        }
    }
    for (task, calls) in &json.calls {
        let calls = calls.iter().map(|call| (call.name.clone(), call.depth));
        let calls: Vec<(String, usize)> = calls.collect();
        let shown = tasks.remove(task).unwrap_or_default();
        is_same(&shown, &calls, &format!("replay: task {task}"));
    }
    assert!(tasks.is_empty(), "{tasks:?}");
}

/// The calls that the nodes of `uftrace graph` count, by function.
fn graphed(graph: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in graph.lines() {
        let Some((_, node)) = line.split_once(" : ") else {
            continue;
        };
        // The program itself stands at the margin.
        let inner = node.strip_prefix(' ').map(str::trim_start);
        let inner = inner.map(|node| node.trim_start_matches([' ', '|', '+', '-']));
        let counted = inner.and_then(|node| node.strip_prefix('(')?.split_once(") "));
        if let Some((count, name)) = counted {
            *calls.entry(name.to_owned()).or_default() += count.parse::<u64>().expect("a count");
        }
    }
    calls
}

pub fn what_small_buffers_lost_is_told(machine: &Machine) {
    for records in [0, 1, 64] {
        let line = format!(
            "test=counted trace={COUNTED} rounds=1 tasks=yes records={records} format={FORMATS}"
        );
        let Some(run) = machine.boot(&line, FINE) else {
            return;
        };
        run.balanced();
        let calls: u64 = counted(&run).values().sum();
        let outputs = read(machine, &run, "lost");
        let lost = outputs.json.lost;
        assert_eq!(outputs.lost_in_graph, lost, "{records}");
        assert_eq!(outputs.lost_in_steps, lost, "{records}");
        is_folded(&outputs.folded, &outputs.json);
        if let Some(fxt) = &outputs.fxt {
            tells(fxt, &outputs.json, "fxt");
        }
        if let Some(uftrace) = &outputs.uftrace {
            assert!(uftrace.records.contains("lost"), "{}", uftrace.records);
        }
        let told = outputs.json.stacks.len() as u64;
        match records {
            // All begins and ends. In 2³⁷ ticks a CPU notes once how late it
            // is, which is lost as well.
            0 => assert!(told == 0 && (2 * calls..2 * calls + 4).contains(&lost)),
            // On each CPU, what was written before the newest.
            _ => {
                let overwritten = written(run.line("json ends: "))
                    .into_iter()
                    .map(|written| written.saturating_sub(records));
                assert_eq!(overwritten.sum::<u64>(), lost, "{records}");
                assert!(told <= 2 * records, "{records}");
            }
        }
    }
}

/// How many records each CPU has written.
fn written(ends: &str) -> Vec<u64> {
    let counts = ends.split(['[', ']']).nth(1).expect("a list");
    let counts = counts.split(", ").map(str::parse);
    counts.collect::<Result<_, _>>().expect("counts")
}

pub fn the_graph_folds_into_stacks(machine: &Machine) {
    let Some(run) = machine.boot("trace=*FileSystem* format=folded sleep=out", FINE) else {
        return;
    };
    run.balanced();
    let (folded, _) = section(&run, "folded")
        .rsplit_once("folded: ")
        .expect("a summary");
    assert!(folded.lines().count() > 0);
    readers::folded(folded);
    for line in folded.lines() {
        let (stack, _) = line.rsplit_once(' ').expect("a figure");
        let mut names = stack.split(';');
        let task = names.next().expect("a task");
        assert!(["main", "tree", "lookup"].contains(&task), "{line}");
        assert!(names.all(|name| name.contains("FileSystem")), "{line}");
    }
}

pub fn the_profile_counts_calls(machine: &Machine) {
    let Some(run) = machine.boot("trace=* format=profile rounds=20", FINE) else {
        return;
    };
    run.balanced();
    let mut lines = section(&run, "profile").lines();
    let row = lines.find(|line| line.ends_with(" kernel::work::logistic"));
    let hits = row.and_then(|row| row.split_whitespace().next());
    // 20 rounds of 5,000 calls.
    assert_eq!(hits, Some("100000"), "{row:?}");
}
