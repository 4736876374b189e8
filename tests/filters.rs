//! Filters, alone and in each other: what the wrapped callback sees is
//! compared as a whole.
#[macro_use]
#[path = "common/fake.rs"]
mod fake;
#[path = "filters/graphs.rs"]
mod graphs;
#[path = "filters/log.rs"]
mod log;
#[path = "filters/wrapped.rs"]
mod wrapped;

use fgraph::tracer::filter::{
    Contexts, Cpus, Depth, Filter, Filtered, Functions, MinDuration, Not, NotBelow, OnlyBelow,
    Predicate, Switch, Tasks, UnsortedError,
};
use fgraph::{Context, Entry, FrameData};

use log::Log;

const A: usize = 0xa;
const B: usize = 0xb;
const C: usize = 0xc;
const D: usize = 0xd;
const E: usize = 0xe;
const IRQ: usize = 0x1;

/// Calls inside each other, and then their returns.
macro_rules! nest {
    ($kernel:ident: $($func:expr),*) => {{
        let mut scopes = vec![$($kernel::scope($func)),*];
        while scopes.pop().is_some() {}
    }};
}

kernel!(plain);

#[test]
fn without_a_filter_all_is_seen() {
    static LOG: Log = Log::new();
    plain::attach();
    plain::FGRAPH.register(&LOG).unwrap();
    nest!(plain: A, E, B);
    assert_eq!(LOG.take(), "a0( e1( b1( )b0 )a2 ");
}

kernel!(functions);

#[test]
fn by_function() {
    static RANGES: [std::ops::Range<usize>; 3] = [A..A + 1, C..D, E..0x20];
    static SOME: Filtered<Log, Functions> = Filtered::new(
        Log::new(),
        match Functions::new(&RANGES) {
            Ok(functions) => functions,
            Err(_) => panic!(),
        },
    );
    static NONE: Filtered<Log, Functions> = Filtered::new(
        Log::new(),
        match Functions::new(&[]) {
            Ok(functions) => functions,
            Err(_) => panic!(),
        },
    );
    functions::attach();
    functions::FGRAPH.register(&SOME).unwrap();
    functions::FGRAPH.register(&NONE).unwrap();
    nest!(functions: A, B, C, D, 0x1f, 0x20);
    assert_eq!(SOME.callback().take(), "a0( c1( 1f2( )1f0 )c1 )a1 ");
    assert_eq!(NONE.callback().take(), "", "no ranges accept none");
    // The other's refusals took nothing from this one, nor the reverse.
    let contains = |func| SOME.filter().contains(func);
    assert!([A, C, E, 0x1f].into_iter().all(contains));
    assert!(![0, A - 1, B, D, 0x20, usize::MAX].into_iter().any(contains));
    for ranges in [
        &[2..3, 1..2][..],
        &[1..3, 2..4],
        &[std::ops::Range { start: 3, end: 1 }],
    ] {
        let ranges = Vec::leak(ranges.to_vec());
        assert_eq!(Functions::new(ranges).unwrap_err(), UnsortedError);
    }
    assert!(Functions::new(&[0..0, 0..2, 2..usize::MAX]).is_ok());
}

kernel!(by_call);

