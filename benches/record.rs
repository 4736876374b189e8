//! What does recording a call cost, beyond reading the clock twice and beyond
//! dispatching it?

use std::hint::black_box;

mod support;

use fgraph::Platform;
use fgraph::tracer::{Buffer, Full, Graph, Record};
use support::tracer::{Bench, FGRAPH, attach, pair, register, unregister};
use support::{Effort, line, nanoseconds};

static RECORDS: [Record; 1 << 14] = [const { Record::new() }; 1 << 14];
static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
static GRAPH: Graph<Bench> = Graph::new(&BUFFERS);

fn main() {
    let effort = Effort::from_args();
    attach(1024);
    let mut clocks = |calls| {
        for _ in 0..calls {
            black_box(Bench::clock());
            black_box(Bench::clock());
        }
    };
    let mut subject = |calls| pair::pair(calls, usize::MAX);

    // A callback that keeps as many words, and does nothing.
    let ids = register(1, [7_usize; 2]);
    let times = nanoseconds(effort, &mut [&mut subject, &mut clocks]);
    let (dispatch, clock) = (times[0], times[1]);
    unregister(ids);

    let id = FGRAPH.register(&GRAPH).expect("a slot is free");
    let written = BUFFERS[0].written();
    let times = nanoseconds(effort, &mut [&mut subject, &mut clocks]);
    assert!(BUFFERS[0].written() > written, "it records");
    FGRAPH.unregister(id).expect("registered before");

    line("record/two-clocks", clock, "ns");
    line("record/call", times[0], "ns");
    line("record/over-clock", times[0] - times[1], "ns");
    line(
        "record/over-clock-and-dispatch",
        times[0] - times[1] - dispatch,
        "ns",
    );
    line("record/bytes", size_of::<Record>() as f64, "bytes");
}
