//! What each CPU has for itself.

use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::task::Task;

/// CPUs that the kernel has room for.
pub(crate) const MAX_CPUS: usize = 2;

/// One CPU's data. Its assembly reads the fields by their offsets.
#[repr(C)]
pub(crate) struct Cpu {
    /// Its own address. Set before any Rust code runs.
    #[cfg(target_arch = "x86_64")]
    pub(crate) this: AtomicPtr<Cpu>,
    /// The running task, where no register holds it. Changes in `arch::switch`
    /// alone, after the first.
    #[cfg(target_arch = "x86_64")]
    pub(crate) current: AtomicPtr<Task>,
    /// From 0. Set before any Rust code runs.
    pub(crate) number: AtomicU32,
    /// By which the hardware knows it.
    pub(crate) hardware_id: AtomicU32,
    /// Another CPU wants this one to stop, and: it has.
    pub(crate) stop: AtomicU32,
    /// See `stop`.
    pub(crate) stopped: AtomicU32,
    /// An NMI was sent for its handler, not for `stop`.
    pub(crate) nmi_wanted: AtomicU32,
    /// Spin locks that it holds, so that a panic knows.
    pub(crate) locks: AtomicU32,
    /// The task before the running one, between `arch::switch` and the
    /// scheduler's tidying up.
    pub(crate) previous: AtomicPtr<Task>,
    /// Times it was seen outside of any callback: see `sched::grace_period`.
    pub(crate) passes: AtomicUsize,
    /// Timer interrupts.
    pub(crate) timer_ticks: AtomicUsize,
    /// Switches between tasks.
    pub(crate) switches: AtomicUsize,
    /// NMIs that reached their handler.
    pub(crate) nmis: AtomicUsize,
    online: AtomicBool,
}

impl Cpu {
    const fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            this: AtomicPtr::new(ptr::null_mut()),
            #[cfg(target_arch = "x86_64")]
            current: AtomicPtr::new(ptr::null_mut()),
            number: AtomicU32::new(0),
            hardware_id: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            stopped: AtomicU32::new(0),
            nmi_wanted: AtomicU32::new(0),
            locks: AtomicU32::new(0),
            previous: AtomicPtr::new(ptr::null_mut()),
            passes: AtomicUsize::new(0),
            timer_ticks: AtomicUsize::new(0),
            switches: AtomicUsize::new(0),
            nmis: AtomicUsize::new(0),
            online: AtomicBool::new(false),
        }
    }

    /// It takes part from now on: it has tasks, and handles NMIs.
    pub(crate) fn set_online(&self) {
        // Release: who sees it online sees its tables and its hardware id.
        self.online.store(true, Ordering::Release);
    }

    /// Its counters, for people.
    pub(crate) fn counts(&self) -> impl fmt::Display {
        let load = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let (ticks, switches, nmis) = (
            load(&self.timer_ticks),
            load(&self.switches),
            load(&self.nmis),
        );
        fmt::from_fn(move |f| write!(f, "{ticks} ticks, {switches} switches, {nmis} NMIs"))
    }

    /// It takes part.
    pub(crate) fn is_online(&self) -> bool {
        self.online.load(Ordering::Acquire)
    }
}

/// All of them.
pub(crate) static CPUS: [Cpu; MAX_CPUS] = [const { Cpu::new() }; MAX_CPUS];
