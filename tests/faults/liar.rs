//! A platform that answers anything at any moment.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use fgraph::fgraph::{Call, UnregisterError};
use fgraph::tracer::{Buffer, Cursor, Full, Graph, Open, Record, Scale, Trace};
use fgraph::{Callback, Context, Entry, Exit, Fgraph, Platform, RetStack};

use crate::Numbers;

/// Lies about the task, the context, the time and the CPU.
struct Liar;

thread_local! {
    static STACKS: RefCell<Vec<&'static RetStack>> = const { RefCell::new(Vec::new()) };
    static LIES: RefCell<Numbers> = const { RefCell::new(Numbers(7)) };
    static LOST: Cell<usize> = const { Cell::new(0) };
}

const LOST_TO: usize = 0x1057;

fn lie(limit: usize) -> usize {
    LIES.with_borrow_mut(|lies| lies.below(limit))
}

// SAFETY: it is not a kernel's: one thread uses these stacks, so a wrong one
// is still used by one CPU at a time.
unsafe impl Platform for Liar {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        let stack = STACKS.with_borrow(|stacks| stacks.get(lie(stacks.len() + 1)).copied());
        stack.map(f)
    }

    fn clock() -> u64 {
        match lie(4) {
            0 => 0,
            1 => u64::MAX,
            _ => LIES.with_borrow_mut(Numbers::next),
        }
    }

    fn cpu() -> usize {
        match lie(4) {
            0 => usize::MAX,
            n => n,
        }
    }

    fn context() -> Context {
        [
            Context::Task,
            Context::SoftInterrupt,
            Context::Interrupt,
            Context::Nmi,
        ][lie(4)]
    }

    fn task() -> usize {
        lie(usize::MAX)
    }

    fn synchronize() -> bool {
        lie(2) == 0
    }

    fn owner<R>(_: usize, f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        Self::current(f)
    }

    fn lost_return(_: usize) -> Option<usize> {
        LOST.set(LOST.get() + 1);
        (lie(2) == 0).then_some(LOST_TO)
    }
}

struct Keep;

impl Callback for Keep {
    type Frame = [usize; 2];

    fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
        Some([call.depth(), call.caller()])
    }

    fn exit(&self, call: Exit<'_, Self::Frame>, _: Self::Frame) {
        let _ = (call.parent(), call.caller());
    }
}

#[test]
fn platform_that_lies() {
    static RECORDS: [[Record; 64]; 2] = [const { [const { Record::new() }; 64] }; 2];
    static BUFFERS: [Buffer; 2] = [
        Buffer::new(&RECORDS[0], Full::Overwrite),
        Buffer::new(&RECORDS[1], Full::Stop),
    ];
    static GRAPH: Graph<Liar> = Graph::new(&BUFFERS);
    static KEEP: Keep = Keep;
    static FGRAPH: Fgraph<Liar> = Fgraph::new();

    let real: &'static mut [usize] = Box::leak(vec![0; 64].into_boxed_slice());
    let slots: Vec<usize> = real.iter().map(|word| &raw const *word as usize).collect();
    for (words, range) in [
        (40, slots[0]..slots[63]),
        (200, slots[0]..slots[0]),
        (7, 0..0),
    ] {
        let stack: &'static RetStack = Box::leak(Box::default());
        let words = Box::leak(vec![0; words].into_boxed_slice());
        stack.attach(words, range).unwrap();
        STACKS.with_borrow_mut(|stacks| stacks.push(stack));
    }
    FGRAPH.register(&GRAPH).unwrap();
    let mut id = FGRAPH.register(&KEEP).unwrap();
    // What was ever recorded for a slot.
    let mut recorded: HashMap<usize, Vec<usize>> = HashMap::new();
    let (mut operations, mut returned) = (0, 0);
    for n in 0..200_000 {
        let slot = slots[lie(slots.len())];
        operations += 1;
        match lie(16) {
            0..6 => {
                let call = Call {
                    func: n,
                    ret: 0x40_0000 + n,
                    slot,
                    tail: lie(8) == 0,
                    registers: None,
                };
                // SAFETY: the slots are words.
                if unsafe { FGRAPH.enter(&call, usize::MAX) } {
                    recorded.entry(slot).or_default().push(call.ret);
                }
            }
            6..12 => {
                // SAFETY: as above.
                if let Some(ret) = unsafe { FGRAPH.leave(slot, None) } {
                    returned += 1;
                    let known = recorded.get(&slot).is_some_and(|rets| rets.contains(&ret));
                    assert!(known || ret == LOST_TO, "a return to {ret:#x}");
                }
            }
            12 => drop(FGRAPH.scope(n, 0)),
            13 => {
                let other = STACKS.with_borrow(|stacks| stacks[lie(stacks.len())]);
                FGRAPH.switch(Some(other), None);
                assert!(other.frames().count() <= other.capacity());
            }
            14 if lie(50) == 0 => {
                let gone = FGRAPH.unregister(id);
                assert!(matches!(gone, Ok(()) | Err(UnregisterError::StillRunning)));
                id = FGRAPH.register(&KEEP).unwrap();
            }
            _ if lie(50) == 0 => {
                let stack = STACKS.with_borrow(|stacks| stacks[lie(stacks.len())]);
                // SAFETY: nothing of it returns: no call is a real one.
                if let Ok(words) = unsafe { FGRAPH.exit_task(stack) } {
                    // SAFETY: leaked above.
                    stack
                        .attach(unsafe { &mut *words.as_ptr() }, slots[0]..slots[63])
                        .unwrap();
                }
            }
            _ => {}
        }
    }
    let mut cursors = [const { Cursor::new() }; 2];
    let mut open = [const { Open::new() }; 64];
    let trace = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open).unwrap();
    assert!(trace.take(10_000).count() < 10_000);
    let counters = GRAPH.counters();
    assert!(
        counters.unplaced > 0 && counters.backwards > 0,
        "{counters:?}"
    );
    assert!(returned > 0 && LOST.get() > 0);
    println!(
        "lies: {operations} operations, {returned} returns, {} lost and said so",
        LOST.get()
    );
}

