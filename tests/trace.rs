//! What a trace tells of what was recorded, event by event: missing records,
//! clocks that go back, interrupts, readers that are there meanwhile.
#[macro_use]
#[path = "common/fake.rs"]
mod fake;

use fgraph::tracer::profile::Row;
use fgraph::tracer::{
    Buffer, Cursor, Ending, Event, Full, Graph, Open, Profile, Record, Recorded, Scale, Trace,
    TraceError,
};
use fgraph::{Context, Platform};

/// The address of a function, in this program.
fn func(name: char) -> usize {
    static NEARBY: [u8; 1024] = [0; 1024];
    let number = usize::from(name as u8 - b'a');
    (&raw const NEARBY as usize & !15) + 16 * (1 + number)
}

/// A CPU of which nothing is recorded.
const NOWHERE: usize = 9;

fn graph<P: Platform>(cpus: usize, records: usize, full: Full) -> Graph<P> {
    let buffer = |_| {
        let records: Vec<Record> = (0..records).map(|_| Record::new()).collect();
        Buffer::new(records.leak(), full)
    };
    Graph::new((0..cpus).map(buffer).collect::<Vec<_>>().leak())
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// In short: `a0@5(` begins, at depth 0 and time 5; `)a0@9+4/1` ends, and took
/// 4, of which 1 was its own; `a0@5+4` is a leaf call. `?` is an end that is
/// lost, `~` one that has not been, `}` that of a call whose begin is lost.
fn short(event: Event) -> String {
    let name = |func: Option<usize>| {
        let number = func.map(|func| (func - self::func('a')) / 16);
        number.map_or('_', |number| (b'a' + number as u8) as char)
    };
    match event {
        Event::Begin(call) => {
            let begin = call.begin.expect("it has begun");
            format!("{}{}@{begin}(", name(call.func), call.depth)
        }
        Event::Leaf(call, end) => {
            let begin = call.begin.expect("it has begun");
            assert_eq!((end.time, end.own), (begin + end.duration, end.duration));
            format!("{}{}@{begin}+{}", name(call.func), call.depth, end.duration)
        }
        Event::End(call, end) => {
            let how = match end.how {
                Ending::Returned => "",
                Ending::Lost => "?",
                Ending::Unfinished => "~",
                other => panic!("{other:?}"),
            };
            let brace = if call.begin.is_some() { ')' } else { '}' };
            let (name, depth) = (name(call.func), call.depth);
            let (time, duration, own) = (end.time, end.duration, end.own);
            format!("{brace}{name}{depth}@{time}+{duration}/{own}{how}")
        }
        Event::Lost { records, .. } => format!("lost{records}"),
    }
}

fn all(trace: &mut Trace<'_>) -> String {
    trace.map(short).collect::<Vec<_>>().join(" ")
}

/// What is told of all that a graph has recorded.
fn told<P>(graph: &Graph<P>) -> String {
    let mut cursors = [const { Cursor::new() }; 2];
    let mut open = [const { Open::new() }; 512];
    let scale = Scale::NANOSECONDS;
    all(&mut Trace::whole(graph.buffers(), scale, &mut cursors, &mut open).unwrap())
}

kernel!(memory);

#[test]
fn memory_is_asked_for_and_can_be_used_again() {
    use memory::{pass, scope};
    let graph: &Graph<memory::Kernel> = leak(graph(2, 8, Full::Overwrite));
    memory::attach();
    memory::FGRAPH.register(graph).unwrap();
    for (cpu, names) in [(1, ['x', 'y']), (0, ['a', 'b'])] {
        memory::set_clock(1_000);
        memory::set_cpu(cpu);
        for name in names {
            drop(scope(func(name)));
            pass(3);
        }
    }
    std::mem::forget(scope(func('c')));
    let buffers = graph.buffers();
    let scale = Scale::NANOSECONDS;
    let mut cursors = [const { Cursor::new() }; 2];
    let mut open = [const { Open::new() }; 8];
    let error = Trace::whole(buffers, scale, &mut cursors[..1], &mut open).unwrap_err();
    assert_eq!(error, TraceError::Cursors);
    let error = Trace::whole(buffers, scale, &mut cursors, &mut []).unwrap_err();
    assert_eq!(error, TraceError::Open);
    // At the same time, the first CPU's is the first.
    let expected = "a0@1000+0 x0@1000+0 b0@1003+0 y0@1003+0 c0@1006(";
    for (events, rest) in [(5, ""), (usize::MAX, " )c0@1006+0/0~")] {
        let trace = Trace::whole(buffers, scale, &mut cursors, &mut open);
        let trace = trace.unwrap().take(events);
        let told = trace.map(short).collect::<Vec<_>>().join(" ");
        assert_eq!(told, format!("{expected}{rest}"));
    }
}

kernel!(lost);

#[test]
fn an_end_that_is_lost_is_told_when_it_is_proven() {
    use lost::{pass, scope, set_clock, set_cpu};
    lost::attach();
    let record = |calls: &dyn Fn()| {
        let graph = leak(graph::<lost::Kernel>(1, 64, Full::Overwrite));
        let id = lost::FGRAPH.register(graph).unwrap();
        set_clock(1_000);
        calls();
        lost::FGRAPH.unregister(id).unwrap();
        told(graph)
    };
    let unseen = |f: &dyn Fn()| {
        set_cpu(NOWHERE);
        f();
        set_cpu(0);
    };
    let end_lost = |name, ticks| {
        let call = scope(func(name));
        pass(ticks);
        let call = std::cell::Cell::new(Some(call));
        unseen(&|| drop(call.take()));
    };
    let begin_lost = |name, ticks| {
        let call = std::cell::Cell::new(None);
        unseen(&|| call.set(Some(scope(func(name)))));
        pass(ticks);
        drop(call);
    };
    let mut got = Vec::new();
    // By another call at its depth, whether that calls any.
    got.push(record(&|| {
        end_lost('a', 5);
        drop(scope(func('b')));
        end_lost('a', 5);
        let _c = scope(func('c'));
        drop(scope(func('d')));
    }));
    // By the end of one around it.
    got.push(record(&|| {
        let _a = scope(func('a'));
        end_lost('b', 5);
        pass(1);
    }));
    // By the end of another function's at its depth, that took as long; or of
    // the same function's, that did not.
    got.push(record(&|| {
        end_lost('a', 0);
        begin_lost('b', 10);
    }));
    got.push(record(&|| {
        end_lost('a', 5);
        begin_lost('a', 5);
    }));
    // Not by the end of a call inside it, whose begin is lost.
    got.push(record(&|| {
        let _a = scope(func('a'));
        begin_lost('b', 5);
        pass(1);
    }));
    // An interrupt is inside of the call at its depth, not of a deeper one.
    got.push(record(&|| {
        let a = std::cell::Cell::new(Some(scope(func('a'))));
        end_lost('b', 5);
        unseen(&|| drop(a.take()));
        lost::in_context(Context::Interrupt, || drop(scope(func('i'))));
    }));
    let expected = [
        "a0@1000( )a0@1005+5/5? b0@1005+0 a0@1005( )a0@1010+5/5? c0@1010( d1@1010+0 )c0@1010+0/0",
        "a0@1000( b1@1000( )b1@1006+6/6? )a0@1006+6/0",
        "a0@1000( )a0@1010+10/10? }b0@1010+10/10",
        "a0@1000( )a0@1010+10/10? }a0@1010+5/5",
        "a0@1000( }b1@1005+5/5 )a0@1006+6/6",
        "a0@1000( b1@1000( )b1@1005+5/5? i1@1005+0 )a0@1005+5/0~",
    ];
    assert_eq!(got, expected);
}

kernel!(interrupted);

/// An interrupt that comes in the entry of a call, behind the graph's, is told
/// to be inside the call, though it was not counted there.
#[test]
fn an_interrupt_in_an_entry_is_inside_the_call() {
    use interrupted::{pass, scope};
    static ROWS: [Row; 8] = [const { Row::new() }; 8];
    static PROFILE: Profile<interrupted::Kernel> = Profile::new(&ROWS);
    let graph = leak(graph::<interrupted::Kernel>(1, 64, Full::Overwrite));
    interrupted::attach();
    interrupted::FGRAPH.register(graph).unwrap();
    interrupted::FGRAPH.register(&PROFILE).unwrap();
    let _a = scope(func('a'));
    // The graph reads the clock first.
    interrupted::interrupt_reading(1, || {
        let _i = scope(func('i'));
        pass(1);
        {
            let _j = scope(func('j'));
            pass(1);
            drop(scope(func('k')));
        }
        interrupted::set_cpu(NOWHERE);
        let lost = scope(func('l'));
        interrupted::set_cpu(0);
        pass(1);
        drop(lost);
    });
    let b = scope(func('b'));
    assert!(interrupted::interrupted());
    pass(1);
    drop(b);
    assert_eq!(
        told(graph),
        "a0@1000( b1@1000( i2@1000( j3@1001( k4@1002+0 )j3@1002+1/1 \
         }l3@1003+1/1 )i2@1003+3/2 )b1@1004+4/1 )a0@1004+4/0~"
    );
}

kernel!(backwards);

#[test]
fn times_never_go_back_and_parts_are_no_more_than_the_whole() {
    use backwards::{pass, scope, set_clock, switch};
    let graph = graph::<backwards::Kernel>(1, 64, Full::Overwrite);
    let graph = leak(graph.recorded(Recorded::WITHOUT_SLEEP));
    backwards::attach();
    backwards::FGRAPH.register(graph).unwrap();
    let leaf = |name, ticks| {
        let _leaf = scope(func(name));
        pass(ticks);
    };
    {
        let _a = scope(func('a'));
        leaf('b', 50);
        set_clock(1_010);
        leaf('c', 5);
        {
            let _d = scope(func('d'));
            leaf('e', 5);
        }
        set_clock(1_002);
    }
    {
        set_clock(2_000);
        let _a = scope(func('a'));
        leaf('b', 50);
        set_clock(2_000);
        switch(true);
        pass(5);
        switch(false);
        pass(5);
    }
    // What is under way ends when anything did last.
    std::mem::forget(scope(func('a')));
    set_clock(5_000);
    std::mem::forget(scope(func('b')));
    leaf('c', 7);
    set_clock(4_000);
    leaf('d', 1);
    assert_eq!(
        told(graph),
        "a0@1000( b1@1000+50 c1@1050+0 d1@1050( e2@1050+0 )d1@1050+0/0 )a0@1050+50/0 \
         a0@2000( b1@2000+50 )a0@2050+5/0 \
         a0@2050( b1@5000( c2@5000+7 d2@5007+0 )b1@5007+7/0~ )a0@5007+2957/2950~"
    );
}

kernel!(untracked);

#[test]
fn calls_that_find_no_place_are_counted() {
    use untracked::{pass, scope};
    let graph = leak(graph::<untracked::Kernel>(1, 64, Full::Overwrite));
    untracked::attach();
    untracked::FGRAPH.register(graph).unwrap();
    let _a = scope(func('a'));
    let _b = scope(func('b'));
    drop(scope(func('c')));
    untracked::switch(true);
    pass(1);
    drop(scope(func('d')));
    untracked::switch(false);
    // The last is not the latest.
    untracked::set_clock(900);
    drop(scope(func('e')));
    let mut got = Vec::new();
    for places in 1..5 {
        let mut cursors = [Cursor::new()];
        let mut open = vec![Open::new(); places];
        let scale = Scale::NANOSECONDS;
        let trace = Trace::whole(graph.buffers(), scale, &mut cursors, &mut open);
        let mut trace = trace.unwrap();
        let told = all(&mut trace);
        got.push(format!("{} {told}", trace.untracked()));
    }
    let expected = [
        "2 c2@1000+0 d0@1001+0 e2@900+0",
        "2 a0@1000( c2@1000+0 e2@1000+0 )a0@1001+1/1~",
        "1 a0@1000( b1@1000( c2@1000+0 e2@1000+0 )b1@1001+1/1~ )a0@1001+1/0~",
        "0 a0@1000( b1@1000( c2@1000+0 d0@1001+0 e2@1000+0 )b1@1001+1/1~ )a0@1001+1/0~",
    ];
    assert_eq!(got, expected);
}

kernel!(live);

#[test]
fn a_live_reader_makes_room_and_waits_for_what_may_be_a_leaf() {
    use live::scope;
    let graph = leak(graph::<live::Kernel>(1, 2, Full::Stop));
    live::attach();
    live::FGRAPH.register(graph).unwrap();
    let (mut cursors, mut open) = ([Cursor::new()], [const { Open::new() }; 8]);
    let scale = Scale::NANOSECONDS;
    let trace = Trace::live(graph.buffers(), scale, &mut cursors, &mut open);
    let mut trace = trace.unwrap();
    let mut next = move || trace.next().map(short).unwrap_or_default();
    let leaf = |name| drop(scope(func(name)));
    // Nothing is told of it, and it is a leaf call yet.
    let a = scope(func('a'));
    assert_eq!(next(), "");
    drop(a);
    assert_eq!(next(), "a0@1000+0");
    ['b', 'c', 'd', 'e'].into_iter().for_each(leaf);
    // Two had no room, for their begins and for their ends.
    assert_eq!(next(), "b0@1000+0");
    // There is some as soon as one is read: for what was lost, and no call.
    leaf('f');
    assert_eq!([next(), next(), next()], ["c0@1000+0", "lost6", ""]);
    ['g', 'h', 'i'].into_iter().for_each(leaf);
    assert_eq!([next(), next()], ["g0@1000+0", "h0@1000+0"]);
    // It is told where it was lost.
    leaf('j');
    assert_eq!([next(), next(), next()], ["lost2", "j0@1000+0", ""]);
    // What another reader reads from here on is what is new.
    leaf('k');
    assert_eq!(told(graph), "k0@1000+0");
    assert_eq!(next(), "k0@1000+0");
    assert_eq!(told(graph), "");
}

kernel!(overwritten);

#[test]
fn a_live_reader_tells_of_losses_before_what_is_under_way() {
    use overwritten::scope;
    let graph = leak(graph::<overwritten::Kernel>(1, 1, Full::Overwrite));
    overwritten::attach();
    overwritten::FGRAPH.register(graph).unwrap();
    let (mut cursors, mut open) = ([Cursor::new()], [const { Open::new() }; 8]);
    let scale = Scale::NANOSECONDS;
    let trace = Trace::live(graph.buffers(), scale, &mut cursors, &mut open);
    let mut trace = trace.unwrap();
    drop(scope(func('a')));
    let b = scope(func('b'));
    assert_eq!(trace.next().map(short).as_deref(), Some("lost1"));
    assert_eq!(trace.next(), None);
    drop(b);
    assert_eq!(all(&mut trace), "b0@1000+0");
    std::mem::forget(scope(func('c')));
    trace.finish();
    assert_eq!(all(&mut trace), "c0@1000( )c0@1000+0/0~");
}

kernel!(beside);

#[test]
fn what_a_reader_has_told_to_be_under_way_ends_as_a_call() {
    use beside::scope;
    let graph = leak(graph::<beside::Kernel>(1, 64, Full::Overwrite));
    beside::attach();
    beside::FGRAPH.register(graph).unwrap();
    let (mut cursors, mut open) = ([Cursor::new()], [const { Open::new() }; 8]);
    let scale = Scale::NANOSECONDS;
    let trace = Trace::live(graph.buffers(), scale, &mut cursors, &mut open);
    let mut live = trace.unwrap();
    let a = scope(func('a'));
    let b = scope(func('b'));
    // It has called another, and is no leaf call.
    assert_eq!(live.next().map(short).as_deref(), Some("a0@1000("));
    assert_eq!(live.next(), None);
    {
        let (mut cursors, mut open) = ([Cursor::new()], [const { Open::new() }; 8]);
        let trace = Trace::whole(graph.buffers(), scale, &mut cursors, &mut open);
        let mut whole = trace.unwrap();
        // What was read and released it does not see.
        assert_eq!(whole.next().map(short).as_deref(), Some("b1@1000("));
        // Nor is this one, now that somebody was told.
        drop(b);
        drop(a);
        assert_eq!(all(&mut whole), ")b1@1000+0/0 }a0@1000+0/0");
    }
    assert_eq!(all(&mut live), "b1@1000( )b1@1000+0/0 )a0@1000+0/0");
}

kernel!(tasks);

#[test]
fn numbers_of_tasks_are_whole_and_told_when_they_must_be() {
    let graph = leak(graph::<tasks::Kernel>(1, 16, Full::Stop));
    tasks::attach();
    tasks::FGRAPH.register(graph).unwrap();
    // Alike in what a record has room for.
    let (long, low) = (70_000, 70_000 - (1 << 16));
    let numbers = [7, long, long, low, low, 0xffff, long, 7];
    for number in numbers {
        tasks::set_task(number);
        drop(tasks::scope(func('a')));
    }
    let (mut cursors, mut open) = ([Cursor::new()], [const { Open::new() }; 8]);
    let scale = Scale::NANOSECONDS;
    let trace = Trace::whole(graph.buffers(), scale, &mut cursors, &mut open);
    let told = trace.unwrap().map(|event| match event {
        Event::Leaf(call, _) => call.task,
        event => panic!("{event:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), numbers);
    assert_eq!(graph.buffers()[0].written(), numbers.len() + 3);
}

kernel!(large);

#[test]
fn calls_that_are_long_or_deep_are_told_whole() {
    use large::{pass, scope};
    let record = |calls: &dyn Fn()| {
        let graph = leak(graph::<large::Kernel>(1, 1 << 10, Full::Stop));
        let id = large::FGRAPH.register(graph).unwrap();
        large::set_clock(1_000);
        calls();
        large::FGRAPH.unregister(id).unwrap();
        told(graph)
    };
    large::attach();
    // Longer than a leaf's record can tell, and by far.
    for bits in [23, 24, 47, 50, 62] {
        let ticks = 1 << bits;
        let told = record(&|| {
            let _a = scope(func('a'));
            pass(ticks);
        });
        let (time, most) = (1_000 + ticks, ticks.min((1 << 48) - 1));
        let expected = match bits {
            23 => format!("a0@1000+{ticks}"),
            _ => format!("a0@1000( )a0@{time}+{most}/{most}"),
        };
        assert_eq!(told, expected);
    }
    let told = record(&|| {
        let mut calls: Vec<_> = (0..300).map(|_| scope(func('a'))).collect();
        while calls.pop().is_some() {}
    });
    assert!(
        told.contains(" a299@1000( )a299@1000+0/0 )a298@1000+0/0"),
        "{told}"
    );
    assert_eq!(told.matches('(').count(), 300, "{told}");
}
