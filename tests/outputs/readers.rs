//! Readers of the outputs: each format's own, brought to one shape.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

/// What an output tells of the functions of one name.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Told {
    pub calls: u64,
    /// Nanoseconds, with all that was called.
    pub total: u64,
    /// Nanoseconds, without.
    pub own: u64,
}

/// By name.
pub type Table = BTreeMap<String, Told>;

/// A call that an output tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Called {
    pub name: String,
    /// How many calls enclose it.
    pub depth: usize,
    /// Nanoseconds.
    pub total: u64,
}

/// What an output tells that has begins and ends.
#[derive(Default, Debug)]
pub struct Tree {
    pub table: Table,
    /// The calls of each task, in the order in which they begin.
    pub calls: BTreeMap<u64, Vec<Called>>,
    /// The task of each call, what encloses it and itself, and its own
    /// nanoseconds, in the order in which they end.
    pub stacks: Vec<(u64, Vec<String>, u64)>,
    /// The names of tasks.
    pub tasks: BTreeMap<u64, String>,
    /// Records that are told as lost.
    pub lost: u64,
}

impl Tree {
    /// The stacks, as folded ones.
    pub fn folded(&self) -> Vec<String> {
        let fold = |(task, stack, own): &(u64, Vec<String>, u64)| {
            let root = self.tasks.get(task).map_or("", String::as_str);
            format!("{root};{} {own}", stack.join(";"))
        };
        self.stacks.iter().map(fold).collect()
    }
}

/// Builds a tree from begins and ends, and checks that they nest.
#[derive(Default)]
pub struct Nest {
    tree: Tree,
    open: BTreeMap<u64, Vec<Open>>,
    last: BTreeMap<u64, u64>,
}

/// A call that has begun.
#[derive(Debug)]
struct Open {
    name: String,
    begin: u64,
    inner: u64,
    /// Its place among its task's calls.
    place: usize,
}

impl Nest {
    fn passes(&mut self, task: u64, time: u64) {
        let last = self.last.entry(task).or_default();
        assert!(
            *last <= time,
            "time of task {task} goes from {last} back to {time}"
        );
        *last = time;
    }

    pub fn begin(&mut self, task: u64, time: u64, name: &str) {
        self.passes(task, time);
        let open = self.open.entry(task).or_default();
        let calls = self.tree.calls.entry(task).or_default();
        let called = Called {
            name: name.to_owned(),
            depth: open.len(),
            total: 0,
        };
        open.push(Open {
            name: name.to_owned(),
            begin: time,
            inner: 0,
            place: calls.len(),
        });
        calls.push(called);
    }

    pub fn end(&mut self, task: u64, time: u64, name: &str) {
        self.passes(task, time);
        let open = self.open.entry(task).or_default();
        let stack = open.iter().map(|open| open.name.clone()).collect();
        let ended = open.pop().expect("an end has a begin");
        assert_eq!(ended.name, name, "an end is that of the innermost begin");
        let total = time - ended.begin;
        if let Some(Open { inner, .. }) = open.last_mut() {
            *inner += total;
        }
        let own = total - ended.inner;
        self.tree.stacks.push((task, stack, own));
        let calls = self.tree.calls.entry(task).or_default();
        calls[ended.place].total = total;
        let told = self.tree.table.entry(ended.name).or_default();
        told.calls += 1;
        told.total += total;
        told.own += own;
    }

    pub fn finish(self) -> Tree {
        for (task, open) in &self.open {
            assert!(
                open.is_empty(),
                "begins of task {task} have no end: {open:?}"
            );
        }
        self.tree
    }
}

/// Microseconds with decimals, as nanoseconds: from the text, for a float has
/// not the digits.
fn nanoseconds(micros: &str) -> u64 {
    let (whole, part) = micros.split_once('.').unwrap_or((micros, "0"));
    let part: u64 = format!("{part:0<3}").parse().expect("three decimals");
    whole.parse::<u64>().expect("a number") * 1000 + part
}

