//! The faults that the model found, each told by itself.

use std::cell::{Cell, RefCell};

use fgraph::fgraph::Call;
use fgraph::ret_stack::Counters;
use fgraph::{Callback, Cause, Context, Entry, Exit, Fgraph, RetStack};

use crate::common::own::{self, Own};

/// Where hooked calls return to, as far as these tests say.
const STUB: usize = 0x5757_5750;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Entry(usize),
    Exit(usize, Cause),
}
use Cause::{Returned, Unwound};
use Event::{Entry as In, Exit as Out};

/// Functions are told by their numbers, and lie where near frames reach.
fn near(number: usize) -> usize {
    static CODE: [u8; 4096] = [0; 4096];
    &raw const CODE as usize + number
}

fn number(near_address: usize) -> usize {
    near_address.wrapping_sub(near(0))
}

/// What happens once, inside of the next entry or exit.
type Then = Box<dyn FnOnce()>;

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
    static ON_ENTRY: Cell<Option<Then>> = const { Cell::new(None) };
    static ON_EXIT: Cell<Option<Then>> = const { Cell::new(None) };
}

fn happen(what: &'static std::thread::LocalKey<Cell<Option<Then>>>) {
    if let Some(then) = what.take() {
        then();
    }
}

/// Keeps the function in its frame, and checks it at the end.
struct Keep;

impl Callback for Keep {
    type Frame = [usize; 3];

    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        EVENTS.with_borrow_mut(|events| events.push(In(number(call.func()))));
        happen(&ON_ENTRY);
        Some([call.func(), !call.func(), call.func() << 2 | 3])
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
        let func = call.func();
        assert_eq!(data, [func, !func, func << 2 | 3]);
        EVENTS.with_borrow_mut(|events| events.push(Out(number(func), call.cause())));
        happen(&ON_EXIT);
    }
}

/// Refuses, and lets things happen when the others have accepted.
struct Late;

impl Callback for Late {
    type Frame = ();

    fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
        happen(&ON_EXIT);
        None
    }

    fn exit(&self, _: Exit<'_, ()>, (): ()) {}
}

static KEEP: Keep = Keep;
static LATE: Late = Late;

/// A tracer with `KEEP`, and a task.
struct Task {
    fgraph: &'static Fgraph<Own>,
    stack: &'static RetStack,
    /// One half is the task's stack; the other is another.
    memory: &'static [usize],
}

impl Task {
    /// The task's stack is the upper half.
    fn new(words: usize) -> Self {
        Self::on(words, 16..32)
    }

    fn on(words: usize, half: std::ops::Range<usize>) -> Self {
        let fgraph = own::fgraph();
        fgraph.register(&KEEP).unwrap();
        let memory = &*own::slots(32);
        let stack: &'static RetStack = Box::leak(Box::default());
        let range = memory[half].as_ptr_range();
        let words = Box::leak(vec![0; words].into_boxed_slice());
        let range = range.start as usize..range.end as usize;
        stack.attach(words, range).unwrap();
        own::set_current(Some(stack));
        EVENTS.take();
        Self {
            fgraph,
            stack,
            memory,
        }
    }

    fn slot(&self, at: usize) -> usize {
        &raw const self.memory[at] as usize
    }

    /// Calls function `func` with the return slot `at`.
    fn enter(&self, func: usize, at: usize) {
        self.call(func, at, self.ret(func), false);
    }

    fn ret(&self, func: usize) -> usize {
        near(1000 + func)
    }

    fn call(&self, func: usize, at: usize, ret: usize, tail: bool) {
        let call = Call {
            func: near(func),
            ret,
            slot: self.slot(at),
            tail,
            registers: None,
        };
        // SAFETY: a word of the test's own.
        assert!(unsafe { self.fgraph.enter(&call, usize::MAX) });
    }

    fn leave(&self, at: usize) -> Option<usize> {
        // SAFETY: a call was entered there, in all tests.
        unsafe { self.fgraph.leave(self.slot(at), None) }
    }

    fn copy(&self) -> Self {
        Self { ..*self }
    }
}

fn interrupt(f: impl FnOnce() + 'static) -> Option<Then> {
    Some(Box::new(|| own::in_context(Context::Interrupt, f)))
}

