//! Cases of what is read from a trace afterwards: times, nesting, losses.

use std::sync::atomic::{AtomicBool, Ordering};

use fgraph::tracer::filter::MinDuration;
use fgraph::tracer::profile::Row;
use fgraph::tracer::{
    Buffer, Cursor, Ending, Event, Full, Graph, LateGraph, Open, Print, Profile, Record, Recorded,
    Scale, Trace,
};
use fgraph::{Context, Platform};

use crate::fixture::{leak, patched};
use crate::host::Host;

/// The address of a made-up function, in this program.
fn func(index: usize) -> usize {
    static NEARBY: [u8; 2048] = [0; 2048];
    &raw const NEARBY as usize + 16 * index
}

fn graph<P: Platform>(cpus: usize, records: usize) -> &'static Graph<P> {
    let buffers: Vec<Buffer> = (0..cpus)
        .map(|_| {
            let records: Vec<Record> = (0..records).map(|_| Record::new()).collect();
            Buffer::new(records.leak(), Full::Overwrite)
        })
        .collect();
    Box::leak(Box::new(Graph::new(buffers.leak())))
}

/// All that a graph's buffers tell now.
fn events<P: Platform>(graph: &Graph<P>, scale: Scale) -> Vec<Event> {
    let mut cursors: Vec<_> = graph.buffers().iter().map(|_| Cursor::new()).collect();
    let mut open = vec![Open::new(); 256];
    let trace = Trace::whole(graph.buffers(), scale, &mut cursors, &mut open);
    trace.expect("memory").collect()
}

fn text<P: Platform>(graph: &Graph<P>, scale: Scale) -> String {
    let mut cursors = [const { Cursor::new() }; 2];
    let mut open = vec![Open::new(); 256];
    let trace = Trace::whole(graph.buffers(), scale, &mut cursors, &mut open);
    let mut text = String::new();
    let print = Print::new(&());
    print.trace(&mut text, &mut trace.expect("memory")).unwrap();
    text
}

kernel!(stamped);

#[test]
fn time_and_cpu_are_those_of_the_reading() {
    use stamped::{FGRAPH, Kernel, attach, pass, scope, set_clock, set_cpu};
    attach();
    let graph = graph::<Kernel>(2, 64);
    FGRAPH.register(graph).unwrap();
    let outer = scope(func(1));
    pass(70);
    set_cpu(1);
    let inner = scope(func(2));
    pass(7);
    drop(inner);
    pass(3);
    drop(outer);
    // Read much later, on the other CPU.
    set_cpu(0);
    set_clock(1 << 40);
    let [
        Event::Begin(begin),
        Event::Leaf(leaf, leaf_end),
        Event::End(end, outer_end),
    ] = events(graph, Scale::NANOSECONDS)[..]
    else {
        panic!("{:?}", events(graph, Scale::NANOSECONDS));
    };
    assert_eq!((begin.cpu, begin.begin), (0, Some(1_000)));
    assert_eq!((leaf.cpu, leaf.begin), (1, Some(1_070)));
    assert_eq!((leaf_end.time, leaf_end.duration), (1_077, 7));
    assert_eq!((end.cpu, outer_end.time), (1, 1_080));
    assert_eq!((outer_end.duration, outer_end.own), (80, 73));
}

kernel!(sleeper);

/// A call's end tells fewer ticks than have passed since its begin; it is its
/// end all the same, on whichever CPU.
#[test]
fn a_call_that_slept_is_taken_for_another() {
    use sleeper::{FGRAPH, Kernel, attach, pass, scope, set_cpu, switch};
    attach();
    let graph = |recorded| -> &'static Graph<Kernel> {
        let graph = Graph::new(graph::<Kernel>(2, 64).buffers()).recorded(recorded);
        Box::leak(Box::new(graph))
    };
    let awake = graph(Recorded::WITHOUT_SLEEP);
    let asleep = graph(Recorded::empty());
    let late: &'static MinDuration<Kernel, _> = Box::leak(Box::new(MinDuration::new(
        Graph::new(graph(Recorded::empty()).buffers())
            .recorded(Recorded::WITHOUT_SLEEP)
            .late(),
        0,
    )));
    FGRAPH.register(awake).unwrap();
    FGRAPH.register(asleep).unwrap();
    FGRAPH.register(late).unwrap();
    let outer = scope(func(1));
    pass(2);
    let inner = scope(func(2));
    pass(5);
    switch(true);
    pass(1_000);
    switch(false);
    set_cpu(1);
    drop(inner);
    pass(3);
    drop(outer);
    let ends = |graph| -> Vec<_> {
        let end = |event| match event {
            Event::Begin(_) => None,
            Event::Leaf(call, end) | Event::End(call, end) => {
                Some((call.func, end.duration, end.own, end.how))
            }
            Event::Lost { .. } => panic!("{event:?}"),
        };
        let events = events(graph, Scale::NANOSECONDS);
        events.into_iter().filter_map(end).collect()
    };
    let returned = |number, duration, own| (Some(func(number)), duration, own, Ending::Returned);
    let without_sleep = [returned(2, 5, 5), returned(1, 10, 5)];
    assert_eq!(ends(awake), without_sleep);
    assert_eq!(ends(late.callback().graph()), without_sleep);
    assert_eq!(
        ends(asleep),
        [returned(2, 1_005, 1_005), returned(1, 1_010, 5)]
    );
}