#[test]
fn by_task_cpu_context_and_switch() {
    use by_call::{Kernel, in_context, scope, set_cpu, switch};
    static TASKS: Tasks<Kernel, 2> = Tasks::new();
    static CPUS: Cpus<Kernel> = Cpus::new();
    static ON: Switch = Switch::new(true);
    static BY_TASK: Filtered<Log, &Tasks<Kernel, 2>> = Filtered::new(Log::new(), &TASKS);
    static BY_CPU: Filtered<Log, &Cpus<Kernel>> = Filtered::new(Log::new(), &CPUS);
    static BY_CONTEXT: Filtered<Log, Contexts> =
        Filtered::new(Log::new(), Contexts::INTERRUPT.union(Contexts::NMI));
    static BY_SWITCH: Filtered<Log, (&Switch, Not<Predicate>)> =
        Filtered::new(Log::new(), (&ON, Not(Predicate::new(|func| func == B))));
    static ALL: Log = Log::new();
    by_call::attach();
    by_call::FGRAPH.register(&BY_TASK).unwrap();
    by_call::FGRAPH.register(&BY_CPU).unwrap();
    by_call::FGRAPH.register(&BY_CONTEXT).unwrap();
    by_call::FGRAPH.register(&ALL).unwrap();
    by_call::FGRAPH.register(&BY_SWITCH).unwrap();
    let taken = || {
        let logs = [BY_TASK.callback(), BY_CPU.callback(), BY_CONTEXT.callback()];
        logs.map(Log::take)
    };
    // Nothing chosen accepts nothing.
    drop(scope(A));
    assert_eq!(taken(), ["", "", ""]);
    assert!(TASKS.add(101) && CPUS.set(1, true));
    let a = scope(A);
    switch(true);
    let b = scope(B);
    in_context(Context::Interrupt, || nest!(by_call: IRQ, C));
    switch(false);
    set_cpu(1);
    let c = scope(C);
    // What began on another CPU, in another task, ends as it began.
    set_cpu(0);
    TASKS.remove(101);
    ON.set(false);
    drop(c);
    in_context(Context::SoftInterrupt, || nest!(by_call: D));
    drop(a);
    switch(true);
    drop(b);
    switch(false);
    assert_eq!(
        taken(),
        ["b0( 11( c2( )c0 )11 )b1 ", "c0( )c0 ", "10( c1( )c0 )11 "]
    );
    assert_eq!(
        BY_SWITCH.callback().take(),
        "a0( )a0 a0( 10( c1( )c0 )11 c1( )c0 )a1 "
    );
    assert_eq!(
        ALL.take(),
        "a0( )a0 a0( b0( 11( c2( )c0 )11 c1( )c0 d1( )d0 )a2 )b1 "
    );
    let cpu = Cpus::<Kernel, 2>::new();
    assert!(cpu.set(usize::BITS as usize + 3, true) && cpu.contains(usize::BITS as usize + 3));
    assert!(!cpu.contains(3) && !cpu.set(2 * usize::BITS as usize, true));
    assert!(!TASKS.add(usize::MAX) && !TASKS.remove(usize::MAX));
}

kernel!(depth);

#[test]
fn by_depth_of_its_own_calls() {
    static ALL: Log = Log::new();
    static TWO: Depth<Filtered<Log, Predicate>> = Depth::new(
        Filtered::new(Log::new(), Predicate::new(|func| func != B)),
        2,
    );
    depth::attach();
    depth::FGRAPH.register(&ALL).unwrap();
    depth::FGRAPH.register(&TWO).unwrap();
    let two = TWO.callback().callback();
    // B and E are refused and not counted; the other's calls are not either.
    nest!(depth: B, A, B, E, C, D, B, A);
    assert_eq!(two.take(), "a0( e1( c1( )c0 )a2 ");
    assert_eq!(
        ALL.take(),
        "b0( a1( b2( e3( c3( d4( b5( a6( )a0 )b1 )d1 )c1 )b2 )a1 )b1 "
    );
    // An interrupt is inside what it interrupts.
    let a = depth::scope(A);
    depth::in_context(Context::Interrupt, || nest!(depth: IRQ, C));
    drop(a);
    assert_eq!(two.take(), "a0( 11( )10 )a1 ");
    TWO.set_limit(0);
    nest!(depth: A);
    TWO.set_limit(usize::MAX);
    nest!(depth: A, C, D);
    assert_eq!(two.take(), "a0( c1( d2( )d0 )c1 )a1 ");
}

kernel!(only_below);

