//! Triggers: what they hold, exactly.
#[macro_use]
#[path = "common/fake.rs"]
mod fake;
#[path = "triggers/stack.rs"]
mod stack;

use fgraph::tracer::filter::{Filtered, Not, Predicate, Switch};
use fgraph::tracer::profile::Row;
use fgraph::tracer::trigger::{Counts, MaxLatency, Measure, StackWatch, Tally, Tree, Trigger};
use fgraph::tracer::{Profile, Scale, Symbol, Symbols};
use fgraph::{Cause, Context};

const A: usize = 0x1000;
const B: usize = 0x2000;
const C: usize = 0x3000;
const IRQ: usize = 0x8000;

struct Names;
impl Symbols for Names {
    fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
        let (name, start) = match address {
            A => ("a", A),
            B => ("b", B),
            C => ("c", C),
            IRQ => ("irq", IRQ),
            _ => return None,
        };
        Some(Symbol { name, start })
    }
}

kernel!(stop);

#[test]
fn a_trigger_turns_its_switch_at_the_chosen_calls() {
    use stop::{pass, scope};
    static TRACING: Switch = Switch::new(false);
    static START: Trigger<Predicate> =
        Trigger::new(Predicate::new(|func| func == A), &TRACING, true)
            .skip(1)
            .times(2);
    static STOP: Trigger<Predicate> =
        Trigger::new(Predicate::new(|func| func == B), &TRACING, false);
    static ROWS: [Row; 16] = [const { Row::new() }; 16];
    static PROFILE: Filtered<Profile<stop::Kernel>, &Switch> =
        Filtered::new(Profile::new(&ROWS), &TRACING);
    stop::attach();
    stop::FGRAPH.register(&START).unwrap();
    let profile = stop::FGRAPH.register(&PROFILE).unwrap();
    stop::FGRAPH.register(&STOP).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let _a = scope(A);
        pass(1);
        for func in [C, B, C] {
            let _inside = scope(func);
            seen.push(TRACING.is_on());
        }
    }
    // Off and passed; twice on until B; then off for good.
    let (on, off) = ([true, false, false], [false; 3]);
    assert_eq!(seen, [off, on, on, off].concat());
    assert_eq!((START.hits(), STOP.hits()), (4, 4));
    let hits = |func| PROFILE.callback().get(func).map_or(0, |line| line.hits);
    // Registered after the first and before the second: B itself is seen. The
    // calls of A that were begun are seen to their end.
    assert_eq!([A, B, C].map(hits), [2, 2, 2]);
    assert!(stop::FGRAPH.is_registered(profile));
    START.rearm();
    drop((scope(A), scope(A)));
    assert!(TRACING.is_on());
    assert_eq!(START.hits(), 2);
}

kernel!(counts);

#[test]
fn counts_are_exact_and_what_finds_no_tally_is_counted_together() {
    static TALLIES: [Tally; 4] = [const { Tally::new() }; 4];
    static COUNTS: Counts = Counts::new(&TALLIES);
    counts::attach();
    counts::FGRAPH.register(&COUNTS).unwrap();
    for func in 0..7 {
        for _ in 0..=func {
            let _call = counts::scope(func * 0x1000);
            assert_eq!(counts::stack().depth(), 0, "no return is awaited");
        }
    }
    let mut counted: Vec<_> = COUNTS.iter().collect();
    counted.sort();
    // The first four found one; 0 is no function.
    assert_eq!(counted, [(A, 2), (B, 3), (C, 4), (0x4000, 5)]);
    assert_eq!(COUNTS.others(), 1 + 6 + 7);
    assert_eq!((COUNTS.get(B), COUNTS.get(0x5000)), (3, 0));
    COUNTS.clear();
    drop(counts::scope(B));
    assert_eq!(
        (COUNTS.iter().collect::<Vec<_>>(), COUNTS.others()),
        (vec![(B, 1)], 0)
    );
}

