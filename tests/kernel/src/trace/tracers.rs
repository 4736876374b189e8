//! The tracers that the command line can choose, and what they print.

use core::fmt::{self, Write};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use fgraph::CallbackId;
use fgraph::tracer::filter::{Cpus, Depth, Filtered};
use fgraph::tracer::profile::{Order, Row, Summary};
use fgraph::tracer::{
    Buffer, Cursor, Full, Graph, Open, Print, Profile, Record, Recorded, Scale, Shown, Symbol,
    Symbols, Trace,
};

use super::follow;
use super::platform::Kernel;
use crate::cpu::MAX_CPUS;
use crate::options::Options;
use crate::sync::SpinLock;
use crate::task::{Program, Task};
use crate::{arch, console, println, symbols};

/// Records of one CPU; the newest are kept.
const RECORDS: usize = 2048;

static RECORD: [[Record; RECORDS]; MAX_CPUS] =
    [const { [const { Record::new() }; RECORDS] }; MAX_CPUS];
static BUFFERS: [Buffer; MAX_CPUS] = [
    Buffer::new(&RECORD[0], Full::Overwrite),
    Buffer::new(&RECORD[1], Full::Overwrite),
];
static ROWS: [Row; 512] = [const { Row::new() }; 512];

/// The CPUs whose calls are wanted.
static WANTED: Cpus<Kernel> = Cpus::new();

/// A tracer behind the filters of the command line.
type Limited<C> = Depth<Filtered<C, &'static Cpus<Kernel>>>;

const fn limited<C>(tracer: C) -> Limited<C> {
    Depth::new(Filtered::new(tracer, &WANTED), usize::MAX)
}

static GRAPH: Limited<Graph<Kernel>> = limited(Graph::new(&BUFFERS));
static AWAKE: Limited<Graph<Kernel>> =
    limited(Graph::new(&BUFFERS).recorded(Recorded::WITHOUT_SLEEP));
static PROFILE: Limited<Profile<Kernel>> = limited(Profile::new(&ROWS));
static PROFILE_AWAKE: Limited<Profile<Kernel>> = limited(Profile::new(&ROWS).without_sleep());

/// Starts the tracer that the command line asks for.
pub(super) fn start(options: &Options, patterns: &str) -> Option<CallbackId> {
    for cpu in 0..MAX_CPUS {
        WANTED.set(cpu, options.cpu.is_none_or(|only| only == cpu));
    }
    match (options.tracer, options.sleep) {
        ("graph", true) => Some(limit(&GRAPH, options, patterns)),
        ("graph", false) => Some(limit(&AWAKE, options, patterns)),
        ("profile", true) => Some(limit(&PROFILE, options, patterns)),
        ("profile", false) => Some(limit(&PROFILE_AWAKE, options, patterns)),
        _ => None,
    }
}

fn limit<C>(tracer: &'static Limited<C>, options: &Options, patterns: &str) -> CallbackId
where
    Limited<C>: fgraph::Callback,
{
    tracer.set_limit(options.depth);
    follow(tracer, patterns)
}

/// Prints what it has traced.
pub(super) fn print(options: &Options) {
    let printed = match options.tracer {
        "graph" => print_graph(options),
        "profile" => print_profile(options),
        _ => Ok(()),
    };
    if printed.is_err() {
        println!("no such format: {}", options.format);
    }
}

/// What a reader of the graph needs.
struct Reader {
    cursors: [Cursor; MAX_CPUS],
    open: [Open; 512],
}

static READER: SpinLock<Reader> = SpinLock::new(Reader {
    cursors: [const { Cursor::new() }; MAX_CPUS],
    open: [const { Open::new() }; 512],
});

fn print_graph(options: &Options) -> fmt::Result {
    let mut reader = READER.lock();
    let Reader { cursors, open } = &mut *reader;
    let mut trace = Trace::whole(&BUFFERS, scale(), cursors, open).map_err(|_| fmt::Error)?;
    println!("graph:");
    match options.format {
        "text" => Print::new(&Names)
            .shown(Shown::default() | Shown::TAIL)
            .trace(&mut Serial, &mut trace)?,
        "json" => fgraph::tracer::json(&mut Serial, &mut trace, &Names)?,
        "folded" => {
            let wrote = fgraph::tracer::folded(&mut Serial, &mut trace, &Names)?;
            println!("folded: {wrote:?}");
        }
        _ => return Err(fmt::Error),
    }
    let graph = if options.sleep { &GRAPH } else { &AWAKE };
    println!(
        "graph ends: {} and {} records written, {} calls without a place, {:?}",
        BUFFERS[0].written(),
        BUFFERS[1].written(),
        trace.untracked(),
        graph.callback().callback().counters(),
    );
    Ok(())
}

fn print_profile(options: &Options) -> fmt::Result {
    let profile = if options.sleep {
        &PROFILE
    } else {
        &PROFILE_AWAKE
    };
    let mut scratch = [Summary::default(); 40];
    let report = profile
        .callback()
        .callback()
        .report(Order::Own, &mut scratch);
    println!("profile:");
    write!(Serial, "{}", report.symbols(Names).scale(scale()))?;
    println!("profile ends");
    Ok(())
}

fn scale() -> Scale {
    const TICKS: u64 = 1 << 32;
    Scale::new(TICKS, arch::ticks_to_ns(TICKS)).unwrap_or(Scale::NANOSECONDS)
}

/// The serial port, for a text in parts.
struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        console::write(format_args!("{text}"));
        Ok(())
    }
}

/// Names of functions and tasks.
#[derive(Clone, Copy)]
struct Names;

impl Symbols for Names {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        let symbols::Symbol { start, name } = symbols::find(address)?;
        Some(Symbol { name, start })
    }

    fn task(&self, task: usize) -> Option<&str> {
        let named = &TASKS[task % TASKS.len()];
        let program = named.program.load(Ordering::Relaxed);
        if named.task.load(Ordering::Relaxed) as usize != task {
            return None;
        }
        // SAFETY: null, or a static program.
        unsafe { program.as_ref() }.map(|program| program.name)
    }
}

/// The last tasks, for their names: when a graph is printed they have ended.
static TASKS: [Named; 64] = [const {
    Named {
        task: AtomicU32::new(u32::MAX),
        program: AtomicPtr::new(ptr::null_mut()),
    }
}; 64];

struct Named {
    task: AtomicU32,
    program: AtomicPtr<Program>,
}

/// Keeps the name of a task that begins.
pub(super) fn keep_name(task: &Task) {
    let id = task.id();
    let named = &TASKS[id as usize % TASKS.len()];
    named.program.store(
        task.program()
            .map_or(ptr::null_mut(), |program| ptr::from_ref(program).cast_mut()),
        Ordering::Relaxed,
    );
    named.task.store(id, Ordering::Relaxed);
}
