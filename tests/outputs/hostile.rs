//! What a kernel should not be like: task numbers and CPU numbers of any size.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fgraph::tracer::{Buffer, Full, Graph, Print, Record, Scale, Shown, Symbol, Symbols};
use fgraph::{Fgraph, Platform, RetStack};

use crate::{ALONE, output};

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