/// The worst tree as `(func, depth, duration)`.
macro_rules! shown {
    ($worst:expr) => {
        $worst.worst().map(|tree| {
            let calls = tree
                .calls()
                .map(|call| (call.func, call.depth, call.duration));
            calls.collect::<Vec<_>>()
        })
    };
}

kernel!(slowest);

#[test]
fn the_slowest_tree_is_kept() {
    use slowest::{pass, scope};
    static TREES: [Tree<8>; 3] = [const { Tree::new() }; 3];
    static WORST: MaxLatency<slowest::Kernel, Predicate, 8> =
        MaxLatency::new(&TREES, Predicate::new(|func| func == A), Measure::Slowest).at_least(10);
    slowest::attach();
    slowest::FGRAPH.register(&WORST).unwrap();
    let tree = |inside: &[(usize, u64)]| {
        let _a = scope(A);
        pass(1);
        for &(func, ticks) in inside {
            let _call = scope(func);
            let _deeper = scope(func + 0x10);
            pass(ticks);
        }
    };
    drop(scope(B));
    tree(&[(B, 8)]);
    assert!(WORST.worst().is_none(), "less than asked for");
    tree(&[(B, 9)]);
    let first = vec![(A, 0, 10), (B, 1, 9), (B + 0x10, 2, 9)];
    assert_eq!(shown!(WORST), Some(first.clone()));
    tree(&[(C, 9)]);
    assert_eq!(shown!(WORST), Some(first), "of equals the first");
    tree(&[(C, 5), (B, 5)]);
    let second = vec![
        (A, 0, 11),
        (C, 1, 5),
        (C + 0x10, 2, 5),
        (B, 1, 5),
        (B + 0x10, 2, 5),
    ];
    assert_eq!(shown!(WORST), Some(second));
    // Full: the last calls find no place.
    tree(&[(B, 1), (C, 2), (B, 3), (C, 4), (B, 5)]);
    let worst = WORST.worst().unwrap();
    assert_eq!((worst.score(), worst.lost(), worst.task()), (16, 3, 100));
    assert_eq!(
        worst
            .display(Names, Scale::new(1, 1_500_000).unwrap())
            .to_string(),
        "\
24000.000 us  a
 1500.000 us    b
 1500.000 us      0x2010
 3000.000 us    c
 3000.000 us      0x3010
 4500.000 us    b
 4500.000 us      0x2010
 6000.000 us    c
(3 calls found no place)
"
    );
    // While it is read it can not be taken again; a lesser one takes its place,
    // until it is put back.
    tree(&[(B, 9)]);
    assert_eq!(shown!(WORST).unwrap()[0], (A, 0, 10));
    drop(worst);
    assert_eq!(shown!(WORST).unwrap()[0], (A, 0, 16));
    let worst = WORST.worst().unwrap();
    assert!(WORST.worst().is_none());
    tree(&[(B, 100)]);
    assert_eq!(worst.score(), 16, "what is read stands still");
    drop(worst);
    assert_eq!(shown!(WORST).unwrap()[0], (A, 0, 101));
    WORST.clear();
    assert!(WORST.worst().is_none());
    assert_eq!((WORST.missed(), WORST.backwards()), (0, 0));
}

kernel!(deepest);

#[test]
fn the_deepest_tree_is_kept() {
    use deepest::{pass, scope};
    static TREES: [Tree<16>; 2] = [const { Tree::new() }; 2];
    static WORST: MaxLatency<deepest::Kernel, Predicate, 16> =
        MaxLatency::new(&TREES, Predicate::new(|func| func == A), Measure::Deepest);
    deepest::attach();
    deepest::FGRAPH.register(&WORST).unwrap();
    fn down(depth: usize, ticks: u64) {
        // The chosen function inside itself is part of the tree.
        let _a = scope(A);
        pass(ticks);
        if depth > 1 {
            down(depth - 1, ticks);
        }
    }
    down(2, 1000);
    down(4, 1);
    down(3, 2000);
    assert_eq!(
        shown!(WORST),
        Some(vec![(A, 0, 4), (A, 1, 3), (A, 2, 2), (A, 3, 1)])
    );
    assert_eq!(WORST.worst().unwrap().score(), 4);
}