#[test]
fn only_below_a_function() {
    static ALL: Log = Log::new();
    static BELOW: OnlyBelow<Log, Predicate> =
        OnlyBelow::new(Log::new(), Predicate::new(|func| func == B));
    // The chosen function itself is refused by what is inside: E and B.
    static REFUSED: OnlyBelow<Filtered<Log, Predicate>, Predicate> = OnlyBelow::new(
        Filtered::new(Log::new(), Predicate::new(|func| func != B)),
        Predicate::new(|func| func == B || func == E),
    );
    only_below::attach();
    only_below::FGRAPH.register(&BELOW).unwrap();
    only_below::FGRAPH.register(&ALL).unwrap();
    only_below::FGRAPH.register(&REFUSED).unwrap();
    let refused = REFUSED.callback().callback();
    nest!(only_below: A, B, C, E, D, B, A);
    nest!(only_below: A, C);
    assert_eq!(
        BELOW.callback().take(),
        "b0( c1( e2( d2( b3( a4( )a0 )b1 )d1 )c2 )b1 "
    );
    assert_eq!(refused.take(), "c0( e1( d1( a2( )a0 )d1 )c2 ");
    nest!(only_below: A, E, C);
    assert_eq!(refused.take(), "e0( c0( )c0 ");
    // A sibling after it is not below.
    {
        let _a = only_below::scope(A);
        nest!(only_below: B);
        nest!(only_below: C);
    }
    assert_eq!(BELOW.callback().take(), "b0( )b0 ");
    ALL.take();
}

kernel!(not_below);

#[test]
fn not_below_a_function() {
    static NOT: NotBelow<Log, Predicate> =
        NotBelow::new(Log::new(), Predicate::new(|func| func == B));
    not_below::attach();
    not_below::FGRAPH.register(&NOT).unwrap();
    {
        let _a = not_below::scope(A);
        nest!(not_below: B, C, B, D);
        nest!(not_below: E, D);
        let _b = not_below::scope(B);
        not_below::in_context(Context::Nmi, || nest!(not_below: IRQ));
    }
    assert_eq!(NOT.callback().take(), "a0( e1( d1( )d0 )a2 ");
}

kernel!(nested);

/// Each in each other, over the same calls.
#[test]
fn filters_in_filters() {
    type Below<C> = OnlyBelow<C, Predicate>;
    type Mute<C> = NotBelow<C, Predicate>;
    const fn is_b(func: usize) -> bool {
        func == B
    }
    const fn is_d(func: usize) -> bool {
        func == D
    }
    static BELOW_MUTE_DEPTH: Below<Mute<Depth<Log>>> = OnlyBelow::new(
        NotBelow::new(Depth::new(Log::new(), 2), Predicate::new(is_d)),
        Predicate::new(is_b),
    );
    static MUTE_BELOW: Mute<Below<Log>> = NotBelow::new(
        OnlyBelow::new(Log::new(), Predicate::new(is_b)),
        Predicate::new(is_d),
    );
    static DEPTH_BELOW: Depth<Below<Log>> =
        Depth::new(OnlyBelow::new(Log::new(), Predicate::new(is_b)), 3);
    static BELOW_BELOW: Below<Below<Log>> = OnlyBelow::new(
        OnlyBelow::new(Log::new(), Predicate::new(is_d)),
        Predicate::new(is_b),
    );
    static SHARED: Log = Log::new();
    static SHARED_BELOW: Below<&Log> = OnlyBelow::new(&SHARED, Predicate::new(is_d));
    nested::attach();
    nested::FGRAPH.register(&BELOW_MUTE_DEPTH).unwrap();
    nested::FGRAPH.register(&MUTE_BELOW).unwrap();
    nested::FGRAPH.register(&DEPTH_BELOW).unwrap();
    nested::FGRAPH.register(&BELOW_BELOW).unwrap();
    nested::FGRAPH.register(&SHARED_BELOW).unwrap();
    let logs = || {
        [
            BELOW_MUTE_DEPTH.callback().callback().callback().take(),
            MUTE_BELOW.callback().callback().take(),
            DEPTH_BELOW.callback().callback().take(),
            BELOW_BELOW.callback().callback().take(),
            SHARED.take(),
        ]
    };
    nest!(nested: A, B, C, D, A, B, C);
    assert_eq!(
        logs(),
        [
            "b0( c1( )c0 )b1 ",
            "b0( c1( )c0 )b1 ",
            "b0( c1( d2( )d0 )c1 )b1 ",
            "d0( a1( b2( c3( )c0 )b1 )a1 )d1 ",
            "d0( a1( b2( c3( )c0 )b1 )a1 )d1 ",
        ]
    );
    nest!(nested: D, B, E, C, A, A);
    assert_eq!(
        logs(),
        [
            "b0( e1( c1( )c0 )b2 ",
            "",
            "b0( e1( c1( a2( )a0 )c1 )b2 ",
            "",
            "d0( b1( e2( c2( a3( a4( )a0 )a1 )c1 )b2 )d1 ",
        ]
    );
    assert_eq!(nested::STACK.depth(), 0, "nothing is left behind");
    assert_eq!(nested::STACK.counters().strays, 0);
}