#[test]
fn interrupt_in_an_entry_leaves_a_frame_behind() {
    let task = Task::new(64);
    let irq = task.copy();
    ON_ENTRY.set(interrupt(move || {
        irq.enter(20, 18);
        irq.enter(30, 17);
        // Jumped out of both.
    }));
    task.enter(10, 20);
    assert_eq!(task.leave(20), Some(task.ret(10)));
    assert_eq!(
        EVENTS.take(),
        [
            In(10),
            In(20),
            In(30),
            Out(30, Unwound),
            Out(20, Unwound),
            Out(10, Returned)
        ]
    );
    assert_eq!(task.stack.counters().unwound, 2);
    assert_eq!(task.stack.depth(), 0);
}

#[test]
fn interrupt_in_an_exit_leaves_a_frame_behind() {
    let task = Task::new(64);
    task.enter(5, 21);
    task.enter(10, 20);
    let irq = task.copy();
    ON_EXIT.set(interrupt(move || irq.enter(20, 18)));
    assert_eq!(task.leave(20), Some(task.ret(10)));
    assert_eq!(task.leave(21), Some(task.ret(5)));
    assert_eq!(
        EVENTS.take(),
        [
            In(5),
            In(10),
            Out(10, Returned),
            In(20),
            Out(20, Unwound),
            Out(5, Returned)
        ]
    );
    assert_eq!(task.stack.depth(), 0);
}

#[test]
fn interrupt_in_a_refused_entry_leaves_a_frame_behind() {
    let task = Task::new(64);
    task.fgraph.register(&LATE).unwrap();
    let irq = task.copy();
    ON_EXIT.set(interrupt(move || irq.enter(20, 18)));
    let call = Call {
        func: near(10),
        ret: task.ret(10),
        slot: task.slot(20),
        tail: false,
        registers: None,
    };
    // SAFETY: a word of the test's own.
    assert!(!unsafe { task.fgraph.enter(&call, 2) });
    assert_eq!(EVENTS.take(), [In(20), Out(20, Unwound)]);
    assert_eq!(task.stack.depth(), 0);
}

/// Another stack's dead frame lies right below a claim. What proves it dead
/// comes above the claim, and must not let go of what is claimed.
#[test]
fn dead_frame_below_a_claim_is_left_there() {
    let task = Task::new(128);
    task.fgraph.register(&LATE).unwrap();
    let irq = task.copy();
    // On the other stack, jumped over and not known to be dead.
    own::in_context(Context::Interrupt, || irq.enter(20, 6));
    ON_EXIT.set(interrupt(move || {
        irq.enter(30, 5);
        irq.enter(40, 6);
        irq.enter(50, 4);
        assert_eq!(irq.leave(4), Some(irq.ret(50)));
        assert_eq!(irq.leave(6), Some(irq.ret(40)));
    }));
    task.enter(10, 20);
    assert_eq!(task.stack.depth(), 2);
    assert_eq!(task.leave(20), Some(task.ret(10)));
    let events = EVENTS.take();
    assert_eq!(events[..3], [In(20), In(10), In(30)]);
    assert_eq!(events.last(), Some(&Out(10, Returned)));
    assert!(!events.contains(&Out(20, Unwound)), "{events:?}");
}

#[test]
fn live_call_above_a_dead_one_of_another_stack() {
    // The interrupts' stack lies below the task's, and above it.
    for (half, task_slot, irq_slot) in [(16..32, 20, 6), (0..16, 6, 20)] {
        let task = Task::on(128, half);
        let irq = task.copy();
        own::in_context(Context::Interrupt, || irq.enter(20, irq_slot));
        task.enter(10, task_slot);
        own::in_context(Context::Interrupt, || {
            irq.enter(30, irq_slot);
            assert_eq!(irq.leave(irq_slot), Some(irq.ret(30)));
        });
        assert_eq!(task.leave(task_slot), Some(task.ret(10)));
        assert_eq!(task.stack.counters().strays, 0);
        assert!(EVENTS.take().contains(&Out(10, Returned)));
    }
}