kernel!(tasks);

#[test]
fn trees_of_tasks_that_take_turns_do_not_mix() {
    use tasks::{pass, scope, switch};
    static TREES: [Tree<8>; 2] = [const { Tree::new() }; 2];
    static WORST: MaxLatency<tasks::Kernel, Predicate, 8> =
        MaxLatency::new(&TREES, Predicate::new(|func| func == A), Measure::Slowest);
    tasks::attach();
    let id = tasks::FGRAPH.register(&WORST).unwrap();
    let first = scope(A);
    pass(1);
    switch(true);
    let other = scope(A);
    switch(false);
    let inside = scope(B);
    pass(10);
    switch(true);
    let other_inside = scope(C);
    // No tree is free.
    switch(false);
    tasks::in_context(Context::Interrupt, || drop(scope(IRQ)));
    drop(inside);
    drop(first);
    assert_eq!(
        shown!(WORST),
        Some(vec![(A, 0, 11), (B, 1, 10), (IRQ, 2, 0)])
    );
    drop(scope(A));
    assert_eq!(WORST.missed(), 1, "one is kept, one runs");
    switch(true);
    pass(100);
    drop(other_inside);
    // SAFETY: nothing of it will return.
    unsafe { tasks::FGRAPH.exit_task(tasks::stack()) }.unwrap();
    drop(other);
    switch(false);
    let worst = WORST.worst().unwrap();
    let calls: Vec<_> = worst.calls().map(|call| (call.func, call.cause)).collect();
    assert_eq!(
        calls,
        [(A, Some(Cause::TaskExit)), (C, Some(Cause::Returned))]
    );
    assert_eq!(worst.task(), 101);
    drop(worst);
    // Unregistered while a call is followed: its tree comes back by a reset.
    let call = scope(A);
    tasks::FGRAPH.unregister(id).unwrap();
    drop(call);
    WORST.reset();
    tasks::FGRAPH.register(&WORST).unwrap();
    drop(scope(A));
    assert_eq!(shown!(WORST), Some(vec![(A, 0, 0)]));
    assert_eq!(WORST.missed(), 0);
}

kernel!(interrupted);

#[test]
fn an_interrupt_while_a_call_is_taken_down_is_not_inside_it() {
    use interrupted::{enter, in_context, leave, pass, scope, set_clock, tail_call};
    static TREES: [Tree<8>; 2] = [const { Tree::new() }; 2];
    static WORST: MaxLatency<interrupted::Kernel, Predicate, 8> =
        MaxLatency::new(&TREES, Predicate::new(|func| func == A), Measure::Slowest);
    interrupted::attach();
    interrupted::FGRAPH.register(&WORST).unwrap();
    fn handler() {
        let _irq = scope(IRQ);
        pass(10);
        in_context(Context::Nmi, || drop(scope(IRQ + 0x10)));
    }
    {
        let _a = scope(A);
        // In B's entry, after it has its place.
        interrupted::interrupt_reading(0, handler);
        let _b = scope(B);
        assert!(interrupted::interrupted());
        drop(scope(C));
        pass(1);
    }
    assert_eq!(
        shown!(WORST),
        Some(vec![
            (A, 0, 11),
            (B, 1, 1),
            (C, 2, 0),
            (IRQ, 1, 10),
            (IRQ + 0x10, 2, 0)
        ])
    );
    let worst = WORST.worst().unwrap();
    let contexts: Vec<_> = worst.calls().map(|call| call.context).collect();
    use Context::{Interrupt, Nmi, Task};
    assert_eq!(contexts, [Task, Task, Task, Interrupt, Nmi]);
    drop(worst);
    // Tail calls are inside; what is jumped over ends unwound.
    enter(A, 1);
    tail_call(B, 1);
    enter(C, 2);
    pass(50);
    leave(1);
    leave(1);
    let worst = WORST.worst().unwrap();
    assert_eq!(
        worst.display(Names, Scale::NANOSECONDS).to_string(),
        "0.050 us  a\n0.050 us    b\n0.050 us      c (unwound)\n"
    );
    drop(worst);
    WORST.clear();
    {
        let _a = scope(A);
        set_clock(5);
    }
    assert_eq!(shown!(WORST), Some(vec![(A, 0, 0)]));
    assert_eq!(WORST.backwards(), 1);
}