kernel!(lossy);

#[test]
fn lost_records_let_a_brace_close_another_function() {
    use lossy::{FGRAPH, Kernel, attach, pass, scope};
    attach();
    for records in [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 21, 34] {
        let graph = graph::<Kernel>(1, records);
        let id = FGRAPH.register(graph).unwrap();
        // Functions by their depth, so that each event tells where it belongs.
        fn tree(depth: usize) {
            let _scope = scope(func(depth));
            pass(1);
            (0..2).for_each(|_| {
                if depth < 4 {
                    tree(depth + 1);
                }
            });
        }
        tree(0);
        FGRAPH.unregister(id).unwrap();
        let mut open = Vec::new();
        let (mut lost, mut told) = (0, 0);
        for event in events(graph, Scale::NANOSECONDS) {
            match event {
                Event::Begin(call) => {
                    assert_eq!(call.func, Some(func(call.depth)));
                    assert!(open.last().is_none_or(|&last| last < call.depth));
                    open.push(call.depth);
                    told += 1;
                }
                Event::Leaf(call, _) => {
                    assert_eq!(call.func, Some(func(call.depth)));
                    assert!(open.last().is_none_or(|&last| last < call.depth));
                    told += 1;
                }
                Event::End(call, end) => {
                    assert!(call.func.is_none_or(|told| told == func(call.depth)));
                    match call.begin {
                        Some(_) => assert_eq!(open.pop(), Some(call.depth)),
                        // Headless: nothing that is open may be inside it.
                        None => assert!(open.last().is_none_or(|&last| last < call.depth)),
                    }
                    told += usize::from(end.how == Ending::Returned);
                }
                Event::Lost { records, .. } => lost += records,
            }
        }
        assert!(open.is_empty());
        // 16 leaves of one record, 15 calls of two. Where an entry's record is
        // nowhere, its exit wants one.
        // A power of two of records is used.
        let (wanted, kept) = match records {
            0 => (62, 0),
            _ => (46, 1 << records.ilog2()),
        };
        assert_eq!(lost + kept, wanted, "{records}");
        assert!(told <= 46);
        let lines = text(graph, Scale::NANOSECONDS);
        let (opened, closed) = (lines.matches('{').count(), lines.matches('}').count());
        assert!(closed >= opened, "{lines}");
        assert!(
            lost == 0 || lines.to_lowercase().contains("lost"),
            "{lines}"
        );
    }
}

kernel!(beside);

#[test]
fn a_reader_beside_a_writer_gets_half_a_record() {
    use beside::{FGRAPH, Kernel, attach, pass, scope};
    static DONE: AtomicBool = AtomicBool::new(false);
    attach();
    // So small that the writer is all around the reader.
    let graph = graph::<Kernel>(1, 8);
    FGRAPH.register(graph).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 0..40_000 {
                let _scope = scope(func(n % 100));
                // A function's calls take as long as its number says.
                pass(n as u64 % 100);
            }
            DONE.store(true, Ordering::Release);
        });
        let (mut told, mut lost) = (0, 0);
        let mut cursors = [Cursor::new()];
        let mut open = [Open::new(); 16];
        let scale = Scale::NANOSECONDS;
        let trace = Trace::live(graph.buffers(), scale, &mut cursors, &mut open);
        let mut trace = trace.expect("memory");
        loop {
            let done = DONE.load(Ordering::Acquire);
            match trace.next() {
                Some(Event::Leaf(call, end)) => {
                    let number = (call.func.expect("near code") - func(0)) / 16;
                    assert_eq!(end.duration, number as u64, "{call:?} {end:?}");
                    told += 1;
                }
                Some(Event::Lost { records, .. }) => lost += records,
                // A begin whose end was lost, or is not there yet.
                Some(Event::Begin(_) | Event::End(..)) => {}
                None if done => break,
                None => std::thread::yield_now(),
            }
        }
        assert!(told > 0 && told + lost <= 80_000, "{told} {lost}");
    });
}

kernel!(backwards);