/// Frames that an interrupt left on its own stack end at the next call on the
/// task's, wherever the two stacks lie and whatever is on either; those of an
/// interrupt that runs stay.
#[test]
fn a_call_on_the_tasks_stack_ends_an_interrupts() {
    // The interrupts' stack lies below the task's, and above it.
    for (half, task_slots, irq_slots) in [
        (16..32, [24, 22, 20], [8, 6, 4]),
        (0..16, [8, 6, 4], [24, 22, 20]),
    ] {
        for (on_task, on_irq) in (0..9).map(|n| (n / 3, n % 3)) {
            let task = Task::on(128, half.clone());
            let irq = &task.memory[if half.start == 0 { 16..32 } else { 0..16 }];
            let irq = irq.as_ptr_range();
            own::set_interrupt_stack(irq.start as usize..irq.end as usize);
            let interrupt = |leaves: bool| {
                own::in_context(Context::Interrupt, || {
                    for (n, &slot) in irq_slots[..on_irq].iter().enumerate() {
                        task.enter(20 + n, slot);
                    }
                    assert_eq!(task.stack.depth(), on_task + on_irq, "none is dead");
                    for n in (0..on_irq).rev().filter(|_| leaves) {
                        assert_eq!(task.leave(irq_slots[n]), Some(task.ret(20 + n)));
                    }
                });
            };
            for (n, &slot) in task_slots[..on_task].iter().enumerate() {
                task.enter(10 + n, slot);
            }
            interrupt(true);
            interrupt(false);
            EVENTS.take();
            task.enter(30, task_slots[on_task]);
            let mut expected: Vec<Event> =
                (0..on_irq).rev().map(|n| Out(20 + n, Unwound)).collect();
            expected.push(In(30));
            assert_eq!(EVENTS.take(), expected, "{on_task} and {on_irq} calls");
            assert_eq!(task.leave(task_slots[on_task]), Some(task.ret(30)));
            for n in (0..on_task).rev() {
                assert_eq!(task.leave(task_slots[n]), Some(task.ret(10 + n)));
            }
            assert_eq!((task.stack.depth(), task.stack.counters().strays), (0, 0));
        }
    }
    own::set_interrupt_stack(0..0);
}

#[test]
fn tail_call_over_a_dead_frame_shows_its_caller() {
    thread_local! {
        static CALLER: Cell<usize> = const { Cell::new(0) };
    }
    struct Caller;
    impl Callback for Caller {
        type Frame = ();
        fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
            CALLER.set(call.caller());
            Some(())
        }
        fn exit(&self, _: Exit<'_, ()>, (): ()) {}
    }
    static SEES: Caller = Caller;

    let task = Task::new(128);
    task.fgraph.register(&SEES).unwrap();
    // On a stack whose bounds are not known.
    task.enter(10, 6);
    task.enter(20, 4);
    // Jumped out of 20; 10 tail-calls 30.
    task.call(30, 6, STUB, true);
    assert_eq!(CALLER.get(), task.ret(10));
    assert_eq!(task.leave(6), Some(STUB));
    assert_eq!(task.leave(6), Some(task.ret(10)));
    assert_eq!(task.stack.counters().unwound, 1);
}

#[test]
fn scope_ends_inside_a_call_that_it_was_given_to() {
    let task = Task::new(128);
    // An older call on the same slot, not known to be dead.
    task.enter(10, 4);
    let scope = task.fgraph.scope(near(20), 0);
    task.enter(30, 6);
    task.enter(40, 4);
    drop(scope);
    assert_eq!(task.leave(4), Some(task.ret(40)));
    assert_eq!(task.leave(6), Some(task.ret(30)));
    assert_eq!(
        EVENTS.take()[2..],
        [
            In(30),
            In(40),
            Out(20, Returned),
            Out(40, Returned),
            Out(30, Returned)
        ]
    );
    assert_eq!(task.stack.counters().unwound, 0);
    // Its words are still there, and are nobody's.
    assert_eq!(task.stack.depth(), 1);
    assert_eq!(task.leave(4), Some(task.ret(10)));
    assert_eq!(task.stack.counters().unwound, 0);
    assert_eq!(task.stack.depth(), 0);
}

