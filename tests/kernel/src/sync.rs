//! A spin lock with interrupts off, a mutex whose waiters sleep, and data that
//! is made late.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::{arch, sched};

/// A spin lock without data. Interrupts must be off while it is held, or the
/// handler of one may wait for it for ever.
pub(crate) struct RawSpin(AtomicBool);

impl RawSpin {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits for it.
    pub(crate) fn lock(&self) {
        while !self.try_lock() {
            core::hint::spin_loop();
        }
    }

    /// Takes it if it is free.
    pub(crate) fn try_lock(&self) -> bool {
        // Acquire: pairs with the release in `unlock`.
        let free = !self.0.swap(true, Ordering::Acquire);
        if free {
            arch::this_cpu().locks.fetch_add(1, Ordering::Relaxed);
        }
        free
    }

    /// Gives it back; maybe in another task than took it, on the same CPU.
    pub(crate) fn unlock(&self) {
        arch::this_cpu().locks.fetch_sub(1, Ordering::Relaxed);
        self.0.store(false, Ordering::Release);
    }
}

/// Data behind a spin lock. Interrupts are off while it is held.
pub(crate) struct SpinLock<T> {
    raw: RawSpin,
    data: UnsafeCell<T>,
}

// SAFETY: the lock hands the data to one CPU at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// A held [`SpinLock`].
pub(crate) struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    interrupts: bool,
}

impl<T> SpinLock<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self {
            raw: RawSpin::new(),
            data: UnsafeCell::new(data),
        }
    }

    /// Waits for it.
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        let interrupts = arch::interrupts_off();
        self.raw.lock();
        SpinGuard {
            lock: self,
            interrupts,
        }
    }

    /// Waits for it, but not for ever, then takes it anyway: for a panic, whose
    /// message matters more than whose turn it is.
    pub(crate) fn lock_or_break(&self) -> SpinGuard<'_, T> {
        let interrupts = arch::interrupts_off();
        for _ in 0..10_000_000 {
            if self.raw.try_lock() {
                return SpinGuard {
                    lock: self,
                    interrupts,
                };
            }
            core::hint::spin_loop();
        }
        arch::this_cpu().locks.fetch_add(1, Ordering::Relaxed);
        SpinGuard {
            lock: self,
            interrupts,
        }
    }
}

impl<T> SpinGuard<'_, T> {
    /// Unlocks, but leaves interrupts off; returns whether they were on.
    pub(crate) fn unlock_only(self) -> bool {
        let interrupts = self.interrupts;
        self.lock.raw.unlock();
        core::mem::forget(self);
        interrupts
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.unlock();
        arch::interrupts_restore(self.interrupts);
    }
}

/// A lock whose waiters sleep. For tasks alone.
pub(crate) struct Mutex<T> {
    state: SpinLock<State>,
    data: UnsafeCell<T>,
}

struct State {
    held: bool,
    /// Somebody waits, or did and was killed.
    waited_for: bool,
}

// SAFETY: the lock hands the data to one task at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// A held [`Mutex`].
pub(crate) struct MutexGuard<'a, T>(&'a Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Self {
        let state = SpinLock::new(State {
            held: false,
            waited_for: false,
        });
        Self {
            state,
            data: UnsafeCell::new(data),
        }
    }

    /// Sleeps until it is free.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        loop {
            let mut state = self.state.lock();
            if !state.held {
                state.held = true;
                // Under the spin lock, so a killed task either does not have
                // it or is known to have it.
                sched::hold();
                return MutexGuard(self);
            }
            state.waited_for = true;
            sched::wait(self.key(), state);
        }
    }

    fn key(&self) -> usize {
        (&raw const self.state) as usize
    }

    fn unlock(&self) {
        let mut state = self.state.lock();
        state.held = false;
        if core::mem::take(&mut state.waited_for) {
            // All of them: one alone might be killed before it takes the lock,
            // and the others would sleep for ever.
            sched::wake_all(self.key());
        }
        drop(state);
        sched::release();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// Data that is made once, at some time, and is there from then on.
pub(crate) struct Late<T> {
    taken: AtomicBool,
    made: AtomicBool,
    data: UnsafeCell<Option<T>>,
}

// SAFETY: who takes it writes it, and nobody reads it before it is made; then
// it is shared and never changes.
unsafe impl<T: Send + Sync> Sync for Late<T> {}

impl<T> Late<T> {
    pub(crate) const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            made: AtomicBool::new(false),
            data: UnsafeCell::new(None),
        }
    }

    /// Makes it. Only once.
    pub(crate) fn set(&self, data: T) -> &T {
        // Relaxed: who takes it is all that matters.
        assert!(!self.taken.swap(true, Ordering::Relaxed), "made twice");
        // SAFETY: only who took it comes here, and nobody reads it yet.
        let made = unsafe { (*self.data.get()).insert(data) };
        // Release: pairs with the acquire in `get`.
        self.made.store(true, Ordering::Release);
        made
    }

    /// It, if it was made.
    pub(crate) fn get(&self) -> Option<&T> {
        if !self.made.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: it was made, and nobody writes it any more.
        unsafe { (*self.data.get()).as_ref() }
    }
}
