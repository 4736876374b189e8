//! Who is called, in which order, with what: whole event sequences.

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::own::{Own, fgraph, in_context, slots, with_stack};
use fgraph::fgraph::{Call, RegisterError, UnregisterError};
use fgraph::{Callback, Cause, Context, Entry, Exit, Fgraph};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Entry {
        who: usize,
        func: usize,
        depth: usize,
    },
    Exit {
        who: usize,
        func: usize,
        cause: Cause,
    },
}
use Event::{Entry as In, Exit as Out};

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn events() -> Vec<Event> {
    EVENTS.take()
}

fn enter(who: usize, func: usize, depth: usize) -> Event {
    In { who, func, depth }
}

fn returned(who: usize, func: usize) -> Event {
    Out {
        who,
        func,
        cause: Cause::Returned,
    }
}

fn unwound(who: usize, func: usize) -> Event {
    Out {
        who,
        func,
        cause: Cause::Unwound,
    }
}

/// Logs, keeps its name and the function, and refuses what it is told to.
struct Log {
    who: usize,
    refuses: fn(usize) -> bool,
    inside: fn(usize),
}

impl Callback for Log {
    type Frame = [usize; 2];

    fn entry(&self, call: Entry<'_, [usize; 2]>) -> Option<[usize; 2]> {
        let func = call.func();
        EVENTS.with_borrow_mut(|e| e.push(enter(self.who, func, call.depth())));
        (self.inside)(func);
        (!(self.refuses)(func)).then_some([self.who, func])
    }

    fn exit(&self, call: Exit<'_, [usize; 2]>, data: [usize; 2]) {
        assert_eq!(data, [self.who, call.func()]);
        let (who, func, cause) = (self.who, call.func(), call.cause());
        EVENTS.with_borrow_mut(|e| e.push(Out { who, func, cause }));
    }
}

fn log(who: usize) -> &'static Log {
    refusing(who, |_| false)
}

fn refusing(who: usize, refuses: fn(usize) -> bool) -> &'static Log {
    Box::leak(Box::new(Log {
        who,
        refuses,
        inside: |_| {},
    }))
}

#[test]
fn entries_run_in_slot_order_and_returns_in_reverse() {
    let fgraph = fgraph();
    with_stack(1024);
    for who in 0..16 {
        fgraph.register(log(who)).unwrap();
    }
    drop(fgraph.scope(7, 0));
    let entries = (0..16).map(|who| enter(who, 7, 0));
    let exits = (0..16).rev().map(|who| returned(who, 7));
    assert_eq!(events(), entries.chain(exits).collect::<Vec<_>>());
}

#[test]
fn who_refuses_gets_no_return_and_counts_no_depth() {
    let fgraph = fgraph();
    let stack = with_stack(1024);
    fgraph.register(refusing(0, |func| func == 1)).unwrap();
    fgraph.register(refusing(1, |func| func == 2)).unwrap();
    {
        let _a = fgraph.scope(1, 0);
        let _b = fgraph.scope(2, 0);
        let _c = fgraph.scope(3, 0);
        assert_eq!(stack.depth(), 3);
    }
    let expected = [
        (enter(0, 1, 0)),
        enter(1, 1, 0),
        enter(0, 2, 0),
        enter(1, 2, 1),
        enter(0, 3, 1),
        enter(1, 3, 1),
        returned(1, 3),
        returned(0, 3),
        returned(0, 2),
        returned(1, 1),
    ];
    assert_eq!(events(), expected);
    // Refused by all: no frame.
    let none = refusing(2, |_| true);
    let fgraph = common::own::fgraph();
    fgraph.register(none).unwrap();
    let scope = fgraph.scope(1, 0);
    assert_eq!(stack.depth(), 0);
    drop(scope);
    assert_eq!(events(), [enter(2, 1, 0)]);
}