/// The text of a field that holds a number.
fn number<'a>(line: &'a str, field: &str) -> &'a str {
    let at = line
        .find(field)
        .unwrap_or_else(|| panic!("{field} in {line}"));
    let rest = &line[at + field.len()..];
    let end = rest.find([',', '}']).expect("something follows");
    rest[..end].trim()
}

/// Reads Chrome's JSON.
pub fn json(text: &str) -> Tree {
    let whole: Value = serde_json::from_str(text).expect("it is JSON");
    // Either kind: an array, or an object that holds it.
    let events = whole.get("traceEvents").unwrap_or(&whole);
    let events = events.as_array().expect("an array of events");
    let mut nest = Nest::default();
    // One event a line, in the same order.
    let lines = text.lines().filter(|line| line.contains("\"ph\":"));
    assert_eq!(lines.clone().count(), events.len());
    for (line, event) in lines.zip(events) {
        let name = event["name"].as_str().unwrap_or("");
        // A process stands for its first thread.
        let task = event["tid"].as_u64().or(event["pid"].as_u64());
        let task = task.unwrap_or(0);
        match event["ph"].as_str().expect("a phase") {
            "B" => nest.begin(task, nanoseconds(number(line, "\"ts\":")), name),
            "E" => nest.end(task, nanoseconds(number(line, "\"ts\":")), name),
            "i" if name == "lost" => {
                nest.tree.lost += event["args"]["records"].as_u64().expect("a number");
            }
            "M" if name == "thread_name" => {
                let name = event["args"]["name"].as_str().expect("a name");
                nest.tree.tasks.insert(task, name.to_owned());
            }
            _ => {}
        }
    }
    nest.finish()
}

/// The warnings of the library that draws flame graphs.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let warning = record.args().to_string();
            WARNINGS.lock().expect("no panic holds it").push(warning);
        }
    }

    fn flush(&self) {}
}

/// Reads folded stacks, after the library that draws them has, without a
/// warning. The table has no totals.
pub fn folded(text: &str) -> (Table, String) {
    let _ = log::set_logger(&Warnings);
    log::set_max_level(log::LevelFilter::Warn);
    let mut picture = Vec::new();
    let mut options = inferno::flamegraph::Options::default();
    // It draws no picture of no time at all.
    if !text.lines().all(|line| line.ends_with(" 0")) {
        let drawn = inferno::flamegraph::from_lines(&mut options, text.lines(), &mut picture);
        let warnings = std::mem::take(&mut *WARNINGS.lock().expect("no panic holds it"));
        assert!(warnings.is_empty(), "{warnings:?}");
        drawn.expect("it draws");
    }
    let mut table = Table::new();
    for line in text.lines() {
        let (stack, own) = line.rsplit_once(' ').expect("a number ends the line");
        let (_, name) = stack.rsplit_once(';').expect("a task is the root");
        let told = table.entry(name.to_owned()).or_default();
        told.calls += 1;
        told.own += own.parse::<u64>().expect("a number");
    }
    (table, String::from_utf8(picture).expect("text"))
}

/// Reads a function graph: calls and, where it shows all digits, durations.
/// Gives back how many records are told as lost, too.
pub fn graph(text: &str) -> (Vec<(String, usize)>, u64) {
    let (mut calls, mut lost, mut bars) = (Vec::new(), 0, None);
    let mut open: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some((_, rest)) = line.split_once(") LOST ") {
            lost += rest
                .split(' ')
                .next()
                .unwrap_or("")
                .parse::<u64>()
                .expect("a count");
            continue;
        }
        let Some((columns, rest)) = line.split_once('|') else {
            continue;
        };
        assert_eq!(
            *bars.get_or_insert(columns.len()),
            columns.len(),
            "aligned: {line}"
        );
        let depth = (rest.len() - rest.trim_start().len()) / 2;
        let (rest, task) = (rest.trim_start(), columns.to_owned());
        if rest.starts_with('}') {
            continue;
        }
        let name = rest.rsplit_once("()").map_or(rest, |(name, _)| name);
        open.entry(task).or_default().push(depth);
        calls.push((name.to_owned(), depth));
    }
    (calls, lost)
}

/// Whether a reader that is not part of this repository has to be there.
fn required(reader: &str) -> bool {
    std::env::var("FGRAPH_REQUIRE").is_ok_and(|list| list.contains(reader))
}

