//! The scheduler: round robin over all CPUs, preemptive.
//!
//! One lock over all tasks' states. It is taken with interrupts off, held
//! *across* the switch, and given back by the task that is switched to: until
//! then no other CPU can take up the task whose registers are still on their
//! way to its stack.
//!
//! What a reader of a trace looks for first is never inlined.
//!
//! There are no queues: with a few dozen tasks, looking at all of them is
//! simple, and a task that is killed while it waits leaves nothing behind.

use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::arch::{self, current};
use crate::cpu::{CPUS, MAX_CPUS};
use crate::sync::{RawSpin, SpinGuard};
use crate::task::{Cause, IDLE, MAX_TASKS, Program, State, TASKS, Task};
use crate::{time, trace};

static LOCK: RawSpin = RawSpin::new();

/// Where the last choice was; under the lock.
static CURSOR: AtomicUsize = AtomicUsize::new(0);

/// The next task's number; idle tasks have those below.
static NEXT_ID: AtomicU32 = AtomicU32::new(MAX_CPUS as u32);

/// A task, as its creator knows it. To be joined, or its place stays taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct Handle {
    place: usize,
    id: u32,
}

impl Handle {
    /// Which place, and so which stack, the task has.
    pub(crate) fn place(self) -> usize {
        self.place
    }

    fn task(self) -> &'static Task {
        &TASKS[self.place]
    }
}

/// All places are taken.
#[derive(Debug)]
pub(crate) struct NoPlace;

/// Makes the caller, the running CPU's boot, its idle task.
pub(crate) fn begin_idle() {
    let task = Task::begin_idle(arch::cpu_number());
    trace::task_created(task);
    arch::begin_current(task);
    arch::this_cpu().set_online();
}

/// The idle task: runs the others, and sleeps when there are none.
pub(crate) fn idle() -> ! {
    arch::interrupts_on();
    loop {
        yield_now();
        arch::wait_for_interrupt();
    }
}

/// Creates a task.
pub(crate) fn spawn(program: &'static Program, argument: usize) -> Result<Handle, NoPlace> {
    let on = arch::interrupts_off();
    LOCK.lock();
    let place = TASKS.iter().position(|task| task.state() == State::Free);
    let handle = place.map(|place| {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let task = Task::begin(place, id, program, argument, first);
        trace::task_created(task);
        task.set_state(State::Ready);
        Handle { place, id }
    });
    LOCK.unlock();
    arch::interrupts_restore(on);
    handle.ok_or(NoPlace)
}

/// Waits for a task's end and gives its place free. Once for each task.
pub(crate) fn join(handle: Handle) -> Cause {
    let task = handle.task();
    loop {
        let on = arch::interrupts_off();
        LOCK.lock();
        assert!(task.id() == handle.id, "joined twice");
        if task.state() == State::Dead {
            let cause = task.cause();
            task.set_state(State::Free);
            LOCK.unlock();
            arch::interrupts_restore(on);
            return cause;
        }
        set_waiting(ptr::from_ref(task) as usize);
        switch_locked();
        arch::interrupts_restore(on);
    }
}

/// Ends another task, or the caller. It takes effect when the task is next
/// switched away or chosen, and not before it gives back the mutexes it holds.
pub(crate) fn kill(handle: Handle) {
    let on = arch::interrupts_off();
    LOCK.lock();
    let task = handle.task();
    if task.id() == handle.id {
        task.want_kill();
        if task.is_killed() && matches!(task.state(), State::Sleeping | State::Waiting) {
            // So that it is met in the next choice.
            task.set_state(State::Ready);
        }
    }
    LOCK.unlock();
    arch::interrupts_restore(on);
}

/// Ends the caller.
pub(crate) fn exit(cause: Cause) -> ! {
    let task = current().expect("a task to end");
    assert!(!task.is_idle(), "an idle task can not end");
    trace::task_exit(task, cause);
    let _ = arch::interrupts_off();
    LOCK.lock();
    task.set_cause(cause);
    task.set_state(State::Ending);
    switch_locked();
    unreachable!("an ended task was switched to");
}

/// Lets others run.
#[inline(never)]
pub(crate) fn yield_now() {
    let on = arch::interrupts_off();
    LOCK.lock();
    if let Some(task) = current().filter(|task| !task.is_idle()) {
        task.set_state(State::Ready);
    }
    switch_locked();
    arch::interrupts_restore(on);
}

/// The timer's: the same, if the task may be switched away here.
pub(crate) fn preempt() {
    // A task inside a callback stays on its CPU until it comes out; the next
    // tick tries again. So no callback is ever half way through on a task that
    // does not run, and a grace period need not ask the tasks.
    if current().is_some_and(trace::may_preempt) {
        yield_now();
    }
}

/// Sleeps.
#[inline(never)]
pub(crate) fn sleep(ns: u64) {
    let on = arch::interrupts_off();
    LOCK.lock();
    let task = current().expect("a task to sleep");
    task.wake_at.store(time::now() + ns, Ordering::Relaxed);
    task.set_state(State::Sleeping);
    switch_locked();
    arch::interrupts_restore(on);
}

/// Gives the lock back and waits for [`wake_all`] with the same key. Nobody
/// can wake between the two.
pub(crate) fn wait<T>(key: usize, guard: SpinGuard<'_, T>) {
    LOCK.lock();
    set_waiting(key);
    let on = guard.unlock_only();
    switch_locked();
    arch::interrupts_restore(on);
}