kernel!(quick);

#[test]
fn quick_calls_leave_no_record() {
    use quick::{pass, scope};
    type Slow<C> = MinDuration<quick::Kernel, C>;
    static SLOW: Slow<Log> = MinDuration::new(Log::new(), 10);
    static BELOW: OnlyBelow<Slow<Depth<Log>>, Predicate> = OnlyBelow::new(
        MinDuration::new(Depth::new(Log::new(), 2), 10),
        Predicate::new(|func| func == B),
    );
    static OUTER: Slow<NotBelow<Log, Predicate>> = MinDuration::new(
        NotBelow::new(Log::new(), Predicate::new(|func| func == C)),
        15,
    );
    quick::attach();
    quick::FGRAPH.register(&SLOW).unwrap();
    quick::FGRAPH.register(&BELOW).unwrap();
    quick::FGRAPH.register(&OUTER).unwrap();
    {
        let _a = scope(A);
        let _b = scope(B);
        for ticks in [9, 10] {
            let _c = scope(C);
            let _d = scope(D);
            pass(ticks);
        }
    }
    assert_eq!(
        SLOW.callback().take(),
        "a0( b1( c2( d3( ~d0 ~c1 c2( d3( )d0 )c1 )b2 )a1 "
    );
    assert_eq!(
        BELOW.callback().callback().callback().take(),
        "b0( c1( ~c0 c1( )c0 )b2 "
    );
    assert_eq!(OUTER.callback().callback().take(), "a0( b1( )b0 )a1 ");
    // The clock goes back: no time.
    let a = scope(A);
    quick::set_clock(0);
    drop(a);
    assert_eq!(SLOW.callback().take(), "a0( ~a0 ");
    assert_eq!((SLOW.backwards(), OUTER.backwards()), (1, 1));
}

kernel!(endings);

