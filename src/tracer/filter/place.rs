//! Filters by what runs the call: task, CPU, context. They do not know what is
//! called.
//!
//! They are changed while they are in use, one atomic at a time, relaxed: a
//! call that begins meanwhile is judged by the old or the new setting, and
//! nothing else is published by it.

use core::fmt;
use core::marker::PhantomData;

use bitflags::bitflags;

use super::Filter;
use crate::sync::{AtomicUsize, Ordering};
use crate::{Context, Entry, FrameData, Platform};

/// Accepts the calls of up to `N` tasks, by [`Platform::task`], interrupts on
/// them included. Tasks are added and removed at any time, in any context. No
/// tasks accept none.
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// use fgraph::tracer::filter::Tasks;
///
/// static TASKS: Tasks<Kernel, 2> = Tasks::new();
/// assert!(TASKS.add(7) && TASKS.add(9));
/// assert!(!TASKS.add(11), "there is room for two");
/// assert!(TASKS.remove(9) && TASKS.add(11));
/// ```
pub struct Tasks<P, const N: usize = 16> {
    /// Task numbers; [`NO_TASK`] where there is none.
    tasks: [AtomicUsize; N],
    platform: PhantomData<fn() -> P>,
}

/// No task's number.
const NO_TASK: usize = usize::MAX;

impl<P, const N: usize> fmt::Debug for Tasks<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<P, const N: usize> Default for Tasks<P, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, const N: usize> Tasks<P, N> {
    /// No tasks.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Tasks;
    #[doc = example_kernel!()]
    ///
    /// static TASKS: Tasks<Kernel, 2> = Tasks::new();
    /// assert!(!TASKS.contains(0));
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tasks: [const { AtomicUsize::new(NO_TASK) }; N],
            platform: PhantomData,
        }
    }

    /// Adds a task; whether it is one of the tasks now. False: there is no
    /// room, or it is `usize::MAX`, which is no task.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Tasks;
    #[doc = example_kernel!()]
    ///
    /// static TASKS: Tasks<Kernel, 2> = Tasks::new();
    /// assert!(TASKS.add(7));
    /// assert!(TASKS.add(7), "it is one already");
    /// assert!(!TASKS.add(usize::MAX));
    /// ```
    pub fn add(&self, task: usize) -> bool {
        if task == NO_TASK {
            return false;
        }
        self.contains(task)
            || self.tasks.iter().any(|place| {
                place
                    .compare_exchange(NO_TASK, task, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            })
    }

    /// Removes a task; whether it was one of the tasks.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Tasks;
    #[doc = example_kernel!()]
    ///
    /// static TASKS: Tasks<Kernel, 2> = Tasks::new();
    /// TASKS.add(7);
    /// assert!(TASKS.remove(7));
    /// assert!(!TASKS.remove(7));
    /// ```
    pub fn remove(&self, task: usize) -> bool {
        // All places: of two that add the same task at once, each takes one.
        task != NO_TASK
            && self.tasks.iter().fold(false, |removed, place| {
                place
                    .compare_exchange(task, NO_TASK, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                    | removed
            })
    }

    /// Whether the task is one of the tasks.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Tasks;
    #[doc = example_kernel!()]
    ///
    /// static TASKS: Tasks<Kernel, 2> = Tasks::new();
    /// TASKS.add(7);
    /// assert!(TASKS.contains(7) && !TASKS.contains(8));
    /// ```
    #[must_use]
    pub fn contains(&self, task: usize) -> bool {
        self.iter().any(|other| other == task)
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let tasks = self.tasks.iter().map(|place| place.load(Ordering::Relaxed));
        tasks.filter(|&task| task != NO_TASK)
    }
}

impl<P: Platform, const N: usize> Filter for Tasks<P, N> {
    #[inline]
    fn accepts<D: FrameData>(&self, _call: &Entry<'_, D>) -> bool {
        self.contains(P::task())
    }
}

/// Accepts calls that begin on certain CPUs, by [`Platform::cpu`], of the
/// first `64 × WORDS` (32 × on a 32-bit target). CPUs are set at any time, in
/// any context. No CPUs accept none.
///
/// A call that ends on another CPU is seen to its end.
///
/// # Example
///
/// ```
#[doc = example_kernel!()]
/// use fgraph::tracer::filter::Cpus;
///
/// static CPUS: Cpus<Kernel> = Cpus::new();
/// assert!(CPUS.set(3, true));
/// assert!(CPUS.contains(3) && !CPUS.contains(2));
/// assert!(!CPUS.set(1 << 20, true), "there is no bit for it");
/// ```
pub struct Cpus<P, const WORDS: usize = 1> {
    words: [AtomicUsize; WORDS],
    platform: PhantomData<fn() -> P>,
}

impl<P, const WORDS: usize> fmt::Debug for Cpus<P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = 0..WORDS * usize::BITS as usize;
        f.debug_set()
            .entries(all.filter(|&cpu| self.contains(cpu)))
            .finish()
    }
}

