//! What several CPUs do at once, in every interleaving within a bound, with
//! every value that the memory model lets a load see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom`
//!
//! Each thread of a model is a CPU with a task of its own. Interrupts are no
//! part of it: they stop one CPU at an instruction, and are tested there.
#![cfg(loom)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::{Call, RegisterError};
use fgraph::ret_stack::{AttachError, InlineStack, NEAR_WORDS, WIDE_WORDS, words_for};
use fgraph::tracer::{Buffer, Cursor, Event, Full, Graph, Open, Record, Scale, Trace};
use fgraph::{Callback, Entry, Exit, Fgraph, Platform, RetStack};

struct Cpus;

loom::thread_local! {
    static CURRENT: Cell<Option<*const RetStack>> = Cell::new(None);
}

// SAFETY: each thread's own, which outlives the thread's last call.
unsafe impl Platform for Cpus {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        CURRENT.with(|current| current.get().map(|stack| f(unsafe { &*stack })))
    }

    fn clock() -> u64 {
        0
    }
}

type Tracer = Fgraph<Cpus>;

/// A task's stack, with room for a few frames.
type Stack = InlineStack<12>;

fn attached() -> std::pin::Pin<Arc<Stack>> {
    let stack = Arc::pin(Stack::new());
    stack
        .as_ref()
        .attach(0..0)
        .expect("a new stack takes its words");
    stack
}

/// A stack without words, all of whose atomics the model has seen: it takes the
/// making of one for a write.
fn detached() -> std::pin::Pin<Arc<Stack>> {
    let stack = attached();
    // SAFETY: nobody runs on it.
    unsafe { stack.detach() }.expect("it is empty");
    stack
}

/// Runs `f` on a CPU whose task has `stack`.
fn on<R>(stack: &RetStack, f: impl FnOnce() -> R) -> R {
    CURRENT.with(|current| current.set(Some(stack)));
    let result = f();
    CURRENT.with(|current| current.set(None));
    result
}

/// Explores a model, and tells how much of it there was.
fn model(name: &str, preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    static EXPLORED: AtomicUsize = AtomicUsize::new(0);
    // One model at a time, for the sake of the count.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    EXPLORED.store(0, Relaxed);
    builder.check(move || {
        EXPLORED.fetch_add(1, Relaxed);
        f();
    });
    println!(
        "{name}: {} interleavings explored, of up to {preemptions} preemptions",
        EXPLORED.load(Relaxed)
    );
}

/// A callback that knows itself, whose data are checked, and that counts.
/// Different types, so that one's function on another's object shows.
macro_rules! callback {
    ($name:ident $magic:literal $words:literal) => {
        #[repr(C)]
        struct $name {
            magic: [usize; 1 + $words],
            entries: AtomicUsize,
            exits: AtomicUsize,
        }

        #[allow(dead_code, reason = "each type has what some have need of")]
        impl $name {
            fn new() -> &'static Self {
                Box::leak(Box::new(Self {
                    magic: [$magic; 1 + $words],
                    entries: AtomicUsize::new(0),
                    exits: AtomicUsize::new(0),
                }))
            }

            fn counts(&self) -> (usize, usize) {
                (self.entries.load(Relaxed), self.exits.load(Relaxed))
            }
        }

        impl Callback for $name {
            type Frame = [usize; $words];

            fn entry(&self, call: Entry<'_, Self::Frame>) -> Option<Self::Frame> {
                assert_eq!(self.magic, [$magic; 1 + $words], "another's object");
                self.entries.fetch_add(1, Relaxed);
                Some([call.func() ^ $magic; $words])
            }

            fn exit(&self, call: Exit<'_, Self::Frame>, data: Self::Frame) {
                assert_eq!(self.magic, [$magic; 1 + $words], "another's object");
                assert_eq!(data, [call.func() ^ $magic; $words], "another's data");
                self.exits.fetch_add(1, Relaxed);
            }
        }
    };
}

callback!(One 0x1111 1);
callback!(Two 0x2222 2);
callback!(Plain 0x3333 0);
callback!(Most 0x4444 15);

fn call(fgraph: &Tracer, func: usize) {
    drop(fgraph.scope(func, 7));
}