/// A grace period of a set time.
struct Impatient;

static RUNNING: RetStack = RetStack::new();

// SAFETY: `RUNNING` is the stack of the one thread that says so.
unsafe impl Platform for Impatient {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        thread_local! {
            static IS_TASK: bool = std::thread::current().name() == Some("task");
        }
        IS_TASK.with(|&is| is).then(|| f(&RUNNING))
    }

    fn clock() -> u64 {
        0
    }

    fn synchronize() -> bool {
        for _ in 0..1000 {
            if !RUNNING.is_inside() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }
}

#[test]
fn callback_that_does_not_return() {
    struct Stuck;
    static STUCK: AtomicBool = AtomicBool::new(true);
    static ENTERED: AtomicUsize = AtomicUsize::new(0);
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    impl Callback for Stuck {
        type Frame = ();
        fn entry(&self, _: Entry<'_, ()>) -> Option<()> {
            ENTERED.fetch_add(1, SeqCst);
            while STUCK.load(SeqCst) {
                std::thread::yield_now();
            }
            Some(())
        }
        fn exit(&self, _: Exit<'_, ()>, (): ()) {
            LEFT.fetch_add(1, SeqCst);
        }
    }
    static CALLBACK: Stuck = Stuck;
    static FGRAPH: Fgraph<Impatient> = Fgraph::new();

    RUNNING
        .attach(Box::leak(vec![0; 64].into_boxed_slice()), 0..0)
        .unwrap();
    let id = FGRAPH.register(&CALLBACK).unwrap();
    let task = std::thread::Builder::new().name("task".into());
    let task = task.spawn(|| drop(FGRAPH.scope(1, 0))).unwrap();
    while ENTERED.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    // It says so, and does not wait for ever.
    assert_eq!(FGRAPH.unregister(id), Err(UnregisterError::StillRunning));
    assert!(!FGRAPH.is_registered(id));
    assert_eq!(FGRAPH.unregister(id), Err(UnregisterError::NotRegistered));
    STUCK.store(false, SeqCst);
    task.join().unwrap();
    // It accepted, and had left before the return.
    assert_eq!(LEFT.load(SeqCst), 0);
    assert_eq!(RUNNING.depth(), 0);
    // With nobody stuck, the grace period ends.
    let id = FGRAPH.register(&CALLBACK).unwrap();
    assert_eq!(FGRAPH.unregister(id), Ok(()));
}