kernel!(none);

#[test]
fn without_memory_nothing_is_followed() {
    static NO_TREES: MaxLatency<none::Kernel, Predicate, 4> =
        MaxLatency::new(&[], Predicate::new(|_| true), Measure::Slowest);
    static EMPTY: [Tree<0>; 2] = [const { Tree::new() }; 2];
    static NO_PLACES: MaxLatency<none::Kernel, Predicate, 0> =
        MaxLatency::new(&EMPTY, Predicate::new(|_| true), Measure::Deepest);
    static COUNTS: Counts = Counts::new(&[]);
    static WATCH: StackWatch<none::Kernel, 0> = StackWatch::new(&[]);
    none::attach();
    none::FGRAPH.register(&NO_TREES).unwrap();
    none::FGRAPH.register(&NO_PLACES).unwrap();
    none::FGRAPH.register(&COUNTS).unwrap();
    none::FGRAPH.register(&WATCH).unwrap();
    none::enter(A, 1);
    none::leave(1);
    assert_eq!(NO_TREES.missed(), 1);
    assert_eq!(COUNTS.others(), 1);
    assert_eq!(WATCH.lost(), 1);
    assert!(NO_TREES.worst().is_none() && NO_PLACES.worst().is_none());
}

#[test]
fn trees_survive_threads_that_compete_and_read() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    static TREES: [Tree<4>; 3] = [const { Tree::new() }; 3];
    static WORST: MaxLatency<threads::Kernel, Not<Predicate>, 4> = MaxLatency::new(
        &TREES,
        Not(Predicate::new(|func| func == C)),
        Measure::Slowest,
    );
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    threads::FGRAPH.register(&WORST).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=3_u64 {
            scope.spawn(move || {
                threads::attach();
                let mut random = seed;
                for _ in 0..5_000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let ticks = random >> 50;
                    let missed = WORST.missed();
                    let call = threads::FGRAPH.scope(ticks as usize + 1, 0);
                    for _ in 0..2 {
                        let _inside = threads::FGRAPH.scope(C, 0);
                    }
                    threads::pass(ticks);
                    drop(call);
                    // Nobody was refused meanwhile, so this one was not.
                    if WORST.missed() == missed {
                        LONGEST.fetch_max(ticks, SeqCst);
                    }
                    if let Some(worst) = WORST.worst() {
                        let calls: Vec<_> = worst.calls().collect();
                        assert_eq!(calls.len(), 3);
                        assert_eq!(calls[0].func as u64, worst.score() + 1);
                        assert_eq!(calls[0].duration, worst.score());
                        assert!(
                            calls[1..]
                                .iter()
                                .all(|call| (call.func, call.depth) == (C, 1))
                        );
                    }
                }
            });
        }
    });
    let worst = WORST.worst().unwrap();
    assert!(worst.score() >= LONGEST.load(SeqCst) && worst.score() > 0);
}

/// Threads as tasks, each with a clock of its own.
mod threads {
    use fgraph::{Fgraph, Platform, RetStack};
    use std::cell::Cell;

    pub struct Kernel;
    pub static FGRAPH: Fgraph<Kernel> = Fgraph::new();
    thread_local! {
        static STACK: RetStack = const { RetStack::new() };
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    // SAFETY: each thread has its own stack.
    unsafe impl Platform for Kernel {
        fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
            STACK.try_with(|stack| f(stack)).ok()
        }
        fn clock() -> u64 {
            NOW.get()
        }
    }

    pub fn attach() {
        let words = Box::leak(Box::new([0; 256]));
        STACK.with(|stack| stack.attach(words, 0..0)).unwrap();
    }

    pub fn pass(ticks: u64) {
        NOW.set(NOW.get() + ticks);
    }
}
