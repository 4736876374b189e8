//! What a kernel should not be like: task numbers and CPU numbers of any size,
//! clocks that go back or are at their end, calls deep inside each other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fgraph::tracer::{Buffer, Full, Graph, Print, Record, Scale, Shown, Symbol, Symbols};
use fgraph::{Fgraph, Platform, RetStack};

use crate::{ALONE, Outputs, output, read_all};

/// A machine that is as a test says.
struct Odd;

static TRACER: Fgraph<Odd> = Fgraph::new();
static STACK: RetStack = RetStack::new();
static TASK: AtomicUsize = AtomicUsize::new(0);
static CPU: AtomicUsize = AtomicUsize::new(0);
static NOW: AtomicU64 = AtomicU64::new(0);

// SAFETY: one task at a time, of tests that run alone.
unsafe impl Platform for Odd {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        Some(f(&STACK))
    }

    fn clock() -> u64 {
        NOW.load(SeqCst)
    }

    fn cpu() -> usize {
        CPU.load(SeqCst)
    }

    fn task() -> usize {
        TASK.load(SeqCst)
    }
}

/// A name for each address, and one for each task.
struct Long;

impl Symbols for Long {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        let name = "f::<'_>::{closure} ".repeat(1 + address % 16 * 2);
        let name = String::leak(name);
        Some(Symbol {
            name: &name[..name.len() - 1],
            start: address,
        })
    }

    fn task(&self, task: usize) -> Option<&str> {
        (task % 2 == 1).then_some("a task with a name\nthat is long and ü")
    }
}

/// Near some code.
fn address(number: usize) -> usize {
    (attach as fn() as usize & !0xfff) + number
}

fn attach() {
    if !STACK.is_attached() {
        let words = Box::leak(vec![0; 1 << 16].into_boxed_slice());
        STACK.attach(words, 0..0).expect("a new stack takes words");
    }
    NOW.store(1_000_000_000, SeqCst);
}

/// The first CPU runs the task number 1.
fn run_task_1() {
    TASK.store(1, SeqCst);
    CPU.store(0, SeqCst);
}

/// Records what `calls` does on so many CPUs.
fn record(cpus: usize, records: usize, calls: impl FnOnce()) -> &'static Graph<Odd> {
    attach();
    let buffer = |cpu: usize| {
        // The last ones are used.
        let records = if cpus - cpu <= 2 || cpu < 2 {
            records
        } else {
            0
        };
        let records: Vec<Record> = (0..records).map(|_| Record::new()).collect();
        Buffer::new(records.leak(), Full::Overwrite)
    };
    let buffers: Vec<Buffer> = (0..cpus).map(buffer).collect();
    let graph: &'static Graph<Odd> = Box::leak(Box::new(Graph::new(buffers.leak())));
    let id = TRACER.register(graph).expect("a slot");
    calls();
    TRACER.unregister(id).expect("it was registered");
    graph
}