#[test]
fn jumps_tail_calls_and_ends_of_tasks() {
    use endings::{attach, enter, in_context, leave, switch, tail_call};
    type Chosen = OnlyBelow<Depth<NotBelow<Log, Predicate>>, Predicate>;
    static CHOSEN: Chosen = OnlyBelow::new(
        Depth::new(
            NotBelow::new(Log::new(), Predicate::new(|func| func == D)),
            3,
        ),
        Predicate::new(|func| func == B),
    );
    static ALL: Log = Log::new();
    attach();
    endings::FGRAPH.register(&ALL).unwrap();
    endings::FGRAPH.register(&CHOSEN).unwrap();
    let log = CHOSEN.callback().callback().callback();

    // B jumps to C: what C calls is below B. D's callees are not seen.
    enter(A, 1);
    enter(B, 2);
    tail_call(C, 2);
    enter(A, 3);
    enter(A, 4);
    leave(4);
    leave(3);
    leave(2);
    leave(2);
    leave(1);
    assert_eq!(log.take(), "b0( c1( a2( )a0 )c1 )b1 ");

    // Jumped over: below D, and B itself. The next call is proof, and is not
    // below them any more.
    enter(A, 1);
    enter(B, 2);
    enter(D, 3);
    enter(C, 4);
    enter(A, 2);
    enter(C, 3);
    leave(3);
    leave(2);
    leave(1);
    assert_eq!(log.take(), "b0( )b!0 ");

    // Muted, jumped out of, and B goes on.
    enter(B, 1);
    enter(D, 2);
    enter(C, 3);
    in_context(Context::Interrupt, || {
        enter(IRQ, 4);
        leave(4);
    });
    enter(C, 2);
    in_context(Context::Interrupt, || {
        enter(IRQ, 4);
        leave(4);
    });
    // Another task meanwhile, which is below nothing.
    switch(true);
    nest!(endings: A, C);
    nest!(endings: B, D, A);
    let _unfinished = [endings::scope(B), endings::scope(D), endings::scope(A)];
    // SAFETY: nothing of it will return.
    unsafe { endings::FGRAPH.exit_task(endings::stack()) }.unwrap();
    switch(false);
    leave(2);
    leave(1);
    assert_eq!(log.take(), "b0( c1( 12( )10 b0( )b0 b0( )bx0 )c1 )b1 ");
    assert_eq!(endings::STACK.depth(), 0);
    // All callbacks saw the ends of all that they had accepted.
    let all = ALL.take();
    assert_eq!(all.matches('(').count(), all.matches(')').count());
}

kernel!(late);

/// Registered while the chosen function runs: what is below is not seen, as
/// that call was not. Unregistered inside of it, and registered again: the old
/// frames count for nothing.
#[test]
fn what_a_filter_remembers_is_its_registrations() {
    static BELOW: OnlyBelow<Depth<Log>, Predicate> =
        OnlyBelow::new(Depth::new(Log::new(), 1), Predicate::new(|func| func == B));
    static ALL: Log = Log::new();
    late::attach();
    late::FGRAPH.register(&ALL).unwrap();
    let log = BELOW.callback().callback();
    let b = late::scope(B);
    let id = late::FGRAPH.register(&BELOW).unwrap();
    nest!(late: C);
    assert_eq!(log.take(), "");
    let inner = late::scope(B);
    nest!(late: C);
    assert_eq!(log.take(), "b0( ");
    late::FGRAPH.unregister(id).unwrap();
    late::FGRAPH.register(&BELOW).unwrap();
    nest!(late: C);
    nest!(late: B, C);
    drop(inner);
    drop(b);
    assert_eq!(log.take(), "b0( )b0 ");
}

kernel!(small);

/// With no room for its words, a filter takes no part, and says so.
#[test]
fn a_full_stack_is_counted_for_the_filter() {
    type Chosen = OnlyBelow<Depth<Log>, Predicate>;
    static CHOSEN: Chosen = OnlyBelow::new(
        Depth::new(Log::new(), usize::MAX),
        Predicate::new(|func| func == A),
    );
    // Each frame: its head, five words and an index word; room for three. These
    // functions are nowhere near, so frames are wide.
    small::attach_words(3 * (fgraph::ret_stack::WIDE_WORDS + 5 + 1));
    let id = small::FGRAPH.register(&CHOSEN).unwrap();
    nest!(small: A, B, C, D, B);
    let log = CHOSEN.callback().callback();
    assert_eq!(log.take(), "a0( b1( c2( )c0 )b1 )a1 ");
    assert_eq!(small::FGRAPH.missed(id), 2);
}

/// A kernel's own filter sees the call.
struct Marked;
impl Filter for Marked {
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        call.caller() == 0x77 && call.context() == Context::Task && call.parent().is_none()
    }
}

kernel!(own);

#[test]
fn a_kernels_own_filter() {
    static LOG: Filtered<Log, Marked> = Filtered::new(Log::new(), Marked);
    own::attach();
    own::FGRAPH.register(&LOG).unwrap();
    let _a = own::FGRAPH.scope(A, 0x77);
    drop(own::FGRAPH.scope(B, 0x77));
    assert_eq!(LOG.callback().take(), "a0( ");
}