/// Wakes those who wait for `key`.
pub(crate) fn wake_all(key: usize) {
    let on = arch::interrupts_off();
    LOCK.lock();
    wake_locked(key);
    LOCK.unlock();
    arch::interrupts_restore(on);
}

/// The caller holds a mutex more, and can not be killed.
pub(crate) fn hold() {
    if let Some(task) = current() {
        task.holds.fetch_add(1, Ordering::Relaxed);
    }
}

/// It holds one less; ends here if it was killed meanwhile.
pub(crate) fn release() {
    if let Some(task) = current() {
        task.holds.fetch_sub(1, Ordering::Relaxed);
        if task.is_killed() {
            exit(Cause::Killed);
        }
    }
}

/// Returns when every CPU has been, since the call, at a place where it runs
/// no callback: in the scheduler, which is never entered from one. For tasks.
pub(crate) fn grace_period() {
    let before: [usize; MAX_CPUS] =
        core::array::from_fn(|n| CPUS[n].passes.load(Ordering::Acquire));
    for (cpu, before) in CPUS.iter().zip(before) {
        // Acquire: pairs with the release in `switch_locked`.
        while cpu.is_online() && cpu.passes.load(Ordering::Acquire) == before {
            yield_now();
        }
    }
}

/// Runs `f` for all tasks that there are, the idle ones too. None begins or
/// ends meanwhile; others may run.
pub(crate) fn for_each(mut f: impl FnMut(&'static Task)) {
    let on = arch::interrupts_off();
    LOCK.lock();
    let there = |task: &&Task| !matches!(task.state(), State::Free | State::Ending | State::Dead);
    TASKS.iter().filter(there).for_each(&mut f);
    IDLE.iter()
        .zip(&CPUS)
        .filter(|(_, cpu)| cpu.is_online())
        .for_each(|(task, _)| f(task));
    LOCK.unlock();
    arch::interrupts_restore(on);
}

fn set_waiting(key: usize) {
    let task = current().expect("a task to wait");
    task.waits_for.store(key, Ordering::Relaxed);
    task.set_state(State::Waiting);
}

fn wake_locked(key: usize) {
    for task in &TASKS {
        if task.state() == State::Waiting && task.waits_for.load(Ordering::Relaxed) == key {
            task.set_state(State::Ready);
        }
    }
}

/// Goes on with the next task; returns when the caller's turn comes again.
/// With interrupts off and the lock held, which is free at return.
#[inline(never)]
fn switch_locked() {
    let cpu = arch::this_cpu();
    // Release: the callbacks before it are over for who sees it.
    cpu.passes.fetch_add(1, Ordering::Release);
    let Some(task) = current() else {
        LOCK.unlock();
        return;
    };
    assert!(task.stack_is_whole(), "stack overrun");
    if task.is_killed()
        && matches!(
            task.state(),
            State::Ready | State::Sleeping | State::Waiting
        )
    {
        trace::task_exit(task, Cause::Killed);
        task.set_cause(Cause::Killed);
        task.set_state(State::Ending);
    }

    let next = choose();
    if ptr::eq(next, task) {
        LOCK.unlock();
        return;
    }
    cpu.previous
        .store(ptr::from_ref(task).cast_mut(), Ordering::Relaxed);
    cpu.switches.fetch_add(1, Ordering::Relaxed);
    trace::task_switch(task, next);
    // SAFETY: `next` was saved or prepared, and runs nowhere: it was ready, or
    // is this CPU's idle task. Interrupts are off.
    unsafe {
        arch::switch(
            task.saved_sp().as_ptr(),
            next.saved_sp().load(Ordering::Relaxed),
            next,
        );
    }
    finish_switch();
}

/// The other half of a switch, in the task that was switched to.
fn finish_switch() {
    // The CPU may be another than before the switch.
    let previous = arch::this_cpu().previous.load(Ordering::Relaxed);
    // SAFETY: set before each switch, to a static task.
    let previous = unsafe { &*previous };
    if previous.state() == State::Ending {
        end(previous);
    }
    LOCK.unlock();
}

/// What every task begins with.
extern "C" fn first() -> ! {
    finish_switch();
    arch::interrupts_on();
    current().expect("a task that begins").run();
    exit(Cause::Finished)
}

/// Nobody is on the task's stack any more.
fn end(task: &Task) {
    task.set_state(State::Dead);
    wake_locked(ptr::from_ref(task) as usize);
}

/// The next task that is ready, after the one that was chosen last.
fn choose() -> &'static Task {
    let now = time::now();
    let start = CURSOR.load(Ordering::Relaxed);
    for step in 1..=MAX_TASKS {
        let place = (start + step) % MAX_TASKS;
        let task = &TASKS[place];
        let ready = match task.state() {
            State::Ready => true,
            State::Sleeping => task.wake_at.load(Ordering::Relaxed) <= now,
            _ => false,
        };
        if !ready {
            continue;
        }
        if task.is_killed() {
            // It never runs again. Its stack still holds what it was doing.
            trace::task_exit(task, Cause::Killed);
            task.set_cause(Cause::Killed);
            end(task);
            continue;
        }
        task.set_state(State::Running);
        CURSOR.store(place, Ordering::Relaxed);
        return task;
    }
    &IDLE[arch::cpu_number()]
}
