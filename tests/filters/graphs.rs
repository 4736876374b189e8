//! Graphs without quick calls: what is read is held against what is left of a
//! whole graph when the quick calls are taken out.

use std::collections::BTreeMap;

use fgraph::Context;
use fgraph::tracer::filter::{Depth, MinDuration, NotBelow, OnlyBelow, Predicate};
use fgraph::tracer::{
    Buffer, Cursor, Ending, Event, Full, Graph, LateGraph, Open, Record, Recorded, Scale, Trace,
};

const A: usize = 0xa0;
const B: usize = 0xb0;
const C: usize = 0xc0;
const D: usize = 0xd0;

/// A function close to the crate's code, which one record tells whole.
fn near(function: usize) -> usize {
    near as fn(usize) -> usize as usize + function
}

/// Functions of this program, and one that is far from it on a 64-bit target.
fn functions() -> [usize; 4] {
    let code = functions as fn() -> [usize; 4] as usize;
    let far = code ^ 1 << (34 % usize::BITS);
    [code, code + 0x10, code + 0x20, far]
}

/// A call that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    func: usize,
    depth: usize,
    context: Context,
    begin: u64,
    end: u64,
    own: u64,
    how: Option<Ending>,
}

/// The calls of each task in the order in which they begin.
type Calls = BTreeMap<usize, Vec<Told>>;

fn read(buffers: &[Buffer]) -> Calls {
    let mut cursors = [const { Cursor::new() }; 2];
    let mut open = [const { Open::new() }; 128];
    let trace = Trace::whole(buffers, Scale::NANOSECONDS, &mut cursors, &mut open);
    let (mut calls, mut under_way) = (Calls::new(), BTreeMap::<usize, Vec<usize>>::new());
    for event in trace.expect("memory") {
        let (call, end) = match event {
            Event::Lost { .. } => panic!("there is room: {event:?}"),
            Event::Begin(call) => (call, None),
            Event::Leaf(call, end) | Event::End(call, end) => (call, Some(end)),
        };
        let calls = calls.entry(call.task).or_default();
        let under_way = under_way.entry(call.task).or_default();
        if !matches!(event, Event::End(..)) {
            under_way.push(calls.len());
            calls.push(Told {
                func: call.func.expect("all are known"),
                depth: call.depth,
                context: call.context,
                begin: call.begin.expect("all are known"),
                end: 0,
                own: 0,
                how: None,
            });
        }
        if let Some(end) = end {
            let told = &mut calls[under_way.pop().expect("it has begun")];
            assert_eq!((Some(told.func), told.depth), (call.func, call.depth));
            (told.end, told.own, told.how) = (end.time, end.own, Some(end.how));
        }
    }
    calls
}

/// What is left of `calls`: those that are chosen by the functions from the
/// outermost to their own, and are not quick.
fn left(calls: &Calls, minimum: u64, chosen: impl Fn(&[usize]) -> bool) -> Calls {
    let left = |calls: &Vec<Told>| {
        let mut left: Vec<Told> = Vec::new();
        // The functions around a call; the depths and places of what is left
        // of its calls.
        let (mut around, mut kept) = (Vec::new(), Vec::<(usize, usize)>::new());
        for call in calls {
            around.truncate(call.depth);
            around.push(call.func);
            while kept.pop_if(|&mut (depth, _)| depth >= call.depth).is_some() {}
            let taken = call.end - call.begin;
            if taken < minimum || !chosen(&around) {
                continue;
            }
            if let Some(&(_, parent)) = kept.last() {
                left[parent].own -= taken;
            }
            kept.push((call.depth, left.len()));
            left.push(Told {
                depth: kept.len() - 1,
                own: taken,
                ..call.clone()
            });
        }
        left
    };
    let calls = calls.iter().map(|(&task, calls)| (task, left(calls)));
    calls.filter(|(_, calls)| !calls.is_empty()).collect()
}

/// A buffer for each of two CPUs.
fn buffers() -> &'static [Buffer] {
    let buffer = |_| {
        let records: Vec<Record> = (0..1 << 14).map(|_| Record::new()).collect();
        Buffer::new(records.leak(), Full::Stop)
    };
    (0..2).map(buffer).collect::<Vec<_>>().leak()
}

kernel!(random);

type Late = LateGraph<random::Kernel>;
type Slow<C> = MinDuration<random::Kernel, C>;