/// A guard that a traced function drops for its caller, over and over: the
/// scope's words lie under that function's, and are not to pile up.
#[test]
fn scopes_that_end_under_calls_give_their_words_back() {
    let task = Task::new(64);
    for outside in [false, true] {
        if outside {
            task.enter(10, 8);
        }
        for _ in 0..100 {
            let scope = task.fgraph.scope(near(20), 0);
            task.enter(30, 6);
            drop(scope);
            assert_eq!(task.leave(6), Some(task.ret(30)));
        }
        // Calls, too, come where the words were.
        for _ in 0..2 {
            task.enter(40, 7);
            assert_eq!(task.leave(7), Some(task.ret(40)));
        }
    }
    assert_eq!(task.leave(8), Some(task.ret(10)));
    let scope = task.fgraph.scope(near(20), 0);
    task.enter(30, 6);
    drop(scope);
    assert_eq!(task.leave(6), Some(task.ret(30)));
    assert_eq!(task.stack.counters(), Counters::default());
    assert!(task.stack.high_water() <= 32, "{}", task.stack.high_water());
    // SAFETY: this thread is the task.
    assert!(unsafe { task.stack.detach() }.is_ok(), "nothing is in use");
}

/// While the scope ends among live frames, an interrupt proves some of them
/// dead: they are not to come back.
#[test]
fn interrupt_inside_the_end_of_an_older_scope() {
    let task = Task::new(128);
    let scope = task.fgraph.scope(near(20), 0);
    task.enter(30, 6);
    let irq = task.copy();
    ON_EXIT.set(interrupt(move || {
        irq.enter(40, 6);
        assert_eq!(irq.leave(6), Some(irq.ret(40)));
        irq.enter(50, 6);
    }));
    drop(scope);
    let events = EVENTS.take();
    assert_eq!(events[events.len() - 1], Out(50, Unwound));
    assert_eq!(task.leave(6), Some(task.ret(30)));
    assert_eq!(EVENTS.take(), [Out(30, Returned)]);
    assert_eq!(task.stack.depth(), 0);
}

#[test]
fn task_that_was_ended_by_another_is_outside() {
    let task = Task::new(64);
    task.enter(10, 20);
    let other: &'static RetStack = Box::leak(Box::default());
    other
        .attach(Box::leak(vec![0; 64].into_boxed_slice()), 0x1000..0x1000)
        .unwrap();
    own::set_current(Some(other));
    // SAFETY: the task's calls do not return.
    assert!(unsafe { task.fgraph.exit_task(task.stack) }.is_ok());
    // A grace period that waits for it would wait for ever.
    assert!(!task.stack.is_inside());
    assert!(!other.is_inside());
    // SAFETY: as above.
    let again = unsafe { task.fgraph.exit_task(task.stack) };
    assert_eq!(again, Err(fgraph::ret_stack::DetachError::Detached));
}

/// The exit of a dead frame lets another into the slot of a callback that the
/// call was for; the stack is too small for the call, and the other missed
/// nothing.
#[test]
#[cfg_attr(target_pointer_width = "32", ignore = "no address makes a frame wide")]
fn missed_is_counted_for_who_was_there() {
    struct Plain;
    impl Callback for Plain {
        type Frame = ();
        fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
            Some(())
        }
        fn exit(&self, _: Exit<'_, ()>, (): ()) {
            happen(&ON_EXIT);
        }
    }
    static PLAIN: Plain = Plain;
    static OTHER: Late = Late;

    let task = Task::new(3);
    let fgraph = task.fgraph;
    let plain = fgraph.register(&PLAIN).unwrap();
    let late = fgraph.register(&LATE).unwrap();
    let enter = |func| {
        let call = Call {
            func,
            ret: task.ret(10),
            slot: task.slot(20),
            tail: false,
            registers: None,
        };
        let wanted = 1 << plain.slot() | 1 << late.slot();
        // SAFETY: a word of the test's own.
        unsafe { fgraph.enter(&call, wanted) }
    };
    assert!(enter(near(10)));
    let other = std::rc::Rc::new(Cell::new(None));
    let register = other.clone();
    ON_EXIT.set(Some(Box::new(move || {
        fgraph.unregister(late).unwrap();
        register.set(Some(fgraph.register(&OTHER).unwrap()));
    })));
    // The first was jumped over; the second is far, and its frame wide.
    assert!(!enter(usize::MAX / 3));
    let other = other.get().expect("the dead frame has ended");
    assert_eq!(other.slot(), late.slot());
    assert_eq!((fgraph.missed(other), fgraph.missed(plain)), (0, 1));
    assert_eq!(task.stack.counters().overruns, 1);
}