#[test]
fn registering_tells_what_is_wrong_and_changes_nothing() {
    let fgraph: &'static Fgraph<Own, 2> = Box::leak(Box::default());
    let (first, second) = (log(0), log(1));
    let id = fgraph.register(first).unwrap();
    assert_eq!(
        fgraph.register(first),
        Err(RegisterError::AlreadyRegistered)
    );
    let other = fgraph.register(second).unwrap();
    assert_eq!((id.slot(), other.slot()), (0, 1));
    assert_eq!(fgraph.register(log(2)), Err(RegisterError::Full));
    assert_eq!(fgraph.unregister(id), Ok(()));
    assert_eq!(fgraph.unregister(id), Err(UnregisterError::NotRegistered));
    assert!(!fgraph.is_registered(id) && fgraph.is_registered(other));
    let again = fgraph.register(first).unwrap();
    assert_eq!(again.slot(), 0);
    assert_ne!(again, id);
    assert_eq!(fgraph.unregister(id), Err(UnregisterError::NotRegistered));
    assert!(fgraph.is_registered(again));
}

#[test]
fn a_slots_next_owner_gets_none_of_the_former_owners_returns() {
    let fgraph = fgraph();
    with_stack(1024);
    let departing = fgraph.register(log(0)).unwrap();
    fgraph.register(log(1)).unwrap();
    let outer = fgraph.scope(1, 0);
    fgraph.unregister(departing).unwrap();
    assert_eq!(fgraph.register(log(2)).unwrap().slot(), 0);
    let inner = fgraph.scope(2, 0);
    drop(inner);
    drop(outer);
    let expected = [
        enter(0, 1, 0),
        enter(1, 1, 0),
        enter(2, 2, 0),
        enter(1, 2, 1),
        returned(1, 2),
        returned(2, 2),
        // The departed one's data are stepped over.
        returned(1, 1),
    ];
    assert_eq!(events(), expected);
}

#[test]
fn a_callback_is_guarded_in_its_context_alone() {
    let fgraph = fgraph();
    let stack = with_stack(1024);
    thread_local!(static TRACER: std::cell::Cell<Option<&'static Fgraph<Own>>> = const { std::cell::Cell::new(None) });
    TRACER.set(Some(fgraph));
    let nested: &'static Log = Box::leak(Box::new(Log {
        who: 0,
        refuses: |_| false,
        inside: |func| {
            let fgraph = TRACER.get().unwrap();
            // In the same context: not traced.
            drop(fgraph.scope(func + 1, 0));
            if func == 1 {
                // Interrupted: traced, and interrupted once more.
                in_context(Context::Interrupt, || drop(fgraph.scope(10, 0)));
            }
            if func == 10 {
                in_context(Context::Nmi, || drop(fgraph.scope(20, 0)));
            }
        },
    }));
    fgraph.register(nested).unwrap();
    drop(fgraph.scope(1, 0));
    let expected = [
        enter(0, 1, 0),
        enter(0, 10, 0),
        enter(0, 20, 0),
        returned(0, 20),
        returned(0, 10),
        returned(0, 1),
    ];
    assert_eq!(events(), expected);
    assert_eq!(stack.counters().recursions, 3);
    assert_eq!(stack.depth(), 0);
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn a_panic_ends_scopes_as_it_passes() {
    let fgraph = fgraph();
    let stack = with_stack(1024);
    fgraph.register(log(0)).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _outer = fgraph.scope(1, 0);
        let _inner = fgraph.scope(2, 0);
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(caught.is_err());
    let expected = [
        enter(0, 1, 0),
        enter(0, 2, 1),
        returned(0, 2),
        returned(0, 1),
    ];
    assert_eq!(events(), expected);
    assert_eq!(stack.depth(), 0);
}

#[test]
#[cfg_attr(panic = "abort", ignore = "a panic does not unwind")]
fn who_has_refused_gets_no_exit_when_a_later_one_unwinds() {
    let fgraph = fgraph();
    let stack = with_stack(1024);
    fgraph.register(refusing(0, |_| true)).unwrap();
    fgraph.register(log(1)).unwrap();
    let unwinds = Log {
        inside: |_| std::panic::resume_unwind(Box::new(())),
        ..*log(2)
    };
    fgraph.register(Box::leak(Box::new(unwinds))).unwrap();
    fgraph.register(log(3)).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| drop(fgraph.scope(1, 0))));
    assert!(caught.is_err());
    let expected = [
        enter(0, 1, 0),
        enter(1, 1, 0),
        enter(2, 1, 0),
        unwound(1, 1),
    ];
    assert_eq!(events(), expected);
    // Nobody's data were looked for in vain.
    assert_eq!((stack.counters().strays, stack.depth()), (0, 0));
}