fn new() -> Late {
    Graph::new(buffers()).late()
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Calls, switches of tasks, moves to another CPU and interrupts, by chance.
fn calls_by_chance(steps: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chance = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut scopes = [Vec::new(), Vec::new()];
    let (mut on, mut cpu) = (0, 0);
    for _ in 0..steps {
        match chance(16) {
            0..6 if scopes[on].len() < 12 => {
                let functions = [near(A), B, near(C), D];
                scopes[on].push(random::scope(functions[chance(4) as usize]));
            }
            0..11 => _ = scopes[on].pop(),
            11 => {
                on = 1 - on;
                random::switch(on != 0);
            }
            12 => {
                cpu = 1 - cpu;
                random::set_cpu(cpu);
            }
            13 => random::in_context(Context::Interrupt, || {
                let _a = random::scope(near(A));
                let _b = random::scope(B);
                random::pass(chance(20));
            }),
            _ => random::pass(chance(10)),
        }
        // A clock that stood still would not tell what came first.
        random::pass(1);
    }
    for (on, scopes) in scopes.iter_mut().enumerate() {
        random::switch(on != 0);
        while scopes.pop().is_some() {
            random::pass(1);
        }
    }
}

#[test]
fn a_graph_without_quick_calls_is_what_is_left_of_a_whole_one() {
    const MINIMUM: u64 = 30;
    random::attach();
    let whole = leak(Graph::<random::Kernel>::new(buffers()));
    let slow: &Slow<Late> = leak(MinDuration::new(new(), MINIMUM));
    let all: &Slow<Late> = leak(MinDuration::new(new(), 0));
    let below: &OnlyBelow<Slow<Late>, Predicate> = leak(OnlyBelow::new(
        MinDuration::new(new(), MINIMUM),
        Predicate::new(|func| func == B),
    ));
    let shallow: &Slow<Depth<Late>> = leak(MinDuration::new(Depth::new(new(), 3), MINIMUM));
    let not_below: &Slow<NotBelow<Late, Predicate>> = leak(MinDuration::new(
        NotBelow::new(new(), Predicate::new(|func| func == near(C))),
        MINIMUM,
    ));
    random::FGRAPH.register(whole).unwrap();
    random::FGRAPH.register(slow).unwrap();
    random::FGRAPH.register(all).unwrap();
    random::FGRAPH.register(below).unwrap();
    random::FGRAPH.register(shallow).unwrap();
    random::FGRAPH.register(not_below).unwrap();
    calls_by_chance(20_000);

    let calls = read(whole.buffers());
    let count = |calls: &Calls| calls.values().map(Vec::len).sum::<usize>();
    assert!(count(&calls) > 5_000);
    let is_left = |late: &Late, minimum, chosen: &dyn Fn(&[usize]) -> bool| {
        let left = left(&calls, minimum, chosen);
        let (told, few) = (read(late.graph().buffers()), count(&left));
        assert!(few > 100 && (minimum == 0 || few < count(&calls)), "{few}");
        for (task, left) in &left {
            for (told, left) in told[task].iter().zip(left) {
                assert_eq!(told, left, "task {task}");
            }
        }
        assert_eq!(count(&told), few);
        few
    };
    is_left(all.callback(), 0, &|_| true);
    let few = is_left(slow.callback(), MINIMUM, &|_| true);
    is_left(below.callback().callback(), MINIMUM, &|around| {
        around.contains(&B)
    });
    is_left(shallow.callback().callback(), MINIMUM, &|around| {
        around.len() <= 3
    });
    is_left(not_below.callback().callback(), MINIMUM, &|around| {
        !around.contains(&near(C))
    });
    // What was quick left nothing.
    let records = |late: &Late| {
        late.graph()
            .buffers()
            .iter()
            .map(Buffer::written)
            .sum::<usize>()
    };
    assert!(records(slow.callback()) <= 2 * few);
}

kernel!(all);

/// Of calls that are all kept, both kinds of graph tell the same: sleep, tasks
/// with long numbers, times far apart, addresses that no record holds whole, a
/// depth at which they end.
#[test]
fn a_late_graph_of_all_calls_is_a_whole_one() {
    use all::{Kernel, pass, scope, switch};
    let graph = || Graph::<Kernel>::new(buffers()).max_depth(3);
    let graph = || graph().recorded(Recorded::WITHOUT_SLEEP | Recorded::RETURN_VALUE);
    let whole = leak(graph());
    let late: &MinDuration<Kernel, LateGraph<Kernel>> = leak(MinDuration::new(graph().late(), 0));
    all::attach();
    all::FGRAPH.register(whole).unwrap();
    all::FGRAPH.register(late).unwrap();
    let [a, b, far, _] = functions();
    let unusual = far ^ 1 << (usize::BITS - 6);
    let sleep = || {
        switch(true);
        pass(30);
        switch(false);
    };
    // It has slept before the first call, too.
    sleep();
    for ticks in [5, 1 << 36, 1 << 38, 1 << 41] {
        {
            let _a = scope(a);
            sleep();
            {
                let _unusual = scope(unusual);
                pass(ticks);
                for _ in 0..2 {
                    let _b = scope(b);
                    pass(ticks);
                    sleep();
                    // Too deep.
                    let _c = scope(a);
                    pass(1);
                }
            }
            drop(scope(unusual));
            pass(ticks);
        }
        all::set_task(70_000);
        drop(scope(b));
        pass(1);
        all::set_task(0);
    }
    let (whole, late) = (
        read(whole.buffers()),
        read(late.callback().graph().buffers()),
    );
    assert_eq!(whole[&100].len(), 4 * 5);
    assert_eq!(whole[&70_000].len(), 4);
    assert_eq!(late, whole);
}

kernel!(backwards);

/// The clock goes back after a call was kept: those around it are quick then,
/// and end all the same.
#[test]
fn a_quick_call_around_a_kept_one_is_told_to_its_end() {
    use backwards::{pass, scope, set_clock};
    let late: &MinDuration<backwards::Kernel, LateGraph<backwards::Kernel>> =
        leak(MinDuration::new(Graph::new(buffers()).late(), 10));
    let [a, b, ..] = functions();
    backwards::attach();
    backwards::FGRAPH.register(late).unwrap();
    {
        let _a = scope(a);
        {
            let _b = scope(b);
            pass(10);
        }
        set_clock(1_000);
    }
    let calls = &read(late.callback().graph().buffers())[&100];
    let told = calls.iter().map(|call| (call.func, call.depth, call.how));
    let returned = Some(Ending::Returned);
    assert_eq!(
        told.collect::<Vec<_>>(),
        [(a, 0, returned), (b, 1, returned)]
    );
}

kernel!(endings);

#[test]
fn calls_that_end_otherwise_are_told_so() {
    let late: &MinDuration<endings::Kernel, LateGraph<endings::Kernel>> =
        leak(MinDuration::new(Graph::new(buffers()).late(), 10));
    let [a, b, c, d] = functions();
    endings::attach();
    endings::FGRAPH.register(late).unwrap();
    // `c` is jumped over; a quick `b` is, too, and leaves nothing.
    endings::enter(a, 1);
    for (func, ticks) in [(c, 10), (b, 5)] {
        endings::enter(func, 2);
        endings::pass(ticks);
        endings::enter(d, 1);
        endings::leave(1);
    }
    // `d` is under way, with a call inside that was kept; what is inside is not.
    endings::enter(d, 2);
    endings::enter(a, 3);
    endings::pass(10);
    endings::leave(3);
    endings::enter(b, 3);
    endings::pass(10);
    let calls = read(late.callback().graph().buffers());
    let told: Vec<_> = calls[&100]
        .iter()
        .map(|call| (call.func, call.depth, call.how))
        .collect();
    assert_eq!(
        told,
        [
            (a, 0, Some(Ending::Unwound)),
            (c, 1, Some(Ending::Unwound)),
            (d, 0, Some(Ending::Unfinished)),
            (a, 1, Some(Ending::Returned)),
        ]
    );
}

kernel!(interrupts);

/// An interrupt whose call is kept comes at each reading of the clock, so while
/// the tracers take down calls, too: at their entries and at their ends.
#[test]
fn interrupts_in_the_tracer_leave_each_call_once() {
    const IRQ: usize = 0x10;
    let whole = leak(Graph::<interrupts::Kernel>::new(buffers()));
    let late: &MinDuration<interrupts::Kernel, LateGraph<interrupts::Kernel>> =
        leak(MinDuration::new(Graph::new(buffers()).late(), 10));
    interrupts::attach();
    interrupts::FGRAPH.register(whole).unwrap();
    interrupts::FGRAPH.register(late).unwrap();
    let mut rounds = 0;
    loop {
        interrupts::interrupt_reading(rounds, || {
            let _irq = interrupts::scope(IRQ);
            interrupts::pass(10);
        });
        for func in [A, C] {
            let _outer = interrupts::scope(func);
            let _inner = interrupts::scope(B);
            interrupts::pass(10);
        }
        rounds += 1;
        if !interrupts::interrupted() {
            break;
        }
    }
    let rounds = rounds as usize;
    assert!(rounds > 20, "{rounds} readings");
    for buffers in [whole.buffers(), late.callback().graph().buffers()] {
        let calls = &read(buffers)[&100];
        let count = |func| calls.iter().filter(|call| call.func == func).count();
        let expected = [rounds, rounds, 2 * rounds, rounds - 1];
        assert_eq!([A, C, B, IRQ].map(count), expected);
        for call in calls {
            assert_eq!(call.how, Some(Ending::Returned), "{call:?}");
        }
    }
}
