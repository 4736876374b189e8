//! What both sides are driven by: tasks with real stacks, calls in flight, and
//! callbacks that decide what happens inside of them.
//!
//! This file knows no tracer. It plays one list of [`Step`]s on whatever
//! [`Side`] it is given, writes down everything that the side says or does, and
//! checks by itself what needs no reference: that each call gets back to where
//! it was called from.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::fgraph::{RegisterError, UnregisterError};
use fgraph::ret_stack::{AttachError, Counters, DetachError, Frame};
use fgraph::{Cause, Context};

pub const TASKS: usize = 3;
const TASK_WORDS: usize = 96;
const INTERRUPT_WORDS: usize = 48;

/// Data words of the callbacks in the pool; each is an object of its own.
pub const POOL: [usize; 24] = [
    0, 1, 2, 3, 4, 5, 6, 7, 15, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 15, 0, 1,
];

/// What a callback is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub callback: usize,
    pub func: usize,
    pub caller: usize,
    pub slot: usize,
    pub depth: usize,
    pub context: u8,
    /// The function and data of the callback's own enclosing frame.
    pub parent: Option<(usize, Words)>,
    /// The cause and the data, at the end of a call.
    pub end: Option<(Cause, Words)>,
}

/// What a callback does.
pub struct Reply {
    pub accept: Option<Words>,
    pub parent: Option<Words>,
}

/// Everything that is compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Step(Op),
    Callback(Seen),
    Accepted(Option<Words>),
    Entered {
        slot: usize,
        wanted: bool,
    },
    Left {
        slot: usize,
        to: Option<usize>,
    },
    Registered(Result<usize, RegisterError>),
    Unregistered(Result<(), UnregisterError>),
    Attached(Result<(), AttachError>),
    Detached(Result<(), DetachError>),
    Walked {
        depth: usize,
        capacity: usize,
        inside: bool,
    },
    Frame(Frame),
    Number(usize),
    Counters(usize, Counters),
    Missed(usize, u32),
}

/// What is put to the test, or what it is compared with.
pub trait Side {
    /// `slot` 0 for a scope.
    fn enter(&self, call: Called, wanted: usize) -> bool;
    fn leave(&self, slot: usize) -> Option<usize>;
    /// Returns a handle.
    fn scope(&self, func: usize, caller: usize) -> usize;
    fn end_scope(&self, handle: usize);
    /// Jumped over: its guard is not dropped.
    fn forget_scope(&self, handle: usize);
    /// Returns the slot; the handle is the number of registrations before.
    fn register(&self, callback: usize) -> Result<usize, RegisterError>;
    fn unregister(&self, handle: usize) -> Result<(), UnregisterError>;
    fn is_registered(&self, handle: usize) -> bool;
    fn missed(&self, handle: usize) -> u32;
    fn attach(&self, task: usize, words: usize, range: Range<usize>) -> Result<(), AttachError>;
    fn detach(&self, task: usize) -> Result<(), DetachError>;
    fn exit(&self, task: usize) -> Result<(), DetachError>;
    fn restore(&self) -> usize;
    fn real_return(&self, task: usize, slot: usize, seen: usize) -> usize;
    fn frames(&self, task: usize, each: &mut dyn FnMut(Frame));
    fn counters(&self, task: usize) -> Counters;
    fn capacity(&self, task: usize) -> usize;
    fn is_inside(&self, task: usize) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub struct Called {
    pub func: usize,
    pub ret: usize,
    pub slot: usize,
    pub tail: bool,
}

/// What the platform of either side answers.
pub struct Environment {
    pub task: Cell<Option<usize>>,
    pub context: Cell<u8>,
    /// Whether a grace period passes.
    pub patient: Cell<bool>,
    /// The real stacks, as ranges of addresses.
    pub stacks: Cell<[(usize, usize); TASKS]>,
}

thread_local! {
    pub static ENVIRONMENT: Environment = const { Environment {
        task: Cell::new(None),
        context: Cell::new(0),
        patient: Cell::new(true),
        stacks: Cell::new([(0, 0); TASKS]),
    } };
    static HANDS: Cell<Option<*const dyn Hands>> = const { Cell::new(None) };
}

pub fn environment<R>(f: impl FnOnce(&Environment) -> R) -> R {
    ENVIRONMENT.with(f)
}

/// The task other than the running one whose real stack holds `slot`.
pub fn owner(slot: usize) -> Option<usize> {
    environment(|e| {
        let stacks = e.stacks.get();
        (0..TASKS)
            .find(|&task| (stacks[task].0..stacks[task].1).contains(&slot))
            .filter(|&task| e.task.get() != Some(task))
    })
}

pub const CONTEXTS: [Context; 4] = [
    Context::Task,
    Context::SoftInterrupt,
    Context::Interrupt,
    Context::Nmi,
];

/// What the callbacks of a side call.
pub trait Hands {
    /// First, with what was seen.
    fn observe(&self, seen: Seen, slot: usize) -> Reply;
    /// Then, when the reply has been followed.
    fn act(&self);
}

/// The world whose side is calling back.
pub fn hands() -> &'static dyn Hands {
    let hands = HANDS.get().expect("a world is being played");
    // SAFETY: `play` sets it to a world that it borrows for as long.
    unsafe { &*hands }
}

