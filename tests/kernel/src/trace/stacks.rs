//! Words for the tasks' shadow stacks: attached while tracing is on.

use core::cell::UnsafeCell;
use core::ops::AddAssign;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fgraph::ret_stack::Counters;

use super::platform::FGRAPH;
use crate::arch;
use crate::cpu::MAX_CPUS;
use crate::println;
use crate::sched;
use crate::symbols::{After, At};
use crate::task::{MAX_TASKS, Task};

/// Words that a task can have at most.
pub(crate) const MAX_WORDS: usize = 8192;

/// The words of one place. A place has one task at a time.
struct Words {
    words: UnsafeCell<[usize; MAX_WORDS]>,
    /// Attached to the place's task.
    taken: AtomicBool,
}

// SAFETY: the words are borrowed by whoever set `taken`, and by nobody else.
unsafe impl Sync for Words {}

static WORDS: [Words; MAX_TASKS + MAX_CPUS] = [const {
    Words {
        words: UnsafeCell::new([0; MAX_WORDS]),
        taken: AtomicBool::new(false),
    }
}; MAX_TASKS + MAX_CPUS];

/// How many words each task gets; 0 while tracing is off.
static SIZE: AtomicUsize = AtomicUsize::new(0);

/// What the shadow stacks of ended tasks counted.
static OF_ENDED: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// Words that were not the task's own, or attached where they should not be.
static WRONG: AtomicUsize = AtomicUsize::new(0);

/// All tasks get words, and those that begin later.
pub(crate) fn attach_all(words: usize) {
    SIZE.store(words.min(MAX_WORDS), Ordering::Relaxed);
    sched::for_each(attach);
}

/// The tasks that are there keep their words to their end; new ones get none.
pub(crate) fn attach_no_more() {
    SIZE.store(0, Ordering::Relaxed);
}

/// Gives the task its words, if tracing is on. Under the scheduler's lock.
pub(super) fn attach(task: &Task) {
    let size = SIZE.load(Ordering::Relaxed);
    if size == 0 || task.ret_stack.is_attached() {
        return;
    }
    let place = &WORDS[task.place()];
    if place.taken.swap(true, Ordering::Acquire) {
        WRONG.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: taken just now, and given back when the task has ended.
    let words = unsafe { &mut *place.words.get() };
    let (low, high) = task.stack();
    let attached = task.ret_stack.attach(&mut words[..size], low..high);
    let clean = task.ret_stack.depth() == 0 && task.ret_stack.high_water() == 0;
    if attached.is_err() || !clean && !runs(task) {
        WRONG.fetch_add(1, Ordering::Relaxed);
    }
}

/// The task's calls may have been traced since its words were attached.
fn runs(task: &Task) -> bool {
    !matches!(task.state(), crate::task::State::Free)
}

/// The task's calls in flight end, and its words are free.
pub(super) fn exit(task: &Task) {
    count_of(task);
    // SAFETY: it is the running task and ends, or it will not run again. Stacks
    // and words are static memory, also for walks that are under way.
    let Ok(words) = (unsafe { FGRAPH.exit_task(&task.ret_stack) }) else {
        return;
    };
    let place = &WORDS[task.place()];
    if words.as_ptr().cast::<usize>() != place.words.get().cast() {
        WRONG.fetch_add(1, Ordering::Relaxed);
    }
    place.taken.store(false, Ordering::Release);
}

fn count_of(task: &Task) {
    let Counters {
        overruns,
        recursions,
        unwound,
        strays,
    } = task.ret_stack.counters();
    for (sum, count) in OF_ENDED.iter().zip([overruns, recursions, unwound, strays]) {
        sum.fetch_add(count as usize, Ordering::Relaxed);
    }
}

/// What the shadow stacks counted, and how they are now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) overruns: usize,
    pub(crate) recursions: usize,
    pub(crate) unwound: usize,
    pub(crate) strays: usize,
    /// Frames of tasks that are there.
    pub(crate) frames: usize,
    /// Most words that one of them had in use.
    pub(crate) high_water: usize,
    /// Words attached or given back wrongly.
    pub(crate) wrong: usize,
}

impl AddAssign<Counters> for Totals {
    fn add_assign(&mut self, counters: Counters) {
        self.overruns += counters.overruns as usize;
        self.recursions += counters.recursions as usize;
        self.unwound += counters.unwound as usize;
        self.strays += counters.strays as usize;
    }
}

/// Adds up.
pub(crate) fn totals() -> Totals {
    let load = |n: usize| OF_ENDED[n].load(Ordering::Relaxed);
    let mut totals = Totals {
        overruns: load(0),
        recursions: load(1),
        unwound: load(2),
        strays: load(3),
        wrong: WRONG.load(Ordering::Relaxed),
        ..Totals::default()
    };
    sched::for_each(|task| {
        totals += task.ret_stack.counters();
        totals.frames += task.ret_stack.depth();
        totals.high_water = totals.high_water.max(task.ret_stack.high_water());
    });
    totals
}

/// Waits until no task has a traced call in flight: all came out, or ended.
/// False if that takes seconds.
pub(crate) fn wait_for_returns() -> bool {
    for _ in 0..2000 {
        if totals().frames == 0 {
            return true;
        }
        sched::sleep(1_000_000);
    }
    print_frames();
    false
}

/// Prints the traced calls in flight.
fn print_frames() {
    let mut frames = [(0, 0, 0); 32];
    let mut len = 0;
    sched::for_each(|task| {
        for frame in task.ret_stack.frames() {
            if let Some(place) = frames.get_mut(len) {
                *place = (task.id(), frame.func, frame.ret);
                len += 1;
            }
        }
    });
    for &(id, func, ret) in &frames[..len] {
        println!("in flight: task {id} {} from {}", At(func), After(ret));
    }
}

/// The depth of the running task's shadow stack.
pub(crate) fn depth() -> usize {
    arch::current().map_or(0, |task| task.ret_stack.depth())
}