#[test]
fn registration_beside_dispatch() {
    model("registration beside dispatch", 3, || {
        let fgraph = Arc::new(Tracer::new());
        let (one, two) = (One::new(), Two::new());
        fgraph.register(one).unwrap();
        let other = Arc::clone(&fgraph);
        let cpu = loom::thread::spawn(move || {
            let stack = attached();
            on(stack.control(), || {
                call(&other, 1);
                call(&other, 2);
            });
            assert_eq!(stack.control().depth(), 0);
            assert!(!stack.control().is_inside());
        });
        fgraph.register(two).unwrap();
        cpu.join().unwrap();
        // The one that was there saw all; the new one, from some call on.
        assert_eq!(one.counts(), (2, 2));
        let (entries, exits) = two.counts();
        assert_eq!(entries, exits);
    });
}

/// A call enters and leaves on another CPU.
fn call_elsewhere(fgraph: &Arc<Tracer>) -> loom::thread::JoinHandle<()> {
    let fgraph = Arc::clone(fgraph);
    loom::thread::spawn(move || {
        let stack = attached();
        on(stack.control(), || call(&fgraph, 1));
        assert_eq!(stack.control().depth(), 0);
        assert_eq!(stack.control().counters().strays, 0);
    })
}

/// A slot goes from one callback to another of another type, and back, while
/// a call on another CPU enters and leaves.
#[test]
fn slot_reuse_beside_dispatch() {
    model("slot reuse beside dispatch", 3, || {
        let fgraph = Arc::new(Tracer::new());
        let (one, two) = (One::new(), Two::new());
        let id = fgraph.register(one).unwrap();
        let cpu = call_elsewhere(&fgraph);
        fgraph.unregister(id).unwrap();
        let second = fgraph.register(two).unwrap();
        assert_eq!(second.slot(), id.slot());
        cpu.join().unwrap();
        // No exit without an entry; a departed one's may be missing.
        assert!(one.counts().1 <= one.counts().0);
        assert_eq!(two.counts().0, two.counts().1);
    });
}

/// As before, but one CPU takes the first owner out of the slot and another puts
/// the second in: what the one has done is known to the other, by the lock, and
/// the one that dispatches must find that out from either.
#[test]
fn slot_reuse_by_another_cpu_beside_dispatch() {
    model("slot reuse by another CPU beside dispatch", 2, || {
        let fgraph = Arc::new(Tracer::new());
        let (one, two) = (One::new(), Two::new());
        let id = fgraph.register(one).unwrap();
        let cpu = call_elsewhere(&fgraph);
        let other = Arc::clone(&fgraph);
        let third = loom::thread::spawn(move || other.unregister(id).unwrap());
        third.join().unwrap();
        let second = fgraph.register(two).unwrap();
        assert_eq!(second.slot(), id.slot());
        cpu.join().unwrap();
        assert!(one.counts().1 <= one.counts().0);
        assert_eq!(two.counts().0, two.counts().1);
    });
}

/// A slot goes from a callback that keeps less to one that keeps more, or back,
/// while a call enters with room for the data of the one and not of the other:
/// how much an owner keeps is read as what it is, or the owner is not called.
#[test]
fn tight_room_beside_a_change_of_owner() {
    for first_keeps_more in [false, true] {
        model("tight room beside a change of owner", 2, move || {
            let fgraph = Arc::new(Tracer::new());
            let (one, two) = (One::new(), Two::new());
            let register = move |fgraph: &Tracer, more: bool| match more {
                false => fgraph.register(one).unwrap(),
                true => fgraph.register(two).unwrap(),
            };
            let first = register(&fgraph, first_keeps_more);
            // More than there is room for, whoever else is there.
            fgraph.register(Most::new()).unwrap();
            let other = Arc::clone(&fgraph);
            let cpu = loom::thread::spawn(move || {
                const ROOM: usize = words_for(1, &[1]) + WIDE_WORDS - NEAR_WORDS;
                let stack = Arc::pin(InlineStack::<ROOM>::new());
                stack.as_ref().attach(0..0).unwrap();
                on(stack.control(), || call(&other, 1));
                assert_eq!(stack.control().depth(), 0);
                assert_eq!(stack.control().counters().strays, 0);
            });
            let other = Arc::clone(&fgraph);
            let third = loom::thread::spawn(move || other.unregister(first).unwrap());
            third.join().unwrap();
            let second = register(&fgraph, !first_keeps_more);
            assert_eq!(second.slot(), first.slot());
            cpu.join().unwrap();
            assert!(one.counts().1 <= one.counts().0);
            assert_eq!(two.counts(), (0, 0), "its data have no room");
        });
    }
}

