//! What was traced, printed in each of the formats.

use core::array;
use core::fmt::{self, Write};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use fgraph::tracer::profile::{Order, Summary};
use fgraph::tracer::{
    self, Buffer, ByteSink, Cursor, Graph, Open, Print, Profile, Scale, Shown, Symbol, Symbols,
    Trace,
};

use super::lines::Lines;
use super::platform::Kernel;
use super::steps::Step;
use super::tracers;
use crate::cpu::MAX_CPUS;
use crate::options::{Format, Options};
use crate::sync::SpinLock;
use crate::task::{Program, Task};
use crate::{arch, console, println, symbols};

/// Prints what was traced.
pub(super) fn print(options: &Options) {
    for format in options.formats() {
        let printed = match (format, tracers::graph(), tracers::profile()) {
            (Format::Profile, _, Some(profile)) => print_profile(profile),
            (_, Some(graph), _) => print_graph(format, graph, options.tasks),
            _ => Ok(()),
        };
        printed.expect("the port takes all, and the reader has memory");
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

/// Each format reads the same records.
fn print_graph(format: Format, graph: &Graph<Kernel>, tasks: bool) -> fmt::Result {
    let mut reader = READER.lock();
    let Reader { cursors, open } = &mut *reader;
    let trace = Trace::whole(graph.buffers(), scale(), cursors, open);
    let mut trace = trace.map_err(|_| fmt::Error)?;
    let name = format.name();
    println!("{name}:");
    match format {
        Format::Graph => Print::new(&Names)
            .shown(shown(tasks))
            .trace(&mut Serial, &mut trace)?,
        Format::Json => tracer::json(&mut Serial, &mut trace, &Names)?,
        Format::Folded => {
            let wrote = tracer::folded(&mut Serial, &mut trace, &Names)?;
            println!("folded: {wrote:?}");
        }
        Format::Fxt => {
            let mut lines = Lines::new(Serial, name);
            tracer::fxt(&mut lines, &mut trace, &Names)?;
            return lines.end();
        }
        Format::Uftrace => {
            let mut lines = Lines::new(Serial, name);
            for step in trace.flat_map(|event| Step::of(&event)) {
                for word in step.to_words() {
                    lines.write(&word.to_le_bytes())?;
                }
            }
            return lines.end();
        }
        Format::Profile => return Ok(()),
    }
    let mut buffers = graph.buffers().iter();
    let written: [usize; MAX_CPUS] = array::from_fn(|_| buffers.next().map_or(0, Buffer::written));
    println!(
        "{name} ends: {written:?} records written, {} calls without a place, {:?}",
        trace.untracked(),
        graph.counters(),
    );
    Ok(())
}

fn shown(tasks: bool) -> Shown {
    let shown = Shown::default() | Shown::TAIL;
    if tasks { shown | Shown::TASK } else { shown }
}

fn print_profile(profile: &Profile<Kernel>) -> fmt::Result {
    let mut scratch = [Summary::default(); 40];
    let report = profile.report(Order::Own, &mut scratch);
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
        self.write_fmt(format_args!("{text}"))
    }

    fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> fmt::Result {
        console::write(text);
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
