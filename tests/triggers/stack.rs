//! The deepest use of each task's stack.

use fgraph::Context;
use fgraph::tracer::filter::{Contexts, Filtered};
use fgraph::tracer::trigger::{Deepest, StackWatch};

use super::{A, B, C, IRQ, Names};

kernel!(watch);

#[test]
fn the_deepest_use_of_each_tasks_stack_is_kept_with_its_chain() {
    use watch::{enter, leave, scope, slot, switch};
    static PLACES: [Deepest<3>; 16] = [const { Deepest::new() }; 16];
    static WATCH: StackWatch<watch::Kernel, 3> = StackWatch::new(&PLACES);
    watch::attach();
    watch::FGRAPH.register(&WATCH).unwrap();
    let size = watch::real_stack().len();
    let used = |depth: usize| watch::real_stack().end - slot(depth);
    enter(A, 1);
    enter(B, 4);
    leave(4);
    enter(C, 3);
    leave(3);
    let found = WATCH.get(100).unwrap();
    assert_eq!(
        (found.used, found.chain_used, found.size),
        (used(4), used(4), size)
    );
    assert_eq!((found.chain(), found.cut()), (&[B, A][..], 0));
    // A scope is part of the chain, an interrupt on the same stack too.
    let _scope = scope(0x4000);
    watch::in_context(Context::Interrupt, || {
        enter(IRQ, 9);
        leave(9);
    });
    let found = WATCH.get(100).unwrap();
    assert_eq!((found.chain(), found.cut()), (&[IRQ, 0x4000, A][..], 0));
    enter(B, 5);
    enter(C, 10);
    leave(10);
    leave(5);
    let found = WATCH.get(100).unwrap();
    assert_eq!((found.chain(), found.cut()), (&[C, B, 0x4000][..], 1));
    assert_eq!(
        found.display(Names).to_string(),
        format!(
            "task 100: {} of {size} bytes\n  c\n  b\n  0x4000\n  (1 more)\n",
            used(10)
        )
    );
    assert_eq!(WATCH.get(101), None);
    // The other task's calls, on the first one's stack: not its own.
    switch(true);
    let before = WATCH.foreign();
    enter(A, 20);
    leave(20);
    assert_eq!(WATCH.foreign(), before + 1);
    switch(false);
    assert_eq!(WATCH.iter().count(), 1);
    drop(_scope);
    leave(1);
    // A new task with the old one's number.
    WATCH.forget(100);
    assert_eq!(WATCH.get(100), None);
    enter(A, 2);
    leave(2);
    let found = WATCH.get(100).unwrap();
    assert_eq!((found.used, found.chain()), (used(2), &[A][..]));
    WATCH.reset();
    assert_eq!(
        (WATCH.iter().count(), WATCH.foreign(), WATCH.lost()),
        (0, 0, 0)
    );
}

kernel!(watch_filtered);

#[test]
fn a_watch_takes_filters() {
    use watch_filtered::{enter, in_context, leave};
    static PLACES: [Deepest; 16] = [const { Deepest::new() }; 16];
    static WATCH: Filtered<StackWatch<watch_filtered::Kernel>, Contexts> =
        Filtered::new(StackWatch::new(&PLACES), Contexts::TASK);
    watch_filtered::attach();
    watch_filtered::FGRAPH.register(&WATCH).unwrap();
    enter(A, 1);
    in_context(Context::Interrupt, || {
        assert!(!enter(IRQ, 9), "nobody wants its return");
    });
    leave(1);
    assert_eq!(WATCH.callback().get(100).unwrap().chain(), [A]);
}
