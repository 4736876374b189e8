//! Few calls, made by scopes: names that need escaping, buffers that are too
//! small, calls that do not end, and many writers of one buffer.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fgraph::tracer::{
    Buffer, Cursor, Event, Full, Graph, Open, Record, Scale, Symbol, Symbols, Trace,
};
use fgraph::{Fgraph, Platform, RetStack};

use crate::{ALONE, Outputs, read_all, readers::Table, uftrace};

/// Threads as tasks on a CPU that a test chooses, whose clock counts the times
/// it was asked.
struct One;

static CPU: AtomicUsize = AtomicUsize::new(0);

static TRACER: Fgraph<One> = Fgraph::new();
static CLOCK: AtomicU64 = AtomicU64::new(1_000_000);

thread_local! {
    static STACK: (&'static RetStack, usize) = {
        static TASKS: AtomicU64 = AtomicU64::new(1);
        let stack: &'static RetStack = Box::leak(Box::default());
        let words = Box::leak(vec![0; 4096].into_boxed_slice());
        stack.attach(words, 0..0).expect("a new stack takes its words");
        (stack, TASKS.fetch_add(1, Ordering::Relaxed) as usize)
    };
}

// SAFETY: each thread has a stack of its own.
unsafe impl Platform for One {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        Some(f(STACK.with(|&(stack, _)| stack)))
    }

    fn clock() -> u64 {
        CLOCK.fetch_add(100, Ordering::Relaxed)
    }

    fn cpu() -> usize {
        CPU.load(Ordering::Relaxed)
    }

    fn task() -> usize {
        STACK.with(|&(_, task)| task)
    }
}

/// Names for addresses from that of some code on, sixteen bytes apart.
struct Names(Vec<String>);

impl Names {
    fn address(index: usize) -> usize {
        (chain as fn(usize) as usize & !0xffff) + 16 * index
    }
}

impl Symbols for Names {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        let index = address.checked_sub(Self::address(0))? / 16;
        Some(Symbol {
            name: self.0.get(index)?,
            start: Self::address(index),
        })
    }
}