/// A call in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// The address of the return slot; 0 for a scope.
    slot: usize,
    ret: usize,
    scope: usize,
    /// The stack pointers before the call.
    before: (usize, usize),
}

struct Task {
    memory: &'static [AtomicUsize],
    /// The lowest used word.
    sp: usize,
    calls: Vec<InFlight>,
    /// Scopes that were moved out of their calls, to end at any time.
    adrift: Vec<usize>,
}

/// Memory that both sides use, one after the other.
pub struct Memory {
    tasks: [&'static [AtomicUsize]; TASKS],
    interrupt: &'static [AtomicUsize],
}

impl Memory {
    pub fn new() -> Self {
        let leak = |words| &*(0..words).map(AtomicUsize::new).collect::<Vec<_>>().leak();
        let mut all: Vec<&'static [AtomicUsize]> = (0..TASKS).map(|_| leak(TASK_WORDS)).collect();
        all.push(leak(INTERRUPT_WORDS));
        // Where the interrupts' stack lies is part of the test.
        Self {
            interrupt: all.remove(1),
            tasks: all.try_into().unwrap_or_else(|_| unreachable!()),
        }
    }
}

fn range(memory: &[AtomicUsize]) -> Range<usize> {
    let range = memory.as_ptr_range();
    range.start as usize..range.end as usize
}

pub struct World<'a, S> {
    side: &'a S,
    steps: &'a [Step],
    next: Cell<usize>,
    log: RefCell<Vec<Event>>,
    tasks: [RefCell<Task>; TASKS],
    interrupt: &'static [AtomicUsize],
    interrupt_sp: Cell<usize>,
    /// Whether calls are made on the interrupts' stack.
    on_interrupt_stack: Cell<bool>,
    /// The calls of the running context begin here.
    base: Cell<usize>,
    nested: Cell<usize>,
    step: Cell<Step>,
    /// Callbacks since the step began.
    callbacks: Cell<usize>,
    serial: Cell<usize>,
    registrations: Cell<usize>,
    live: RefCell<Vec<usize>>,
    stub: usize,
    stub_is_known: bool,
}

/// Plays the steps on a side; returns what happened.
pub fn play<S: Side>(
    side: &S,
    steps: &[Step],
    memory: &Memory,
    stub: usize,
    stub_is_known: bool,
) -> Vec<Event> {
    let task = |memory: &'static [AtomicUsize]| {
        for word in memory {
            word.store(0, Relaxed);
        }
        RefCell::new(Task {
            memory,
            sp: memory.len(),
            calls: Vec::new(),
            adrift: Vec::new(),
        })
    };
    let world = World {
        side,
        steps,
        next: Cell::new(0),
        log: RefCell::new(Vec::new()),
        tasks: memory.tasks.map(task),
        interrupt: memory.interrupt,
        interrupt_sp: Cell::new(memory.interrupt.len()),
        on_interrupt_stack: Cell::new(false),
        base: Cell::new(0),
        nested: Cell::new(0),
        step: Cell::new(Step(0)),
        callbacks: Cell::new(0),
        serial: Cell::new(1),
        registrations: Cell::new(0),
        live: RefCell::default(),
        stub,
        stub_is_known,
    };
    environment(|e| {
        e.task.set(Some(0));
        e.context.set(0);
        e.stacks.set(memory.tasks.map(|memory| {
            let range = range(memory);
            (range.start, range.end)
        }));
    });
    let hands: &dyn Hands = &world;
    // SAFETY: only the lifetime changes; it is cleared before `world` ends,
    // or a failed test ends the thread.
    HANDS.set(Some(unsafe {
        std::mem::transmute::<*const dyn Hands, *const dyn Hands>(hands)
    }));
    while let Some(step) = world.take() {
        world.run(step);
    }
    world.finish();
    HANDS.set(None);
    world.log.take()
}

