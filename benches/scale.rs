//! Do two CPUs trace twice as much as one? Each runs tasks of its own.

use std::sync::Barrier;
use std::time::Instant;

mod support;

use fgraph::tracer::{Buffer, Full, Graph, Record};
use support::tracer::{Bench, FGRAPH, attach, pair, register, set_cpu, unregister};
use support::{Effort, line, median};

static RECORDS: [[Record; 1 << 12]; 2] = [const { [const { Record::new() }; 1 << 12] }; 2];
static BUFFERS: [Buffer; 2] = [
    Buffer::new(&RECORDS[0], Full::Overwrite),
    Buffer::new(&RECORDS[1], Full::Overwrite),
];
static GRAPH: Graph<Bench> = Graph::new(&BUFFERS);

/// Calls per nanosecond, of this many CPUs together.
fn throughput(cpus: usize, calls: u64) -> f64 {
    let barrier = Barrier::new(cpus);
    let barrier = &barrier;
    let rate = move |cpu: usize| {
        set_cpu(cpu);
        attach(1024);
        pair::pair(calls / 10, usize::MAX);
        barrier.wait();
        let begun = Instant::now();
        pair::pair(calls, usize::MAX);
        calls as f64 / begun.elapsed().as_nanos() as f64
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus)
            .map(|cpu| scope.spawn(move || rate(cpu)))
            .collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().expect("it runs"));
        rates.sum()
    })
}

/// Two CPUs' throughput over one's, and over what the machine itself gives two
/// threads that share nothing.
fn scale(effort: Effort, name: &str) {
    let calls = effort.calls() * 20;
    let ratio = |_| throughput(2, calls) / throughput(1, calls);
    let ratios = (0..effort.rounds().min(21)).map(ratio).collect();
    line(name, median(ratios), "ratio");
}

fn main() {
    let effort = Effort::from_args();
    // Nobody registered: what two threads of this machine do without a tracer.
    scale(effort, "scale/machine");
    let ids = register(1, ());
    scale(effort, "scale/dispatch");
    unregister(ids);
    let id = FGRAPH.register(&GRAPH).expect("a slot is free");
    scale(effort, "scale/record");
    FGRAPH.unregister(id).expect("registered before");
}
