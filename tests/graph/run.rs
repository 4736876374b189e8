//! The example itself: sets up the tracer, runs the work, shows what happened.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use fgraph::ret_stack::Counters;
use fgraph::tracer::profile::{Order, Row, Summary};
use fgraph::tracer::{Buffer, Event, Full, Graph, Profile, Record, Scale};
use fgraph::{Callback, CallbackId, Entry, Exit, Platform};

use crate::elf::{Elf, Short};
use crate::host::{self, FGRAPH, Host};
use crate::options::{self, Asked, Format, Options};
use crate::{output, uftrace, work};

/// Threads that work.
const TASKS: usize = 2;

/// Records of each CPU's buffer: 4 MiB.
const RECORDS: usize = 1 << 18;

/// Functions that a profile can tell apart.
const ROWS: usize = 4096;

/// Words of each task's shadow stack.
const WORDS: usize = 4096;

/// Lines of a graph that fit a screen or two.
const LINES: usize = 70;

/// Another callback that follows the same functions.
struct Count(AtomicUsize);

impl Callback for Count {
    type Frame = ();

    fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

pub fn main() -> ExitCode {
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(Asked::Trace(options)) => options,
        Ok(Asked::Help) => {
            print!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("graph: {error}\nTry `--help`.");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has seen enough.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("graph: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// What was traced.
struct Run {
    graph: &'static Graph<Host>,
    profile: Option<&'static Profile<Host>>,
    others: Vec<&'static Count>,
    followed: usize,
    missed: u32,
    stacks: Vec<Counters>,
    scale: Scale,
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut elf = Elf::of_this_program()?;
    let run = trace(options, &mut elf)?;
    let mut screen = io::stdout().lock();
    if run.followed == 0 {
        writeln!(
            screen,
            "no function matches `{}`: nothing was traced\n",
            options.filter
        )?;
    } else {
        show(options, &run, &elf, &mut screen)?;
    }
    show_counters(&run, &mut screen)?;
    Ok(screen.flush()?)
}

/// Traces the work of all tasks.
fn trace(options: &Options, elf: &mut Elf) -> Result<Run, Box<dyn Error>> {
    let patch = host::init_patch();
    let graph: &'static Graph<Host> =
        Box::leak(Box::new(Graph::new(buffers()).max_depth(options.depth)));
    let mut ids = Vec::new();
    let mut profile = None;
    if options.format == Format::Profile {
        let rows: Vec<Row<32>> = (0..ROWS).map(|_| Row::new()).collect();
        let new: &'static Profile<Host> = Box::leak(Box::new(Profile::new(rows.leak())));
        ids.push(FGRAPH.register(new)?);
        profile = Some(new);
    } else {
        ids.push(FGRAPH.register(graph)?);
    }
    let mut others: Vec<&'static Count> = Vec::new();
    for _ in 1..options.callbacks {
        others.push(Box::leak(Box::new(Count(AtomicUsize::new(0)))));
        let count = others.last().copied().ok_or("no callback")?;
        ids.push(FGRAPH.register(count)?);
    }

    let wanted: std::collections::HashSet<usize> = elf
        .functions()
        .iter()
        .filter(|function| options::matches(&options.filter, &function.name))
        .map(|function| function.start)
        .collect();
    let mut followed = 0;
    for &id in &ids {
        followed = patch.enable(id, |func| wanted.contains(&func))?;
    }
    let (begun, begun_ticks) = (host::nanoseconds(), Host::clock());
    let stacks = work_in_tasks(options.rounds, elf)?;
    for &id in &ids {
        patch.disable(id, |_| true)?;
    }
    // A rate over too short a time would not be one.
    let scale = match host::nanoseconds() - begun {
        ..20_000_000 => {
            let (ns, ticks) = host::clock_rate();
            Scale::new(ticks, ns)
        }
        ns => Scale::new(Host::clock() - begun_ticks, ns),
    };
    let missed = ids.iter().map(|&id: &CallbackId| FGRAPH.missed(id)).sum();
    for id in ids {
        FGRAPH.unregister(id)?;
    }
    Ok(Run {
        graph,
        profile,
        others,
        followed,
        missed,
        stacks,
        scale: scale.ok_or("the clock stands still")?,
    })
}

/// One for each CPU that this machine may have.
fn buffers() -> &'static [Buffer] {
    // SAFETY: it has no preconditions.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let cpus = usize::try_from(cpus).unwrap_or(1).max(1);
    let buffer = |_| {
        let records: Vec<Record> = (0..RECORDS).map(|_| Record::new()).collect();
        Buffer::new(records.leak(), Full::Overwrite)
    };
    (0..cpus).map(buffer).collect::<Vec<_>>().leak()
}

/// Runs the work in threads; gives back what their shadow stacks could not do.
fn work_in_tasks(rounds: usize, elf: &mut Elf) -> Result<Vec<Counters>, Box<dyn Error>> {
    let work = move |number: usize| {
        let stack = host::attach(WORDS);
        let mut bytes = 0;
        for round in 0..rounds {
            bytes += work::round_trip(&work::document(number + round)).map_or(0, |text| text.len());
        }
        let counters = stack.counters();
        host::exit();
        (Host::task(), counters, bytes)
    };
    let threads: Vec<_> = (0..TASKS)
        .map(|number| std::thread::spawn(move || work(number + 1)))
        .collect();
    let mut counters = Vec::new();
    for (number, thread) in threads.into_iter().enumerate() {
        let (task, counted, bytes) = thread.join().map_err(|_| "a task panicked")?;
        if bytes != work::bytes_written(number + 1, rounds) {
            return Err("the work came out differently while it was traced".into());
        }
        elf.name_task(task, "json");
        counters.push(counted);
    }
    Ok(counters)
}

fn show(
    options: &Options,
    run: &Run,
    elf: &Elf,
    screen: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let buffers = run.graph.buffers();
    let mut text = Vec::new();
    match (options.format, &options.output) {
        (Format::Uftrace, Some(directory)) => {
            output::with_trace(buffers, run.scale, |trace| {
                let steps = trace.flat_map(|event| uftrace::Step::of(&event));
                uftrace::write(directory, steps, elf.program(&mut elf.named_functions()))
            })??;
            return Ok(writeln!(screen, "written to {}\n", directory.display())?);
        }
        (Format::Profile, _) => {
            let profile = run.profile.ok_or("there is no profile")?;
            let mut scratch = vec![Summary::default(); ROWS];
            let report = profile.report(Order::Own, &mut scratch);
            write!(text, "{}", report.symbols(elf).scale(run.scale))?;
        }
        (format, _) => output::with_trace(buffers, run.scale, |trace| match format {
            Format::Folded => output::write_folded(&mut text, trace, elf),
            Format::Json => output::write_json(&mut text, trace, elf),
            Format::Fxt => output::write_fxt(&mut text, trace, elf),
            _ => output::write_graph(&mut text, trace, &Short::of(elf)),
        })??,
    }
    if let Some(path) = &options.output {
        std::fs::write(path, &text)
            .map_err(|error| format!("can not write {}: {error}", path.display()))?;
        return Ok(writeln!(screen, "written to {}\n", path.display())?);
    }
    // A program reads the others; all of it has to be there.
    let whole = !matches!(options.format, Format::Graph | Format::Profile);
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let shown = if whole {
        lines.len()
    } else {
        LINES.min(lines.len())
    };
    for line in &lines[..shown] {
        screen.write_all(line)?;
    }
    if shown < lines.len() {
        let more = lines.len() - shown;
        writeln!(screen, "… {more} more lines; `--output PATH` writes all")?;
    }
    Ok(writeln!(screen)?)
}

fn show_counters(run: &Run, screen: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let (mut calls, mut lost, mut unfinished) = (0, 0, 0);
    output::with_trace(run.graph.buffers(), run.scale, |trace| {
        for event in trace {
            match event {
                Event::Leaf(..) => calls += 1,
                Event::End(call, _) if call.begin.is_some() => calls += 1,
                Event::End(..) => unfinished += 1,
                Event::Lost { records, .. } => lost += records,
                Event::Begin(_) => {}
            }
        }
    })?;
    let records: usize = run.graph.buffers().iter().map(Buffer::written).sum();
    let sum = |count: fn(&Counters) -> u32| run.stacks.iter().map(count).sum::<u32>();
    let graph = run.graph.counters();
    if let Some(profile) = run.profile {
        calls = profile
            .summaries()
            .map(|summary| summary.hits as usize)
            .sum();
    }
    let mut line = |name: &str, value: usize| writeln!(screen, "{name:<32}{value:>10}");
    line("functions followed", run.followed)?;
    line("calls", calls)?;
    if run.profile.is_none() {
        line("bytes recorded", records * size_of::<Record>())?;
        line("records lost", lost)?;
        line("calls without a known begin", unfinished)?;
        line("records of CPUs without buffer", graph.unplaced as usize)?;
        line("calls with the clock backwards", graph.backwards as usize)?;
    }
    line("missed: shadow stack full", run.missed as usize)?;
    line(
        "untraced: inside the tracer",
        sum(|c| c.recursions) as usize,
    )?;
    line("unwound", sum(|c| c.unwound) as usize)?;
    line("stray returns", sum(|c| c.strays) as usize)?;
    for (number, count) in run.others.iter().enumerate() {
        let name = format!("calls seen by callback {}", number + 1);
        line(&name, count.0.load(Ordering::Relaxed))?;
    }
    Ok(())
}