/// A call of `func`, which returns to `100 + func`.
fn call_at(func: usize, slot: usize) -> Call<'static> {
    Call {
        func,
        ret: 100 + func,
        slot,
        tail: false,
        registers: None,
    }
}

#[test]
fn a_slot_that_is_not_aligned_is_refused() {
    let fgraph = fgraph();
    let stack = with_stack(64);
    fgraph.register(log(0)).unwrap();
    let slot = &raw const slots(2)[0] as usize;
    for off in 1..size_of::<usize>() {
        // SAFETY: nothing is written to it: the call is not entered.
        assert!(!unsafe { fgraph.enter(&call_at(1, slot + off), usize::MAX) });
    }
    assert_eq!((events(), stack.depth()), (vec![], 0));
    assert!(!stack.is_inside());
}

#[test]
fn calls_jumped_over_end_before_the_one_that_returns() {
    let fgraph = fgraph();
    let stack = with_stack(1024);
    fgraph.register(log(0)).unwrap();
    fgraph.register(log(1)).unwrap();
    let slots = slots(3);
    for (func, slot) in slots.iter().rev().enumerate() {
        let call = call_at(func, std::ptr::from_ref(slot) as usize);
        // SAFETY: the slots are this test's own words.
        assert!(unsafe { fgraph.enter(&call, usize::MAX) });
    }
    let oldest = std::ptr::from_ref(&slots[2]) as usize;
    // SAFETY: entered above.
    assert_eq!(unsafe { fgraph.leave(oldest, None) }, Some(100));
    let exits = &events()[6..];
    let expected = [
        unwound(1, 2),
        unwound(0, 2),
        unwound(1, 1),
        unwound(0, 1),
        returned(1, 0),
        returned(0, 0),
    ];
    assert_eq!(exits, expected);
    assert_eq!((stack.counters().unwound, stack.depth()), (2, 0));
    // SAFETY: the words are this test's own; there is no such call.
    assert_eq!(unsafe { fgraph.leave(oldest, None) }, None);
    assert_eq!(stack.counters().strays, 1);
}