/// Writes the directory for names that are known only as symbols.
pub fn write_uftrace(directory: &Path, trace: &mut Trace<'_>, symbols: &dyn Symbols) {
    let mut seen = Vec::new();
    // All that were called, by looking: a directory wants a whole table.
    let mut cursors: Vec<Cursor> = trace.buffers().iter().map(|_| Cursor::new()).collect();
    let mut open = vec![Open::new(); 4096];
    let all = Trace::whole(trace.buffers(), Scale::NANOSECONDS, &mut cursors, &mut open);
    for event in all.expect("memory") {
        if let Event::Begin(call) | Event::Leaf(call, _) = event {
            seen.extend(call.func);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    let range = seen.first().map_or(0, |first| first & !0xfff)
        ..seen.last().map_or(0x1000, |last| (last + 0x1000) & !0xfff);
    let mut functions = seen.iter().map(|&func| {
        let name = symbols
            .symbol(func)
            .map_or_else(|| format!("{func:#x}"), |s| s.name.to_owned());
        (func, 1, name)
    });
    let program = uftrace::Program {
        path: "/program",
        range,
        functions: &mut functions,
    };
    let steps = trace.flat_map(|event| uftrace::Step::of(&event));
    uftrace::write(directory, steps, program).expect("it is written");
}

/// Records what `calls` does in one buffer of `records`.
fn record(records: usize, full: Full, calls: impl FnOnce()) -> &'static Graph<One> {
    let records: Vec<Record> = (0..records).map(|_| Record::new()).collect();
    let buffer = Buffer::new(records.leak(), full);
    let graph: &'static Graph<One> = Box::leak(Box::new(Graph::new(vec![buffer].leak())));
    let id = TRACER.register(graph).expect("a slot");
    calls();
    TRACER.unregister(id).expect("it was registered");
    graph
}

/// A tree of calls: `depth` inside each other, the innermost calls two.
fn chain(depth: usize) {
    let _scope = TRACER.scope(Names::address(depth), 0);
    match depth {
        0 => {}
        1 => {
            chain(0);
            chain(0);
        }
        _ => chain(depth - 1),
    }
}

fn read(graph: &Graph<One>, names: &Names, name: &str) -> Outputs {
    read_all(graph.buffers(), Scale::NANOSECONDS, names, name)
}

fn numbered(count: usize) -> Names {
    Names((0..count).map(|i| format!("f{i}")).collect())
}

fn calls(table: &Table) -> u64 {
    table.values().map(|told| told.calls).sum()
}

#[test]
fn names_are_escaped_as_each_format_demands() {
    let _alone = ALONE.lock();
    let names = Names(vec![
        "<A as B<'_>>::f".to_owned(),
        "say \"hello\"".to_owned(),
        "one; two".to_owned(),
        "back\\slash".to_owned(),
        "süß → 絵 𝄞".to_owned(),
        "long::".repeat(84),
        "line\nline\ttab".to_owned(),
        "*/ & 'quoted' {} ()".to_owned(),
        "{".to_owned(),
        "ends like a count 12".to_owned(),
        "two counts 1.5 12".to_owned(),
        "12".to_owned(),
        String::new(),
    ]);
    let graph = record(256, Full::Overwrite, || {
        for index in 0..names.0.len() {
            let _outer = TRACER.scope(Names::address(index), 0);
            let _inner = TRACER.scope(Names::address(index), 0);
        }
    });
    let outputs = read(graph, &names, "names");
    for name in &names.0 {
        // Control characters are shown, in every format.
        let name = name.replace('\n', "\\n").replace('\t', "\\t");
        let calls = |table: &Table, name: &str| table.get(name).map(|told| told.calls);
        assert_eq!(calls(&outputs.json.table, &name), Some(2), "{name}");
        if let Some(fxt) = &outputs.fxt {
            assert_eq!(calls(&fxt.table, &name), Some(2), "{name}");
        }
        // What ends in a figure must not be taken for another count.
        let mark = if name.contains("count") { "_" } else { "" };
        let folded = name.replace(';', ":") + mark;
        assert_eq!(calls(&outputs.folded, &folded), Some(2), "{name}");
        let shown = outputs.graph.0.iter().filter(|(shown, _)| *shown == name);
        assert_eq!(shown.count(), 2, "{name}");
    }
    for part in ["&lt;A as B", "ends like a count 12_", "two counts 1.5 12_"] {
        assert!(outputs.flames.contains(part), "{part}: {}", outputs.flames);
    }
    if let Some(uftrace) = &outputs.uftrace {
        for name in &names.0 {
            let line = name.replace(['\n', '\t'], " ");
            assert!(uftrace.replay.contains(&line), "{line}: {}", uftrace.replay);
        }
    }
}

#[test]
fn what_a_small_buffer_lost_is_told() {
    let _alone = ALONE.lock();
    for full in [Full::Overwrite, Full::Stop] {
        for records in [0, 1, 2, 4, 8, 16, 32] {
            let graph = record(records, full, || (0..10).for_each(|_| chain(5)));
            let outputs = read(graph, &numbered(8), "small");
            let lost = outputs.json.lost;
            // Two leaf calls, and the begins and ends of the five around them.
            assert!(
                lost > 0 && outputs.graph.1 == lost,
                "{records}: {}",
                outputs.text
            );
            if full == Full::Overwrite && records > 0 {
                assert_eq!(lost + records as u64, 10 * (2 + 2 * 5), "{records}");
            }
            if let Some(fxt) = &outputs.fxt {
                assert_eq!((&fxt.table, fxt.lost), (&outputs.json.table, lost));
            }
            if let Some(uftrace) = &outputs.uftrace {
                assert!(uftrace.records.contains("lost"), "{}", uftrace.records);
            }
            assert_eq!(calls(&outputs.folded), calls(&outputs.json.table));
        }
    }
}

#[test]
fn ends_that_are_missing_are_told_as_missing() {
    let _alone = ALONE.lock();
    let graph = record(64, Full::Overwrite, || {
        std::mem::forget(TRACER.scope(Names::address(1), 0));
        chain(0);
        chain(0);
    });
    let outputs = read(graph, &numbered(3), "unfinished");
    assert!(
        outputs.text.contains("} /* (unfinished) */"),
        "{}",
        outputs.text
    );
    assert_eq!(calls(&outputs.json.table), 3);
    // The frame is left on this thread's stack: nobody else uses it.
}

/// A call begins on one CPU and ends on another, where all is lost but the end
/// of the next call of the same function.
#[test]
fn an_end_does_not_end_the_call_before_its_own() {
    let _alone = ALONE.lock();
    let buffer = |records: usize| {
        let records: Vec<Record> = (0..records).map(|_| Record::new()).collect();
        Buffer::new(records.leak(), Full::Overwrite)
    };
    let buffers: &'static [Buffer] = vec![buffer(8), buffer(1)].leak();
    let graph: &'static Graph<One> = Box::leak(Box::new(Graph::new(buffers)));
    let id = TRACER.register(graph).expect("a slot");
    for _ in 0..2 {
        let _call = TRACER.scope(Names::address(1), 0);
        chain(0);
        CPU.store(1, Ordering::Relaxed);
    }
    CPU.store(0, Ordering::Relaxed);
    TRACER.unregister(id).expect("it was registered");

    let outputs = read(graph, &numbered(2), "ends");
    let text = &outputs.text;
    assert_eq!(outputs.graph.1, 3, "{text}");
    assert_eq!(text.matches("} /* (end lost) */").count(), 1, "{text}");
    assert_eq!(text.matches("} /* f1 (begin lost) */").count(), 1, "{text}");
    // The clock moves by a hundred at each begin and each end.
    assert!(text.contains("0.300 us    |  } /* f1 (begin"), "{text}");
    if let Some(fxt) = &outputs.fxt {
        assert_eq!(fxt.calls, outputs.json.calls);
    }
}

#[test]
fn writers_that_share_a_buffer_never_share_a_record() {
    let _alone = ALONE.lock();
    static DONE: AtomicBool = AtomicBool::new(false);
    let records: Vec<Record> = (0..32).map(|_| Record::new()).collect();
    let buffers: &'static [Buffer] = vec![Buffer::new(records.leak(), Full::Overwrite)].leak();
    let graph: &'static Graph<One> = Box::leak(Box::new(Graph::new(buffers)));
    let id = TRACER.register(graph).expect("a slot");
    let (mut told, mut lost) = (0, 0);
    let threads = 4;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| (0..3000).for_each(|_| chain(5))))
            .collect();
        scope.spawn(|| {
            let mut cursors = [Cursor::new()];
            let mut open = [const { Open::new() }; 256];
            let trace = Trace::live(buffers, Scale::NANOSECONDS, &mut cursors, &mut open);
            let mut trace = trace.expect("memory");
            let mut finished = false;
            loop {
                match trace.next() {
                    Some(Event::Lost { records, .. }) => lost += records,
                    Some(Event::Begin(call) | Event::Leaf(call, _)) => {
                        // Each function has one depth: a torn record would not.
                        let func = call.func.expect("it has one");
                        assert_eq!(func, Names::address(5 - call.depth), "{call:?}");
                        told += 1;
                    }
                    Some(Event::End(call, _)) => {
                        if let Some(func) = call.func {
                            assert_eq!(func, Names::address(5 - call.depth), "{call:?}");
                        }
                    }
                    None if finished => break,
                    None if DONE.load(Ordering::Acquire) => {
                        finished = true;
                        trace.finish();
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        for writer in writers {
            writer.join().expect("it ends");
        }
        DONE.store(true, Ordering::Release);
    });
    TRACER.unregister(id).expect("it was registered");
    println!("{told} begins told, {lost} records lost");
    // What none could write, while one that was preempted held a record, is lost.
    assert!(told + lost > 100_000, "{told} {lost}");
}