#[test]
fn columns_are_aligned_whatever_is_in_them() {
    let _alone = ALONE.lock();
    const DURATIONS: [u64; 7] = [0, 1, 999, 12_345_678, 3_600_000_000_000, 1 << 47, 1 << 46];
    for cpus in [1, 9, 10, 11, 100, 101, 10_001, 99_999] {
        let graph = record(cpus, 64, || {
            for (i, duration) in DURATIONS.into_iter().enumerate() {
                CPU.store(if i % 2 == 0 { 0 } else { cpus - 1 }, SeqCst);
                TASK.store([0, 7, 99_999, usize::MAX][i % 4], SeqCst);
                let _outer = TRACER.scope(address(i), 0);
                drop(TRACER.scope(address(i + 1), 0));
                NOW.fetch_add(duration, SeqCst);
            }
        });
        for shown in [
            Shown::default(),
            Shown::all(),
            Shown::all() - Shown::TIME,
            Shown::all() - Shown::CPU,
            Shown::all() - Shown::CPU - Shown::TIME,
            Shown::TASK,
            Shown::DURATION,
            Shown::CPU | Shown::DURATION,
        ] {
            let mut text = String::new();
            output::with_trace(graph.buffers(), Scale::NANOSECONDS, |trace| {
                Print::new(&Long).shown(shown).trace(&mut text, trace)
            })
            .expect("memory")
            .expect("a string takes all");
            // A long number leaves no room for a name, and fits.
            if shown.contains(Shown::TASK) {
                let number = format!("-{}", usize::MAX);
                assert!(text.contains(&number), "{text}");
            }
            let bars = |line: &str| -> Vec<usize> {
                let bars = line.chars().enumerate().filter(|&(_, c)| c == '|');
                bars.map(|(at, _)| at).collect()
            };
            let mut lines = text.lines();
            let heading = lines.next().expect("a heading");
            let lines = lines.filter(|line| line.contains("f::<") || line.contains('}'));
            let mut count = 0;
            for line in lines {
                assert_eq!(bars(line), bars(heading), "{cpus} {shown:?}\n{text}");
                count += 1;
            }
            // Of a CPU whose number is too long for a frame, leaf calls take two.
            assert!(count >= 3 * DURATIONS.len(), "{text}");
        }
    }
}

/// Every output is read by its own reader, which holds that calls nest and that
/// no task's time goes back.
fn read(graph: &Graph<Odd>, name: &str) -> Outputs {
    let outputs = read_all(graph.buffers(), Scale::NANOSECONDS, &Numbered, name);
    if let Some(fxt) = &outputs.fxt {
        assert_eq!(fxt.calls, outputs.json.calls, "{name}");
        assert_eq!(fxt.lost, outputs.json.lost, "{name}");
    }
    if let Some(tree) = outputs.uftrace.as_ref().and_then(|read| read.tree.as_ref()) {
        assert_eq!(tree.calls, outputs.json.calls, "{name}");
    }
    let (told, lost) = &outputs.graph;
    assert_eq!(*lost, outputs.json.lost, "{name}");
    assert_eq!(told.len(), outputs.json.stacks.len(), "{name}");
    assert_eq!(outputs.folded.len(), outputs.json.table.len(), "{name}");
    outputs
}

struct Numbered;

impl Symbols for Numbered {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        Some(Symbol {
            name: ["f0", "f1", "f2", "f3"][address % 4],
            start: address,
        })
    }
}

#[test]
fn clocks_that_go_back_or_end_leave_outputs_well_formed() {
    let _alone = ALONE.lock();
    run_task_1();
    let far = u64::MAX - 5;
    // At the outer begin, the inner one, its end, and the outer end.
    for times in [
        [1_000, 500, 700, 1_500],
        [1_000, 1_500, 700, 600],
        [1_000, 1_000, 0, 0],
        [0, u64::MAX, u64::MAX, u64::MAX],
        [far, far + 1, far + 3, far + 5],
        [u64::MAX, 0, 10, u64::MAX],
        [u64::MAX, 3, 2, 1],
        [0, 1 << 37, (1 << 37) + 1, 1 << 48],
        [1 << 38, 1 << 36, 1 << 40, 1 << 39],
        [0, 10, 20, 3_600_000_000_000 * 1_000],
    ] {
        let graph = record(1, 64, || {
            let now = |at: usize| NOW.store(times[at], SeqCst);
            now(0);
            let outer = TRACER.scope(address(1), 0);
            now(1);
            let inner = TRACER.scope(address(2), 0);
            let innermost = TRACER.scope(address(3), 0);
            drop(innermost);
            now(2);
            drop(inner);
            now(3);
            drop(outer);
        });
        let name = match times.contains(&u64::MAX) {
            true => "end of time",
            false => "clock",
        };
        let outputs = read(graph, name);
        let calls: Vec<_> = outputs.json.calls[&1]
            .iter()
            .map(|call| (call.name.as_str(), call.depth))
            .collect();
        assert_eq!(calls, [("f1", 0), ("f2", 1), ("f3", 2)], "{times:?}");
        assert!(
            !outputs.text.contains("lost"),
            "{times:?}\n{}",
            outputs.text
        );
        if times.is_sorted() {
            let total = outputs.json.table["f1"].total;
            assert_eq!(total, times[3] - times[0], "{times:?}");
        }
    }
}