/// `None`: it is not installed, and may be missing.
fn installed(reader: &str, found: bool) -> Option<()> {
    assert!(found || !required(reader), "{reader} is not installed");
    if !found {
        println!("skipped: {reader} is not installed");
    }
    found.then_some(())
}

const FXT_READER: &str = r#"
import sys
from fxt.reader import parse_records
from fxt.models import DurationBeginEventRecord, DurationEndEventRecord, InstantEventRecord
from fxt.models import KernelObjectRecord
result = parse_records(open(sys.argv[1], "rb"))
assert not result.had_unexpected_eof, result.eof_error
for provider in result.records_by_provider.values():
    for record in provider.records:
        kind = {DurationBeginEventRecord: "B", DurationEndEventRecord: "E"}.get(type(record))
        if kind:
            print(kind, record.thread.thread_id, record.timestamp_ns, record.name.encode().hex())
        elif isinstance(record, InstantEventRecord) and record.name == "lost records":
            print("L", 0, record.args["count"], "")
        elif isinstance(record, KernelObjectRecord) and record.type == 2:
            print("T", record.id, 0, record.name.encode().hex())
"#;

/// Reads the Fuchsia trace format with the reader of PyPI's `fxt`.
pub fn fxt(path: &Path) -> Option<Tree> {
    let python = |arguments: &[&str]| {
        let mut command = Command::new(std::env::var("FGRAPH_PYTHON").unwrap_or("python3".into()));
        command.args(arguments).stderr(Stdio::inherit());
        command
    };
    let mut probe = python(&["-c", "import fxt.reader"]);
    let found = probe.stderr(Stdio::null()).status();
    installed("fxt", found.is_ok_and(|status| status.success()))?;
    let output = python(&["-c", FXT_READER, path.to_str().expect("text")]).output();
    let output = output.expect("python runs");
    assert!(output.status.success(), "fxt can not read it");
    let mut nest = Nest::default();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("four words");
        let kind = word();
        let (task, value) = (
            word().parse().expect("a task"),
            word().parse().expect("a number"),
        );
        let name = word();
        let bytes = (0..name.len() / 2).map(|i| u8::from_str_radix(&name[2 * i..2 * i + 2], 16));
        let name = bytes.collect::<Result<Vec<u8>, _>>().expect("hexadecimal");
        let name = String::from_utf8(name).expect("text");
        match kind {
            "B" => nest.begin(task, value, &name),
            "E" => nest.end(task, value, &name),
            "T" => _ = nest.tree.tasks.insert(task, name),
            _ => nest.tree.lost += value,
        }
    }
    Some(nest.finish())
}

/// What uftrace tells of a directory.
pub struct Uftrace {
    /// `None`: names are in it that uftrace does not escape.
    pub tree: Option<Tree>,
    /// What it reports.
    pub report: String,
    /// What it draws as a graph.
    pub graph: String,
    /// What it replays.
    pub replay: String,
    /// Each record, as it sees it.
    pub records: String,
}

/// Reads a directory with `uftrace`, which must not complain.
pub fn uftrace(directory: &Path, escaped: bool) -> Option<Uftrace> {
    let run = |arguments: &[&str]| {
        let mut command = Command::new("uftrace");
        let output = command.args(arguments).arg("-d").arg(directory).output();
        let output = output.expect("uftrace runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        // That records are lost is what it is to say.
        let expected = |line: &str| line.contains("are lost") || line.contains("may not show");
        let mut lines = complaint.lines().filter(|line| !line.is_empty());
        let fine = output.status.success() && lines.all(expected);
        assert!(fine, "uftrace {arguments:?}: {complaint}");
        assert!(!output.stdout.is_empty(), "uftrace {arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let version = Command::new("uftrace").arg("--version").output();
    installed("uftrace", version.is_ok())?;
    Some(Uftrace {
        tree: escaped.then(|| json(&run(&["dump", "--chrome"]))),
        report: run(&["report"]),
        graph: run(&["graph"]),
        replay: run(&["replay"]),
        records: run(&["dump"]),
    })
}
