//! What the cases share: a recording callback, a made-up hook, and the
//! patched entries of this program, one test at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fgraph::fgraph::Call;
use fgraph::hook::patch::Patch;
use fgraph::{Callback, CallbackId, Cause, Entry, Exit, Fgraph, RetStack};

use crate::host::{self, Host};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often the running thread has allocated.
pub fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// A value that lives for ever.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// What a callback saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// `+` an entry, `-` a return, `!` unwound, `x` the task's end.
    pub what: char,
    pub func: usize,
    pub caller: usize,
    pub slot: usize,
    pub depth: usize,
}

/// Records what it sees, keeps `W` words in each frame, and checks at each
/// exit that they are those of the entry.
pub struct Rec<const W: usize> {
    accept: fn(usize) -> bool,
    events: Mutex<Vec<Event>>,
    damaged: AtomicUsize,
}

impl<const W: usize> Rec<W> {
    pub fn new() -> &'static Self {
        Self::which(|_| true)
    }

    /// Follows the functions that `accept` names.
    pub fn which(accept: fn(usize) -> bool) -> &'static Self {
        leak(Self {
            accept,
            events: Mutex::default(),
            damaged: AtomicUsize::new(0),
        })
    }

    fn data(func: usize, slot: usize) -> [usize; W] {
        core::array::from_fn(|i| func.rotate_left(7 * i as u32) ^ slot)
    }

    fn push(&self, event: Event) {
        self.events.lock().expect("not poisoned").push(event);
    }

    /// The events since the last time.
    pub fn events(&self) -> Vec<Event> {
        assert_eq!(self.damaged.load(Ordering::Relaxed), 0, "words of others");
        core::mem::take(&mut self.events.lock().expect("not poisoned"))
    }

    /// The events since the last time, in short: `+0 +1 -1 -0`.
    pub fn take(&self, name: impl Fn(usize) -> String) -> String {
        let events = self.events();
        let short = |event: &Event| format!("{}{}", event.what, name(event.func));
        events.iter().map(short).collect::<Vec<_>>().join(" ")
    }

    /// The short events of a made-up hook's functions.
    pub fn fake(&self) -> String {
        self.take(|func| ((func - Fake::func(0)) / 16).to_string())
    }
}

/// A cause, as in [`Event::what`].
pub fn what(cause: Cause) -> char {
    match cause {
        Cause::Returned => '-',
        Cause::Unwound => '!',
        Cause::TaskExit => 'x',
    }
}

impl<const W: usize> Callback for Rec<W> {
    type Frame = [usize; W];

    fn entry(&self, call: Entry<'_, [usize; W]>) -> Option<[usize; W]> {
        (self.accept)(call.func()).then(|| {
            self.push(Event {
                what: '+',
                func: call.func(),
                caller: call.caller(),
                slot: call.return_slot(),
                depth: call.depth(),
            });
            Self::data(call.func(), call.return_slot())
        })
    }

    fn exit(&self, call: Exit<'_, [usize; W]>, data: [usize; W]) {
        // A panic here would cross the hook's assembly.
        if data != Self::data(call.func(), call.return_slot()) {
            self.damaged.fetch_add(1, Ordering::Relaxed);
        }
        self.push(Event {
            what: what(call.cause()),
            func: call.func(),
            caller: call.caller(),
            slot: call.return_slot(),
            depth: call.depth(),
        });
    }
}

/// A made-up hook: function `n` is called on the slot `n` words below the top
/// of a made-up real stack, and returns to an address of its own.
pub struct Fake {
    pub fgraph: &'static Fgraph<Host>,
    pub stack: &'static RetStack,
    real: *mut usize,
    before: Option<&'static RetStack>,
    _apart: Apart,
}

/// Keeps made-up hooks and a test that follows every function of the program
/// apart: both would use the made-up tasks' stacks.
struct Apart {
    _lock: Option<RwLockReadGuard<'static, ()>>,
}

static APART: RwLock<()> = RwLock::new(());

thread_local! {
    static HOOKS: Cell<usize> = const { Cell::new(0) };
}