#[test]
fn deep_calls_nest_in_every_output() {
    let _alone = ALONE.lock();
    run_task_1();
    const DEPTH: usize = 700;
    let graph = record(1, 2048, || {
        let mut scopes = Vec::new();
        for depth in 0..DEPTH {
            scopes.push(TRACER.scope(address(depth), 0));
            NOW.fetch_add(10, SeqCst);
        }
        while scopes.pop().is_some() {
            NOW.fetch_add(10, SeqCst);
        }
    });
    let outputs = read(graph, "deep");
    let depths = outputs.json.calls[&1].iter().map(|call| call.depth);
    assert!(depths.eq(0..DEPTH));
}

#[test]
fn buffers_that_are_just_full_lose_what_comes_next() {
    let _alone = ALONE.lock();
    run_task_1();
    // A leaf call takes one record.
    for (calls, lost) in [(15, 0), (16, 0), (17, 1), (33, 17), (16 * 33, 16 * 32)] {
        let graph = record(1, 16, || {
            for _ in 0..calls {
                drop(TRACER.scope(address(1), 0));
                NOW.fetch_add(1_000, SeqCst);
            }
        });
        let outputs = read(graph, "full");
        assert_eq!(outputs.json.lost, lost, "{calls}");
        assert_eq!(outputs.json.stacks.len() as u64, calls - lost);
    }
}

#[test]
fn a_function_at_no_address_is_not_one_without_a_name() {
    let _alone = ALONE.lock();
    run_task_1();
    // The begin of a long call is lost, and with it its function.
    let graph = record(1, 4, || {
        let long = TRACER.scope(address(1), 0);
        drop(TRACER.scope(address(2), 0));
        NOW.fetch_add(1 << 30, SeqCst);
        drop(long);
        drop(TRACER.scope(0, 0));
    });
    let outputs = read(graph, "no address");
    assert!(outputs.text.contains("} /* ? (begin lost) */"));
    let names = outputs.json.calls[&1].iter().map(|call| &*call.name);
    assert!(names.eq(["f2", "f0"]), "{}", outputs.text);
}

const TASKS: [&str; 8] = [
    "",
    "a;b",
    "ends 12",
    "two\nlines\t",
    "say \"<&>\" \\",
    "süß 絵 𝄞",
    "\u{7f}\u{85}\u{0}",
    "{} (;) */ -",
];

struct Tasks;

impl Symbols for Tasks {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        Numbered.symbol(address)
    }

    fn task(&self, task: usize) -> Option<&str> {
        TASKS.get(task).copied()
    }
}

#[test]
fn names_of_tasks_are_escaped_as_each_format_demands() {
    let _alone = ALONE.lock();
    let graph = record(1, 64, || {
        for task in 0..TASKS.len() {
            TASK.store(task, SeqCst);
            let _outer = TRACER.scope(address(1), 0);
            NOW.fetch_add(1_000, SeqCst);
            let _inner = TRACER.scope(address(2), 0);
            NOW.fetch_add(1_000, SeqCst);
        }
    });
    let outputs = read_all(graph.buffers(), Scale::NANOSECONDS, &Tasks, "tasks");
    for (task, name) in TASKS.into_iter().enumerate() {
        let told = outputs.json.tasks.get(&(task as u64));
        assert_eq!(told.map(String::as_str), Some(name));
    }
    assert_eq!(outputs.json.stacks.len(), 2 * TASKS.len());
    if let Some(fxt) = &outputs.fxt {
        assert_eq!(fxt.calls, outputs.json.calls);
        assert_eq!(fxt.tasks, outputs.json.tasks);
    }
    assert!(
        outputs
            .folded
            .values()
            .all(|told| told.calls == TASKS.len() as u64)
    );
    assert!(outputs.flames.contains("two lines"), "{}", outputs.flames);
}