impl<P, const WORDS: usize> Default for Cpus<P, WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P, const WORDS: usize> Cpus<P, WORDS> {
    /// No CPUs.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Cpus;
    #[doc = example_kernel!()]
    ///
    /// // Two words: 128 CPUs, on a 64-bit target.
    /// static CPUS: Cpus<Kernel, 2> = Cpus::new();
    /// assert!(!CPUS.contains(0));
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicUsize::new(0) }; WORDS],
            platform: PhantomData,
        }
    }

    /// The word of a CPU, if there is one, and its bit in it.
    fn bit(&self, cpu: usize) -> Option<(&AtomicUsize, usize)> {
        let bits = usize::BITS as usize;
        Some((self.words.get(cpu / bits)?, 1 << (cpu % bits)))
    }

    /// Adds or removes a CPU; false if there is no bit for it.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Cpus;
    #[doc = example_kernel!()]
    ///
    /// static CPUS: Cpus<Kernel> = Cpus::new();
    /// CPUS.set(0, true);
    /// CPUS.set(1, true);
    /// CPUS.set(0, false);
    /// assert_eq!(format!("{CPUS:?}"), "{1}");
    /// ```
    pub fn set(&self, cpu: usize, accepted: bool) -> bool {
        let Some((word, bit)) = self.bit(cpu) else {
            return false;
        };
        if accepted {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        true
    }

    /// Whether the CPU is one of the CPUs.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::tracer::filter::Cpus;
    #[doc = example_kernel!()]
    ///
    /// static CPUS: Cpus<Kernel> = Cpus::new();
    /// CPUS.set(3, true);
    /// assert!(CPUS.contains(3));
    /// assert!(!CPUS.contains(1 << 20), "there is no bit for it");
    /// ```
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.bit(cpu)
            .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}

impl<P: Platform, const WORDS: usize> Filter for Cpus<P, WORDS> {
    #[inline]
    fn accepts<D: FrameData>(&self, _call: &Entry<'_, D>) -> bool {
        self.contains(P::cpu())
    }
}

bitflags! {
    /// Accepts calls in certain contexts. No contexts accept none.
    ///
    /// # Example
    ///
    /// ```
    /// use fgraph::Context;
    /// use fgraph::tracer::filter::Contexts;
    ///
    /// let interrupts = Contexts::INTERRUPT | Contexts::NMI;
    /// assert!(interrupts.contains(Context::Nmi.into()));
    /// assert!(!interrupts.contains(Context::Task.into()));
    /// assert_eq!(Contexts::all() - interrupts, Contexts::TASK | Contexts::SOFT_INTERRUPT);
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Contexts: u8 {
        /// Tasks.
        const TASK = 1 << Context::Task as u8;
        /// Soft interrupts.
        const SOFT_INTERRUPT = 1 << Context::SoftInterrupt as u8;
        /// Interrupts.
        const INTERRUPT = 1 << Context::Interrupt as u8;
        /// Non-maskable interrupts.
        const NMI = 1 << Context::Nmi as u8;
    }
}

impl From<Context> for Contexts {
    fn from(context: Context) -> Self {
        match context {
            Context::Task => Self::TASK,
            Context::SoftInterrupt => Self::SOFT_INTERRUPT,
            Context::Interrupt => Self::INTERRUPT,
            Context::Nmi => Self::NMI,
        }
    }
}

impl Filter for Contexts {
    #[inline]
    fn accepts<D: FrameData>(&self, call: &Entry<'_, D>) -> bool {
        self.contains(call.context().into())
    }
}