/// The same object comes back to its slot: it is another owner.
#[test]
fn same_object_again_beside_dispatch() {
    model("the same object again beside dispatch", 2, || {
        let fgraph = Arc::new(Tracer::new());
        let one = One::new();
        let id = fgraph.register(one).unwrap();
        let other = Arc::clone(&fgraph);
        let cpu = loom::thread::spawn(move || {
            let stack = attached();
            on(stack.control(), || call(&other, 1));
            assert_eq!(stack.control().depth(), 0);
        });
        fgraph.unregister(id).unwrap();
        let again = fgraph.register(one).unwrap();
        assert!(again != id && again.slot() == id.slot());
        assert!(!fgraph.is_registered(id));
        cpu.join().unwrap();
        assert!(one.counts().1 <= one.counts().0);
    });
}

/// The first owner's frame sleeps through the change of the slot's owner, seen
/// from another CPU than the one that changed it.
#[test]
fn return_beside_a_change_of_owner() {
    model("return beside a change of owner", 3, || {
        let fgraph = Arc::new(Tracer::new());
        let (one, two) = (One::new(), Two::new());
        let id = fgraph.register(one).unwrap();
        let other = Arc::clone(&fgraph);
        let stack = attached();
        let scope = on(stack.control(), || fgraph.scope(1, 7));
        assert_eq!(one.counts(), (1, 0));
        let cpu = loom::thread::spawn(move || {
            other.unregister(id).unwrap();
            other.register(two).unwrap();
        });
        on(stack.control(), || drop(scope));
        assert_eq!(two.counts(), (0, 0), "nobody else's frames");
        assert_eq!(stack.control().depth(), 0);
        cpu.join().unwrap();
    });
}

#[test]
fn two_that_register() {
    model("two that register", 3, || {
        let fgraph = Arc::new(Fgraph::<Cpus, 2>::new());
        let (one, two) = (One::new(), Two::new());
        // All of the table's atomics are seen once: see `detached`.
        let seen = fgraph.register(two).unwrap();
        fgraph.unregister(seen).unwrap();
        let other = Arc::clone(&fgraph);
        let cpu = loom::thread::spawn(move || (other.register(two), other.register(one)));
        let mine = fgraph.register(one);
        let (second, theirs) = cpu.join().unwrap();
        let second = second.unwrap();
        // One of the two got it.
        let (got, not) = match mine {
            Ok(id) => (id, theirs),
            Err(_) => (theirs.unwrap(), mine),
        };
        assert_eq!(not, Err(RegisterError::AlreadyRegistered));
        assert_ne!(got.slot(), second.slot());
        let third = fgraph.register(Plain::new());
        assert_eq!(third, Err(RegisterError::Full));
    });
}

#[test]
fn walk_beside_the_task() {
    model("walk beside the task", 3, || {
        let fgraph = Arc::new(Tracer::new());
        fgraph.register(One::new()).unwrap();
        let stack = attached();
        let (task, other) = (stack.clone(), Arc::clone(&fgraph));
        let cpu = loom::thread::spawn(move || {
            on(task.control(), || {
                let outer = other.scope(1, 7);
                call(&other, 2);
                drop(outer);
                call(&other, 3);
            });
        });
        let mut frames = stack.control().frames();
        let mut seen = 0;
        for frame in frames.by_ref() {
            seen += 1;
            // Near frames tell both in one word: whole, or not at all.
            let known = (1..=3).contains(&frame.func) && frame.ret == 7;
            assert!(known || frames_may_be_stale(&frame));
        }
        assert!(seen <= stack.control().capacity());
        let _ = (frames.is_stale(), stack.control().high_water());
        cpu.join().unwrap();
        assert_eq!(stack.control().depth(), 0);
    });
}

/// Functions 1 to 3 are far from this program's code, so frames are wide: of
/// their words, each is one that some frame had there.
fn frames_may_be_stale(frame: &fgraph::ret_stack::Frame) -> bool {
    let words = [0, 1, 2, 3, 7];
    let data = |word: usize| [1, 2, 3].iter().any(|func| func ^ 0x1111 == word);
    [frame.func, frame.ret]
        .iter()
        .all(|&w| words.contains(&w) || data(w) || w & 3 != 0)
}

#[test]
fn attach_beside_the_task() {
    model("attach beside the task", 3, || {
        let fgraph = Arc::new(Tracer::new());
        let one = One::new();
        fgraph.register(one).unwrap();
        let stack = detached();
        let (task, other) = (stack.clone(), Arc::clone(&fgraph));
        let cpu = loom::thread::spawn(move || {
            on(task.control(), || {
                call(&other, 1);
                let call = Call {
                    func: 2,
                    ret: 3,
                    slot: 0,
                    tail: false,
                    registers: None,
                };
                // SAFETY: without a slot, as a scope is.
                let _ = unsafe { other.enter(&call, 0) };
            });
        });
        stack.as_ref().attach(0..0).unwrap();
        cpu.join().unwrap();
        // It saw the stack whole, or not at all.
        assert_eq!(one.counts().0, one.counts().1);
        assert_eq!(stack.control().counters(), Default::default());
        assert_eq!(stack.control().depth(), 0);
    });
}