impl<S: Side> Hands for World<'_, S> {
    fn observe(&self, seen: Seen, slot: usize) -> Reply {
        self.callbacks.set(self.callbacks.get() + 1);
        self.log(Event::Callback(seen));
        let step = self.step.get();
        let accept = (seen.end.is_none() && step.accept(slot))
            .then(|| self.fresh_words(POOL[seen.callback]));
        if seen.end.is_none() {
            self.log(Event::Accepted(accept));
        }
        let change = seen.parent.is_some() && (step.b() + slot).is_multiple_of(3);
        let parent = change.then(|| self.fresh_words(POOL[seen.callback]));
        Reply { accept, parent }
    }

    fn act(&self) {
        let (when, what) = self.step.get().inside();
        if self.callbacks.get() != when || self.nested.get() >= 4 {
            return;
        }
        let steps = 1 + (what >> 2 & 3);
        let (before, context) = (self.step.get(), environment(|e| e.context.get()));
        match what & 3 {
            // Whatever it does in its own context is not traced.
            3 => self.interrupted(context, steps, false, what >> 4 & 1 != 0),
            _ if context == 3 => {}
            more => {
                let context = (context + 1 + more as u8 % 2).min(3);
                self.interrupted(context, steps, more == 2, what >> 4 & 1 != 0);
            }
        }
        self.step.set(before);
        // Nothing more happens in this step.
        self.callbacks.set(usize::MAX / 2);
    }
}

impl<S: Side> World<'_, S> {
    fn log(&self, event: Event) {
        self.log.borrow_mut().push(event);
    }

    fn take(&self) -> Option<Step> {
        let next = self.next.get();
        self.next.set(next + 1);
        self.steps.get(next).copied()
    }

    fn fresh_words(&self, len: usize) -> Words {
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        // Among them zeros, and words that look like the stack's own.
        let words: [usize; 15] = std::array::from_fn(|i| {
            serial.wrapping_mul(0x9e37_79b9 ^ i.rotate_right(4))
                >> (serial % (usize::BITS as usize - 14))
        });
        Words::new(&words[..len])
    }

    fn current(&self) -> usize {
        environment(|e| e.task.get()).unwrap_or(0)
    }

    /// An interrupt, or a callback's own calls where the context stays.
    fn interrupted(&self, context: u8, steps: usize, elsewhere: bool, abandon: bool) {
        let task = self.current();
        let before = environment(|e| e.context.replace(context));
        let base = self.base.replace(self.tasks[task].borrow().calls.len());
        let sp = (self.tasks[task].borrow().sp, self.interrupt_sp.get());
        let stack = self.on_interrupt_stack.get();
        self.on_interrupt_stack.set(stack || elsewhere);
        self.nested.set(self.nested.get() + 1);
        for _ in 0..steps {
            if let Some(step) = self.take() {
                self.run(step);
            }
        }
        // What is still in flight returns, or is jumped over.
        while self.tasks[task].borrow().calls.len() > self.base.get() {
            if abandon {
                self.jump(1);
            } else {
                self.give_back(task);
            }
        }
        self.nested.set(self.nested.get() - 1);
        self.on_interrupt_stack.set(stack);
        self.tasks[task].borrow_mut().sp = sp.0;
        self.interrupt_sp.set(sp.1);
        self.base.set(base);
        environment(|e| e.context.set(before));
    }

    fn run(&self, step: Step) {
        self.step.set(step);
        self.callbacks.set(0);
        self.log(Event::Step(step.op()));
        let task = self.current();
        let nested = self.nested.get() > 0;
        match step.op() {
            Op::Walk => self.walk(step.a() % TASKS),
            Op::Call => self.call(step),
            Op::Return => self.give_back(task),
            Op::Tail => self.tail(step),
            Op::Jump => self.jump(1 + step.a() % 3),
            Op::Scope => self.scope(step),
            Op::EndScope => self.end_scope(),
            Op::EndOldScope => self.end_old_scope(step),
            Op::Interrupt => {
                let context = environment(|e| e.context.get()) as usize;
                if context < 3 && self.nested.get() < 4 {
                    let up = 1 + step.a() % (3 - context);
                    let flags = (step.b() & 1 != 0, step.b() & 6 == 6);
                    self.interrupted((context + up) as u8, 1 + step.a() % 5, flags.0, flags.1);
                }
            }
            Op::Register => self.register(step.a() % POOL.len()),
            Op::Unregister => self.unregister(step),
            Op::Attach => self.attach(step, nested),
            Op::Detach if !nested => self.detach(step.a() % TASKS),
            Op::Exit if !nested => self.exit(step.a() % TASKS),
            Op::Switch if !nested => {
                let to = step.a() % (TASKS + 1);
                // Nobody's time: early boot, idle.
                let to = (to < TASKS).then_some(to);
                environment(|e| e.task.set(to));
            }
            Op::ReturnElsewhere if !nested => self.give_back(step.a() % TASKS),
            Op::RealReturn => self.real_return(step.a() % TASKS),
            Op::Restore => self.restore(),
            Op::Detach | Op::Exit | Op::Switch | Op::ReturnElsewhere => {}
        }
        self.log(Event::Counters(task, self.side.counters(task)));
        for handle in self.live.borrow().iter().copied() {
            self.log(Event::Missed(handle, self.side.missed(handle)));
        }
    }
}

#[path = "world/calls.rs"]
mod calls;
#[path = "world/steps.rs"]
mod steps;

pub use steps::{Op, Step, Words};
