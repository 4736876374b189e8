//! A trace as a directory that `uftrace` reads: a file of records for each
//! task, and beside them the session, the map and the symbols.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

#[path = "steps.rs"]
#[allow(dead_code, reason = "some send them, some receive them")]
pub mod steps;

pub use steps::Step;

/// A program whose functions were traced.
pub struct Program<'a> {
    /// The name of its file.
    pub path: &'a str,
    /// Where it lies.
    pub range: std::ops::Range<usize>,
    /// Its functions by ascending address, with the size of each and its name.
    pub functions: &'a mut dyn Iterator<Item = (usize, usize, String)>,
}

/// The names that uftrace gives to what it finds in a directory.
const SESSION: &str = "f09a9f09a9f09a9f";

/// A record's kind.
#[derive(Clone, Copy)]
enum Kind {
    Entry = 0,
    Exit = 1,
    Lost = 2,
}

/// One task's file.
#[derive(Default)]
struct Task {
    bytes: Vec<u8>,
    depth: usize,
    begun: Option<u64>,
}

impl Task {
    fn record(&mut self, time: u64, kind: Kind, depth: usize, value: usize) {
        self.begun.get_or_insert(time);
        // Deeper calls than ten bits tell are shown at the last depth.
        let depth = depth.min(0x3ff) as u64;
        let value = value as u64 & 0xffff_ffff_ffff;
        let word = kind as u64 | 5 << 3 | depth << 6 | value << 16;
        self.bytes.extend(time.to_le_bytes());
        self.bytes.extend(word.to_le_bytes());
    }

    fn enter(&mut self, time: u64, func: usize) {
        self.record(time, Kind::Entry, self.depth, func);
        self.depth += 1;
    }

    fn leave(&mut self, time: u64, func: usize) {
        self.depth = self.depth.saturating_sub(1);
        self.record(time, Kind::Exit, self.depth, func);
    }
}

/// Writes `steps` to `directory`, which is made if need be.
///
/// Records that were lost are told before a task's next outermost call, or at
/// the end.
pub fn write(
    directory: &Path,
    steps: impl Iterator<Item = Step>,
    program: Program<'_>,
) -> io::Result<()> {
    let mut tasks: BTreeMap<usize, Task> = BTreeMap::new();
    let (mut lost, mut last) = (0, None);
    for step in steps {
        match step {
            Step::Lost { records } => lost += records,
            Step::Enter { task, time, func } => {
                let task = tasks.entry(task).or_default();
                if lost > 0 && task.depth == 0 {
                    task.record(time, Kind::Lost, 0, std::mem::take(&mut lost));
                }
                task.enter(time, func);
            }
            Step::Leave { task, time, func } => {
                last = Some((task, time));
                tasks.entry(task).or_default().leave(time, func);
            }
        }
    }
    if let Some((task, time)) = last.filter(|_| lost > 0) {
        let task = tasks.entry(task).or_default();
        task.record(time, Kind::Lost, 0, lost);
    }
    fs::create_dir_all(directory)?;
    for (number, task) in &tasks {
        fs::write(directory.join(format!("{number}.dat")), &task.bytes)?;
    }
    fs::write(directory.join("info"), info(&tasks, program.path))?;
    fs::write(directory.join("task.txt"), session(&tasks, program.path))?;
    let map = format!(
        "{:x}-{:x} r-xp 00000000 00:00 0 {}\n\
         7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n",
        program.range.start, program.range.end, program.path
    );
    fs::write(directory.join(format!("sid-{SESSION}.map")), map)?;
    let name = Path::new(program.path).file_name().unwrap_or_default();
    let symbols = directory.join(format!("{}.sym", name.display()));
    fs::write(symbols, symbol_table(program)?)
}

/// A header of forty bytes, and lines of text.
fn info(tasks: &BTreeMap<usize, Task>, path: &str) -> Vec<u8> {
    const TASK_SESSION: u64 = 1 << 1;
    const RELATIVE_SYMBOLS: u64 = 1 << 5;
    const MAX_STACK: u64 = 1 << 6;
    const EXE_NAME: u64 = 1 << 0;
    const COMMAND_LINE: u64 = 1 << 3;
    const TASK_INFO: u64 = 1 << 7;

    let mut info = Vec::new();
    info.extend(b"Ftrace!\0");
    info.extend(4_u32.to_le_bytes());
    info.extend(40_u16.to_le_bytes());
    // Little-endian, 64 bits.
    info.extend([1, 2]);
    info.extend((TASK_SESSION | RELATIVE_SYMBOLS | MAX_STACK).to_le_bytes());
    info.extend((EXE_NAME | COMMAND_LINE | TASK_INFO).to_le_bytes());
    info.extend(1024_u16.to_le_bytes());
    info.resize(40, 0);
    let numbers: Vec<String> = tasks.keys().map(usize::to_string).collect();
    info.extend(
        format!(
            "exename:{path}\ncmdline:{path}\ntaskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}\n",
            numbers.len(),
            numbers.join(",")
        )
        .into_bytes(),
    );
    info
}

fn session(tasks: &BTreeMap<usize, Task>, path: &str) -> String {
    let time = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let first = tasks.values().filter_map(|task| task.begun).min();
    let first = time(first.unwrap_or(0));
    let process = tasks.keys().next().copied().unwrap_or(1);
    let mut text =
        format!("SESS timestamp={first} pid={process} sid={SESSION} exename=\"{path}\"\n");
    for (number, task) in tasks {
        let begun = time(task.begun.unwrap_or(0));
        text += &format!("TASK timestamp={begun} tid={number} pid={process}\n");
    }
    text
}

fn symbol_table(program: Program<'_>) -> io::Result<Vec<u8>> {
    let mut table = Vec::new();
    writeln!(table, "# path name: {}", program.path)?;
    let mut end = 0;
    for (start, size, name) in program.functions {
        let start = start.saturating_sub(program.range.start);
        // One line each.
        let name = name.replace(char::is_control, " ");
        writeln!(table, "{start:016x} T {name}")?;
        end = start + size.max(1);
    }
    writeln!(table, "{end:016x} ? __sym_end")?;
    Ok(table)
}