#[test]
fn two_that_attach() {
    model("two that attach", 3, || {
        let stack = detached();
        let other = stack.clone();
        let cpu = loom::thread::spawn(move || other.as_ref().attach(0..0));
        let mine = stack.as_ref().attach(0..0);
        let theirs = cpu.join().unwrap();
        assert!(mine.is_ok() != theirs.is_ok());
        assert_eq!(mine.and(theirs), Err(AttachError::Attached));
        // SAFETY: nobody runs on it.
        assert_eq!(unsafe { stack.detach() }, Ok(()));
    });
}

#[test]
fn two_that_detach() {
    model("two that detach", 3, || {
        let stack = attached();
        let other = stack.clone();
        // SAFETY: nobody runs on it.
        let cpu = loom::thread::spawn(move || unsafe { other.detach() });
        // SAFETY: as above.
        let mine = unsafe { stack.detach() };
        assert!(mine.is_ok() != cpu.join().unwrap().is_ok());
        assert!(!stack.control().is_attached());
    });
}

/// A buffer with a tracer that writes into it. Each record was written once,
/// and read: see [`detached`].
fn recorder(records: usize, full: Full) -> (&'static [Buffer], Arc<Tracer>) {
    let memory: Vec<Record> = (0..records).map(|_| Record::new()).collect();
    let buffers: &'static [Buffer] = vec![Buffer::new(memory.leak(), full)].leak();
    let graph: &'static Graph<Cpus> = Box::leak(Box::new(Graph::new(buffers)));
    let fgraph = Arc::new(Tracer::new());
    fgraph.register(graph).unwrap();
    let stack = attached();
    on(stack.control(), || {
        (0..records).for_each(|_| call(&fgraph, 0x3000))
    });
    let mut cursors = [const { Cursor::new() }; 1];
    let mut open = [const { Open::new() }; 4];
    let mut live = Trace::live(buffers, Scale::NANOSECONDS, &mut cursors, &mut open).unwrap();
    live.finish();
    assert!(live.take(100).count() >= records);
    (buffers, fgraph)
}

/// Every event of a reading; a lost record as 0.
fn read(buffers: &'static [Buffer]) -> Vec<usize> {
    let mut cursors = [const { Cursor::new() }; 1];
    let mut open = [const { Open::new() }; 4];
    let trace = Trace::whole(buffers, Scale::NANOSECONDS, &mut cursors, &mut open).unwrap();
    let told = |event| match event {
        Event::Begin(call) | Event::Leaf(call, _) | Event::End(call, _) => call.func.unwrap_or(0),
        Event::Lost { .. } => 0,
    };
    trace.take(100).map(told).collect()
}

/// Two tasks write into one CPU's buffer: one was moved in between.
#[test]
fn two_that_record() {
    model("two that record", 1, || {
        let (buffers, fgraph) = recorder(4, Full::Overwrite);
        let other = Arc::clone(&fgraph);
        let cpu = loom::thread::spawn(move || {
            let stack = attached();
            on(stack.control(), || call(&other, 0x1000));
        });
        let stack = attached();
        on(stack.control(), || call(&fgraph, 0x2000));
        cpu.join().unwrap();
        let events = read(buffers);
        assert!(
            events
                .iter()
                .all(|func| [0, 0x1000, 0x2000, 0x3000].contains(func))
        );
        assert!(!events.is_empty());
    });
}

/// A reader beside a writer: whole records, or lost ones.
#[test]
fn reader_beside_a_writer() {
    for full in [Full::Overwrite, Full::Stop] {
        model("reader beside a writer", 1, move || {
            let (buffers, fgraph) = recorder(1, full);
            let cpu = loom::thread::spawn(move || read(buffers));
            let stack = attached();
            on(stack.control(), || call(&fgraph, 0x2000));
            let events = cpu.join().unwrap();
            let whole = |func: &usize| [0, 0x2000, 0x3000].contains(func);
            assert!(events.iter().all(whole), "{events:x?}");
            // Its end alone, where the reader came between.
            assert!(!read(buffers).is_empty());
        });
    }
}