/// Lends its thread's stack while it enters, and does not come back.
struct Killed(std::sync::mpsc::Sender<&'static fgraph::RetStack>);

impl Callback for Killed {
    type Frame = [usize; 1];

    fn entry(&self, call: Entry<'_, [usize; 1]>) -> Option<[usize; 1]> {
        let stack = std::ptr::from_ref(call.stack());
        // SAFETY: tests' stacks are leaked.
        self.0.send(unsafe { &*stack }).unwrap();
        loop {
            std::thread::park();
        }
    }

    fn exit(&self, _: Exit<'_, [usize; 1]>, _: [usize; 1]) {
        unreachable!("it has accepted no call");
    }
}

#[test]
fn a_task_that_is_killed_inside_an_entry_gives_its_words_back() {
    let fgraph = fgraph();
    let (tell, told) = std::sync::mpsc::channel();
    fgraph.register(log(0)).unwrap();
    fgraph.register(Box::leak(Box::new(Killed(tell)))).unwrap();
    std::thread::spawn(|| {
        with_stack(64);
        drop(fgraph.scope(1, 0));
    });
    let killed = told.recv().unwrap();
    with_stack(64);
    // SAFETY: its thread never runs on.
    let words = unsafe { fgraph.exit_task(killed) }.unwrap();
    assert_eq!((words.len(), killed.is_attached()), (64, false));
    // The call was no frame yet: it is counted, and has no exit.
    assert_eq!((killed.counters().strays, events()), (1, vec![]));
}

/// Lends its thread's stack in a call of function 2, and does not come back;
/// other calls are not for it.
struct Abandoned(Killed);

impl Callback for Abandoned {
    type Frame = [usize; 1];

    fn entry(&self, call: Entry<'_, [usize; 1]>) -> Option<[usize; 1]> {
        (call.func() == 2).then(|| self.0.entry(call))?
    }

    fn exit(&self, call: Exit<'_, [usize; 1]>, data: [usize; 1]) {
        self.0.exit(call, data);
    }
}

#[test]
fn a_return_past_a_callback_that_was_left_by_a_jump_ends_it() {
    let fgraph = fgraph();
    let (tell, told) = std::sync::mpsc::channel();
    fgraph.register(log(0)).unwrap();
    let abandoned = Abandoned(Killed(tell));
    fgraph.register(Box::leak(Box::new(abandoned))).unwrap();
    let [inner, outer] = [0, 1].map(|_| &raw const slots(1)[0] as usize);
    std::thread::spawn(move || {
        with_stack(64);
        // SAFETY: the slots are this test's own words, here and below.
        assert!(unsafe { fgraph.enter(&call_at(1, outer), usize::MAX) });
        // SAFETY: as above.
        let _ = unsafe { fgraph.enter(&call_at(2, inner), usize::MAX) };
    });
    // The jump leads here, with the task's stack.
    let stack = told.recv().unwrap();
    common::own::set_current(Some(stack));
    assert!(stack.is_inside());
    // A return of no call proves nothing.
    // SAFETY: as above.
    assert_eq!(unsafe { fgraph.leave(inner, None) }, None);
    assert_eq!((stack.is_inside(), stack.counters().strays), (true, 1));
    // SAFETY: as above.
    assert_eq!(unsafe { fgraph.leave(outer, None) }, Some(101));
    assert_eq!(events(), [returned(0, 1)]);
    assert_eq!((stack.is_inside(), stack.counters().strays), (false, 2));
    assert_eq!(stack.depth(), 0);
    // Traced as ever.
    // SAFETY: as above.
    assert!(unsafe { fgraph.enter(&call_at(3, outer), usize::MAX) });
    // SAFETY: as above.
    assert_eq!(unsafe { fgraph.leave(outer, None) }, Some(103));
    assert_eq!(events(), [enter(0, 3, 0), returned(0, 3)]);
}

/// Adds up what enclosed calls took, in the enclosing frame's own data.
struct Sum;

impl Callback for Sum {
    type Frame = u64;

    fn entry(&self, _: Entry<'_, u64>) -> Option<u64> {
        Some(0)
    }

    fn exit(&self, call: Exit<'_, u64>, inside: u64) {
        if let Some(parent) = call.parent() {
            parent.set(parent.get() + inside + 1);
        } else {
            EVENTS.with_borrow_mut(|e| e.push(enter(inside as usize, call.func(), 0)));
        }
    }
}

#[test]
fn a_callback_reaches_the_data_of_its_enclosing_frame() {
    static SUM: Sum = Sum;
    let fgraph = fgraph();
    with_stack(1024);
    fgraph.register(refusing(0, |_| true)).unwrap();
    fgraph.register(&SUM).unwrap();
    fgraph.register(log(2)).unwrap();
    let outer = fgraph.scope(1, 0);
    for func in 2..5 {
        let _middle = fgraph.scope(func, 0);
        drop(fgraph.scope(9, 0));
    }
    events();
    drop(outer);
    assert_eq!(events(), [returned(2, 1), enter(6, 1, 0)]);
}

#[test]
fn dispatches_on_many_threads_do_not_disturb_each_other() {
    let fgraph = fgraph();
    let ids: Vec<_> = (0..4)
        .map(|who| fgraph.register(log(who)).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                with_stack(256);
                for call in 0..1000 {
                    drop(fgraph.scope(thread * 1000 + call, 0));
                    let seen = events();
                    assert_eq!(seen.len(), 8);
                    assert_eq!(seen[7], returned(0, thread * 1000 + call));
                }
            });
        }
    });
    assert!(ids.iter().all(|&id| fgraph.missed(id) == 0));
}
