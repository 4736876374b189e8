//! What a filter hands on to the callback that it wraps: that a call is
//! discarded, and which calls around it are the callback's own.

use fgraph::tracer::filter::{Filtered, MinDuration, NotBelow, OnlyBelow, Predicate};

use crate::{A, B, C, E, Log};

kernel!(discards);

type Slow<C> = MinDuration<discards::Kernel, C>;

/// No time passes in any of these calls.
#[test]
fn through_each_filter_a_quick_call_is_discarded() {
    static LOG: Log = Log::new();
    static PLAIN: Slow<&Log> = MinDuration::new(&LOG, 1);
    static FILTERED: Slow<Filtered<Log, Predicate>> = MinDuration::new(
        Filtered::new(Log::new(), Predicate::new(|func| func != B)),
        1,
    );
    static BELOW: Slow<OnlyBelow<Log, Predicate>> = MinDuration::new(
        OnlyBelow::new(Log::new(), Predicate::new(|func| func == B)),
        1,
    );
    static NOT_BELOW: Slow<NotBelow<Log, Predicate>> = MinDuration::new(
        NotBelow::new(Log::new(), Predicate::new(|func| func == B)),
        1,
    );
    static TWICE: Slow<Slow<Log>> = MinDuration::new(MinDuration::new(Log::new(), 0), 1);

    discards::attach();
    discards::FGRAPH.register(&PLAIN).unwrap();
    discards::FGRAPH.register(&FILTERED).unwrap();
    discards::FGRAPH.register(&BELOW).unwrap();
    discards::FGRAPH.register(&NOT_BELOW).unwrap();
    discards::FGRAPH.register(&TWICE).unwrap();
    let mut calls = Vec::from([A, B, C].map(discards::scope));
    while calls.pop().is_some() {}
    assert_eq!(LOG.take(), "a0( b1( c2( ~c0 ~b1 ~a1 ");
    assert_eq!(FILTERED.callback().callback().take(), "a0( c1( ~c0 ~a1 ");
    assert_eq!(BELOW.callback().callback().take(), "b0( c1( ~c0 ~b1 ");
    assert_eq!(NOT_BELOW.callback().callback().take(), "a0( ~a0 ");
    assert_eq!(
        TWICE.callback().callback().take(),
        "a0( b1( c2( ~c0 ~b1 ~a1 "
    );
}

kernel!(refused);

/// A call of which only the filter keeps something is around others, and none
/// of the callback's own.
#[test]
fn what_only_the_filter_remembers_is_no_parent() {
    static BELOW: OnlyBelow<Log, Predicate> =
        OnlyBelow::new(Log::new(), Predicate::new(|func| func == E));
    refused::attach();
    refused::FGRAPH.register(&BELOW).unwrap();
    let mut calls = Vec::from([A, E, B, C].map(refused::scope));
    while calls.pop().is_some() {}
    assert_eq!(BELOW.callback().take(), "e0( b0( c1( )c0 )b1 ");
}