#[test]
fn a_clock_that_steps_back_makes_a_duration_huge() {
    use backwards::{FGRAPH, Kernel, attach, pass, scope, set_clock};
    attach();
    let graph = graph::<Kernel>(1, 64);
    FGRAPH.register(graph).unwrap();
    let a = scope(func(1));
    pass(10);
    let b = scope(func(2));
    set_clock(900);
    drop(b);
    let c = scope(func(3));
    set_clock(0);
    drop(c);
    drop(a);
    let mut ends = 0;
    for event in events(graph, Scale::NANOSECONDS) {
        if let Event::Leaf(_, end) | Event::End(_, end) = event {
            assert!(end.duration <= 10 && end.own <= 10, "{end:?}");
            ends += 1;
        }
    }
    assert_eq!((ends, graph.counters().backwards), (3, 3));
}

kernel!(sums);

#[test]
fn a_leafs_self_time_is_nothing_and_sleep_is_taken_off_twice() {
    use sums::{FGRAPH, Kernel, attach, pass, scope, switch};
    static ROWS: [Row; 32] = [const { Row::new() }; 32];
    static PROFILE: Profile<Kernel> = Profile::new(&ROWS).without_sleep();
    attach();
    FGRAPH.register(&PROFILE).unwrap();
    {
        let _root = scope(func(1));
        pass(5);
        {
            let _sleeper = scope(func(2));
            pass(3);
            switch(true);
            pass(1_000_000);
            switch(false);
            let _leaf = scope(func(3));
            pass(11);
        }
        pass(2);
    }
    let of = |index| {
        let summary = PROFILE.get(func(index)).expect("it was called");
        (summary.total, summary.own)
    };
    assert_eq!((of(1), of(2), of(3)), ((21, 7), (14, 3), (11, 11)));
    let own: u64 = PROFILE.summaries().map(|line| line.own).sum();
    assert_eq!(own, of(1).0);
}

kernel!(ticking);

#[test]
fn ticks_are_shown_as_nanoseconds() {
    use ticking::{FGRAPH, Kernel, attach, in_context, pass, scope, set_clock};
    attach();
    let graph = graph::<Kernel>(1, 64);
    FGRAPH.register(graph).unwrap();
    // A counter at 3 GHz that has counted for a hundred years.
    let scale = Scale::new(3, 1).unwrap();
    set_clock(100 * 365 * 86_400 * 3_000_000_000);
    let outer = scope(func(1));
    pass(30_000_000);
    in_context(Context::Interrupt, || {
        let _inner = scope(func(2));
        pass(4);
    });
    drop(outer);
    let [
        Event::Begin(begin),
        Event::Leaf(leaf, leaf_end),
        Event::End(_, end),
    ] = events(graph, scale)[..]
    else {
        panic!("{:?}", events(graph, scale));
    };
    let century = 100 * 365 * 86_400 * 1_000_000_000;
    assert_eq!(begin.begin, Some(century));
    assert_eq!(leaf.begin, Some(century + 10_000_000));
    assert_eq!(
        (leaf_end.duration, leaf_end.time),
        (1, century + 10_000_001)
    );
    assert_eq!(end.duration, 10_000_001);
    let lines = text(graph, scale);
    assert!(lines.contains(" 0.001 us "), "{lines}");
    assert!(lines.contains(" 10000.00 us "), "{lines}");
}

#[inline(never)]
fn three_times(n: usize) -> usize {
    std::hint::black_box(n) * 3
}

/// What calls return is told by a graph that is asked for it, whole or late,
/// and by no other.
#[test]
fn values_are_those_of_another_call() {
    type Late = MinDuration<Host, LateGraph<Host>>;
    let task = patched(256);
    let values = Recorded::RETURN_VALUE;
    // Of the machine's CPUs any may run this.
    let new = || Graph::<Host>::new(graph::<Host>(1024, 16).buffers());
    let whole: &'static Graph<Host> = leak(new().recorded(values));
    let late: &'static Late = leak(MinDuration::new(new().recorded(values).late(), 0));
    let without: &'static Late = leak(MinDuration::new(new().late(), 0));
    let followed = [three_times as fn(usize) -> usize as usize];
    let _whole = task.follow(whole, &followed);
    let _late = task.follow(late, &followed);
    let _without = task.follow(without, &followed);
    for n in [1, usize::MAX / 3, 7] {
        three_times(n);
    }
    let told = |graph: &Graph<Host>| -> Vec<Option<usize>> {
        let ends = events(graph, Scale::NANOSECONDS).into_iter();
        ends.filter_map(|event| match event {
            Event::End(_, end) | Event::Leaf(_, end) => Some(end.value),
            _ => None,
        })
        .collect()
    };
    let expected = [3, usize::MAX / 3 * 3, 21].map(Some);
    assert_eq!(told(whole), expected);
    assert_eq!(told(late.callback().graph()), expected);
    assert_eq!(told(without.callback().graph()), [None; 3]);
}