impl Apart {
    fn new() -> Self {
        // A thread's first one: a second lock could wait for a writer that
        // waits for the first.
        let first = HOOKS.replace(HOOKS.get() + 1) == 0;
        let read = || {
            APART
                .read()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        Self {
            _lock: first.then(read),
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        HOOKS.set(HOOKS.get() - 1);
    }
}

/// Words of a made-up real stack.
const DEPTH: usize = 4096;

/// Made-up code lies around it. A static has one address, a function may not.
static ANCHOR: AtomicUsize = AtomicUsize::new(0);

impl Fake {
    /// A task with a shadow stack of `words` words, made the running one, and
    /// a tracer of its own.
    pub fn new(words: usize) -> Self {
        Self::on(leak(Fgraph::new()), words)
    }

    /// A task of a tracer.
    pub fn on(fgraph: &'static Fgraph<Host>, words: usize) -> Self {
        let apart = Apart::new();
        let real = Box::leak(vec![0; DEPTH].into_boxed_slice());
        let range = real.as_ptr_range();
        let range = range.start as usize..range.end as usize;
        let stack = leak(RetStack::new());
        stack
            .attach(Box::leak(vec![0; words].into_boxed_slice()), range)
            .expect("a new stack takes its words");
        Self {
            fgraph,
            stack,
            real: real.as_mut_ptr(),
            before: host::replace_current(Some(stack)),
            _apart: apart,
        }
    }

    /// A task that does not know the bounds of its real stack.
    pub fn unbounded(words: usize) -> Self {
        let mut this = Self::new(words);
        let low = this.real as usize;
        this.stack = leak(RetStack::new());
        this.stack
            .attach(Box::leak(vec![0; words].into_boxed_slice()), low..low)
            .expect("a new stack takes its words");
        host::replace_current(Some(this.stack));
        this
    }

    /// Another real stack of the same task: an interrupt's.
    pub fn other_stack(&self) -> Self {
        let real = Box::leak(vec![0; DEPTH].into_boxed_slice());
        host::replace_current(Some(self.stack));
        Self {
            fgraph: self.fgraph,
            stack: self.stack,
            real: real.as_mut_ptr(),
            before: Some(self.stack),
            _apart: Apart::new(),
        }
    }

    /// Whether this real stack lies below the other one in memory.
    pub fn is_below(&self, other: &Self) -> bool {
        self.real < other.real
    }

    pub fn func(n: usize) -> usize {
        (&raw const ANCHOR as usize & !15) + 16 * n
    }

    pub fn ret(n: usize) -> usize {
        Self::func(DEPTH) + 16 * n
    }

    /// Where hooked calls return to.
    fn stub() -> usize {
        Self::func(0) + 8
    }

    pub fn slot(&self, n: usize) -> *mut usize {
        assert!(n < DEPTH);
        // SAFETY: in bounds.
        unsafe { self.real.add(DEPTH - 1 - n) }
    }

    /// Function `n` is called.
    pub fn enter(&self, n: usize) -> bool {
        self.enter_at(n, n, usize::MAX)
    }

    /// Function `n` is called on slot `at`, for the callbacks in `set`.
    pub fn enter_at(&self, n: usize, at: usize, set: usize) -> bool {
        // SAFETY: a made-up slot is nobody else's.
        unsafe { *self.slot(at) = Self::ret(n) };
        self.hook(n, at, set)
    }

    /// Function `n` is tail-called by the one that holds slot `at`.
    pub fn tail(&self, n: usize, at: usize) -> bool {
        self.hook(n, at, usize::MAX)
    }

    fn hook(&self, n: usize, at: usize, set: usize) -> bool {
        let slot = self.slot(at);
        // SAFETY: as in `enter_at`; the contract of `enter` is kept by
        // construction.
        unsafe {
            let call = Call {
                func: Self::func(n),
                ret: *slot,
                slot: slot as usize,
                tail: *slot == Self::stub(),
                registers: None,
            };
            let wanted = self.fgraph.enter(&call, set);
            if wanted {
                *slot = Self::stub();
            }
            wanted
        }
    }

    /// Function `n` returns, as many times as it is on its slot; checks that
    /// it ends up at its caller.
    pub fn leave(&self, n: usize) {
        assert_eq!(self.leave_at(n), Some(Self::ret(n)), "function {n}");
        // SAFETY: as in `enter_at`.
        assert_eq!(unsafe { *self.slot(n) }, Self::ret(n), "slot {n}");
    }

    /// A return through slot `at`.
    pub fn leave_at(&self, at: usize) -> Option<usize> {
        let slot = self.slot(at) as usize;
        loop {
            // SAFETY: the test has entered on the slot, or wants to see what
            // happens where it has not.
            let ret = unsafe { self.fgraph.leave(slot, None) };
            if ret != Some(Self::stub()) {
                return ret;
            }
        }
    }

    /// Calls functions `from..to`, each by the one before, and returns.
    pub fn nest(&self, from: usize, to: usize) {
        let entered: Vec<usize> = (from..to).filter(|&n| self.enter(n)).collect();
        entered.iter().rev().for_each(|&n| self.leave(n));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        host::replace_current(self.before);
    }
}

/// This program's patched entries, for one test at a time, in a task.
pub struct Patched {
    pub patch: &'static Patch<Host>,
    pub stack: &'static RetStack,
    alone: Option<RwLockWriteGuard<'static, ()>>,
    _one: MutexGuard<'static, ()>,
}

/// The running thread becomes a task with a shadow stack of `words` words.
pub fn patched(words: usize) -> Patched {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // The table is taken in a thread of its own, whose words may be few.
    std::thread::spawn(|| {
        host::init_patch();
        host::exit();
    })
    .join()
    .expect("the table is taken");
    Patched {
        patch: &host::PATCH,
        stack: host::attach(words),
        alone: None,
        _one: one,
    }
}

/// As [`patched`], for a test that follows functions which others run too.
pub fn patched_alone(words: usize) -> Patched {
    let alone = APART.write();
    let mut patched = patched(words);
    patched.alone = Some(alone.unwrap_or_else(|poisoned| poisoned.into_inner()));
    patched
}

impl Drop for Patched {
    fn drop(&mut self) {
        host::resign();
        self.alone = None;
    }
}

impl Patched {
    /// Lets a callback follow functions, until what this returns is dropped.
    pub fn follow<C: Callback>(&self, callback: &'static C, funcs: &[usize]) -> Following {
        self.follow_where(callback, |func| funcs.contains(&func), funcs.len())
    }

    pub fn follow_where<C: Callback>(
        &self,
        callback: &'static C,
        which: impl Fn(usize) -> bool,
        at_least: usize,
    ) -> Following {
        let id = host::FGRAPH.register(callback).expect("a slot is free");
        let on = self.patch.enable(id, which).expect("outside of callbacks");
        assert!(on >= at_least, "{on} functions, not {at_least}");
        Following { id }
    }
}

/// A callback that follows functions of this program.
pub struct Following {
    pub id: CallbackId,
}

impl Drop for Following {
    fn drop(&mut self) {
        let off = host::PATCH.disable(self.id, |_| true);
        let gone = host::FGRAPH.unregister(self.id);
        if !std::thread::panicking() {
            off.expect("outside of callbacks");
            gone.expect("registered until now");
        }
    }
}

/// A name for each function, for [`Rec::take`].
pub fn names<'a>(table: &'a [(usize, &'a str)]) -> impl Fn(usize) -> String + 'a {
    |func| {
        let found = table.iter().find(|(address, _)| *address == func);
        found.map_or_else(|| format!("{func:#x}"), |(_, name)| (*name).to_string())
    }
}

/// From here on the panics of all threads restore return slots first, and
/// those of a thread that is `quiet` are not printed.
pub fn restoring_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // SAFETY: no stack with frames on it was freed.
            unsafe { host::FGRAPH.restore() };
            if !QUIET.get() {
                before(info);
            }
        }));
    });
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` and catches its panic, which is not printed.
pub fn catch<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    restoring_panics();
    QUIET.set(true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    QUIET.set(false);
    result
}
