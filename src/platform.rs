//! What a kernel supplies: the one trait that it implements.
//!
//! This file states the contract. It decides nothing.

use core::ops::Range;

use crate::RetStack;

/// What kind of code is running. Each context has a recursion guard of its
/// own, so that an interrupt inside a callback is still traced.
///
/// # Example
///
/// ```
/// use fgraph::Context;
///
/// # fn my_interrupt_depth() -> usize { 1 }
/// # fn my_nmi_depth() -> usize { 0 }
/// fn context() -> Context {
///     match (my_nmi_depth(), my_interrupt_depth()) {
///         (0, 0) => Context::Task,
///         (0, _) => Context::Interrupt,
///         _ => Context::Nmi,
///     }
/// }
/// assert_eq!(context(), Context::Interrupt);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Context {
    /// A task, preemptible or not.
    Task = 0,
    /// A soft interrupt, bottom half or deferred call, run on top of a task.
    SoftInterrupt = 1,
    /// A hardware interrupt or an exception handler that may interrupt both.
    Interrupt = 2,
    /// A non-maskable interrupt.
    Nmi = 3,
}

impl Context {
    /// The context whose discriminant this is; the highest for none.
    pub(crate) const fn from_code(code: usize) -> Self {
        match code {
            0 => Self::Task,
            1 => Self::SoftInterrupt,
            2 => Self::Interrupt,
            _ => Self::Nmi,
        }
    }
}

/// The kernel under the tracer.
///
/// Every function here runs in the tracer's hottest path, in any context (task,
/// interrupt, NMI), on any CPU, and possibly before the recursion guard is set.
/// It must not sleep, take a lock that an interrupted owner may hold, or
/// allocate.
///
/// # Safety
///
/// - [`current`](Platform::current) hands out the shadow stack of the task that
///   runs on this CPU, interrupts and NMIs included: two CPUs never get the
///   same one at the same time. The place where it changes to the next task's
///   must not lie between a traced function's entry and its return, unless
///   [`owner`](Platform::owner) finds the stack that was left.
/// - [`context`](Platform::context) tells nested contexts of one task apart: an
///   interrupt that arrives while a context runs reports a higher one, or the
///   interrupted one is not inside the tracer.
/// - [`synchronize`](Platform::synchronize), where it is overridden, returns
///   only when its promise holds.
///
/// # Example
///
/// A kernel with one CPU and one task:
///
/// ```
/// use fgraph::{Platform, RetStack};
///
/// static STACK: RetStack = RetStack::new();
///
/// struct Kernel;
///
/// // SAFETY: there is one task on one CPU, and its stack is `STACK`.
/// unsafe impl Platform for Kernel {
///     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
///         Some(f(&STACK))
///     }
///     fn clock() -> u64 {
///         0
///     }
/// }
///
/// assert_eq!(Kernel::current(RetStack::depth), Some(0));
/// ```
pub unsafe trait Platform: 'static {
    /// Runs `f` on the running task's shadow stack; `None` where there is
    /// none (early boot, idle): the call is then not traced.
    ///
    /// # Example
    ///
    /// ```
    /// # use fgraph::{Platform, RetStack};
    /// # use std::cell::Cell;
    /// # struct Task { shadow: RetStack }
    /// # thread_local! { static CURRENT: Cell<Option<&'static Task>> = const { Cell::new(None) }; }
    /// # struct Kernel;
    /// # // SAFETY: one CPU, one task.
    /// # unsafe impl Platform for Kernel {
    /// # fn clock() -> u64 { 0 }
    /// fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
    ///     // One load, in a kernel: of a per-CPU pointer.
    ///     let task: &Task = CURRENT.get()?;
    ///     Some(f(&task.shadow))
    /// }
    /// # }
    /// assert!(Kernel::current(|_| ()).is_none(), "no task yet");
    /// CURRENT.set(Some(Box::leak(Box::new(Task { shadow: RetStack::new() }))));
    /// assert_eq!(Kernel::current(RetStack::depth), Some(0));
    /// ```
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R>;

    /// The time in ticks. It should not go backwards on one CPU; where it
    /// does, durations saturate at zero and are counted.
    ///
    /// # Example
    ///
    /// ```
    /// # use fgraph::{Platform, RetStack};
    /// # static STACK: RetStack = RetStack::new();
    /// # use std::time::Instant;
    /// # static BOOT: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    /// # struct Kernel;
    /// # // SAFETY: one CPU, one task.
    /// # unsafe impl Platform for Kernel {
    /// # fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
    /// fn clock() -> u64 {
    ///     // Or the processor's counter, whose rate a `Scale` tells to readers.
    ///     BOOT.elapsed().as_nanos() as u64
    /// }
    /// # }
    /// let before = Kernel::clock();
    /// assert!(Kernel::clock() >= before);
    /// ```
    fn clock() -> u64;

    /// The number of the running CPU, from 0. Tracers use it to pick a
    /// per-CPU buffer; a number that has no buffer is counted, not followed.
    ///
    /// # Example
    ///
    /// ```
    /// # fn my_apic_id() -> usize { 5 }
    /// # static NUMBERS: [usize; 8] = [0, 0, 0, 0, 0, 1, 0, 0];
    #[doc = example_platform!()]
    /// fn cpu() -> usize {
    ///     // Hardware numbers may have gaps; buffers are one after another.
    ///     NUMBERS.get(my_apic_id()).copied().unwrap_or(usize::MAX)
    /// }
    /// # }
    /// assert_eq!(Kernel::cpu(), 1);
    /// ```
    #[inline]
    fn cpu() -> usize {
        0
    }

    /// The running context. Default: always a task, for platforms that trace
    /// no interrupts.
    ///
    /// # Example
    ///
    /// ```
    /// # fn my_interrupt_depth() -> usize { 1 }
    #[doc = example_platform!()]
    /// fn context() -> Context {
    ///     if my_interrupt_depth() == 0 {
    ///         Context::Task
    ///     } else {
    ///         Context::Interrupt
    ///     }
    /// }
    /// # }
    /// assert_eq!(Kernel::context(), Context::Interrupt);
    /// ```
    #[inline]
    fn context() -> Context {
        Context::Task
    }

    /// A number by which a person knows the running task. Default: 0.
    ///
    /// # Example
    ///
    /// ```
    /// # struct Task { id: usize }
    /// # fn my_current() -> Option<&'static Task> { Some(&Task { id: 12 }) }
    #[doc = example_platform!()]
    /// fn task() -> usize {
    ///     my_current().map_or(0, |task| task.id)
    /// }
    /// # }
    /// assert_eq!(Kernel::task(), 12);
    /// ```
    #[inline]
    fn task() -> usize {
        0
    }

    /// The grace period: returns when every dispatch (entry or return) that
    /// was running on any CPU when it was called has ended, other than one of
    /// the caller's own. Called from
    /// [`unregister`](crate::Fgraph::unregister), in task context or in a
    /// callback. False: it gave up, because a callback does not return.
    ///
    /// A dispatch is running while its task's stack
    /// [is inside the tracer](RetStack::is_inside), which other CPUs see at
    /// the latest after each CPU has passed a full barrier: an inter-processor
    /// interrupt, or any trap. So a kernel sends one to all CPUs, and then waits
    /// until it has seen every task outside once.
    ///
    /// Default: true at once. A callback may then still be running on another
    /// CPU, or be called once more by a dispatch that had begun, when
    /// `unregister` returns; frames and return addresses are right either way.
    ///
    /// # Example
    ///
    /// ```
    /// # struct Task { shadow: RetStack }
    /// # fn my_interrupt_all_cpus() {}
    /// # fn my_tasks() -> impl Iterator<Item = &'static Task> {
    /// #     static TASK: Task = Task { shadow: RetStack::new() };
    /// #     core::iter::once(&TASK)
    /// # }
    #[doc = example_platform!()]
    /// fn synchronize() -> bool {
    ///     my_interrupt_all_cpus();
    ///     let own = Self::current(|own| own as *const RetStack);
    ///     my_tasks().map(|task| &task.shadow).all(|stack| {
    ///         // So many turns, and not for ever.
    ///         own == Some(stack as *const _) || (0..1_000_000).any(|_| !stack.is_inside())
    ///     })
    /// }
    /// # }
    /// assert!(Kernel::synchronize());
    /// ```
    #[inline]
    fn synchronize() -> bool {
        true
    }

    /// Runs `f` on the shadow stack of the task whose real stack holds
    /// `slot`, where that is not the running task's. Asked only when a return
    /// finds no frame on the running task's shadow stack: a traced function
    /// that changed which task is current. Default: knows none.
    ///
    /// # Example
    ///
    /// ```
    /// # use std::ops::Range;
    /// # struct Task { shadow: RetStack, stack: Range<usize> }
    /// # static TASK: Task = Task { shadow: RetStack::new(), stack: 0x4000..0x8000 };
    /// # fn my_tasks() -> impl Iterator<Item = &'static Task> { core::iter::once(&TASK) }
    #[doc = example_platform!()]
    /// fn owner<R>(slot: usize, f: impl FnOnce(&RetStack) -> R) -> Option<R> {
    ///     let task = my_tasks().find(|task| task.stack.contains(&slot))?;
    ///     Some(f(&task.shadow))
    /// }
    /// # }
    /// assert_eq!(Kernel::owner(0x7ff8, RetStack::depth), Some(0));
    /// assert_eq!(Kernel::owner(0x8000, RetStack::depth), None);
    /// ```
    #[inline]
    fn owner<R>(slot: usize, f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        let _ = (slot, f);
        None
    }

    /// The bounds of the interrupt stack that holds `slot`, if there is one: a
    /// stack that is empty again before anything goes on that it interrupted.
    /// Where an interrupt is left by a jump, this proves that its calls are
    /// dead as soon as a call is made on the task's own stack again, or at the
    /// beginning of the interrupt stack. Asked, of any CPU's stacks, only where
    /// older calls are in doubt, and for [`restore`](crate::Fgraph::restore) and
    /// unwinders. Default: knows none, and such calls end with the traced call
    /// that encloses the jump, or when their slots are used again.
    ///
    /// # Example
    ///
    /// ```
    /// # use std::ops::Range;
    /// # fn my_cpu_stacks() -> impl Iterator<Item = Range<usize>> { core::iter::once(0x4000..0x8000) }
    #[doc = example_platform!()]
    /// fn interrupt_stack(slot: usize) -> Option<Range<usize>> {
    ///     my_cpu_stacks().find(|stack| stack.contains(&slot))
    /// }
    /// # }
    /// assert_eq!(Kernel::interrupt_stack(0x7ff8), Some(0x4000..0x8000));
    /// ```
    #[inline]
    fn interrupt_stack(slot: usize) -> Option<Range<usize>> {
        let _ = slot;
        None
    }

    /// A return found its frame nowhere: the place where the call came from is
    /// lost, by a broken contract or damaged memory. Returns the address to go
    /// to instead, for a platform that can end the task there; `None` (the
    /// default) stops with an invalid-instruction trap. Called after the loss
    /// was counted.
    ///
    /// # Example
    ///
    /// ```
    /// # extern "C" fn my_end_task() { std::process::abort() }
    #[doc = example_platform!()]
    /// fn lost_return(_slot: usize) -> Option<usize> {
    ///     Some(my_end_task as extern "C" fn() as usize)
    /// }
    /// # }
    /// assert!(Kernel::lost_return(0).is_some());
    /// ```
    #[inline]
    fn lost_return(slot: usize) -> Option<usize> {
        let _ = slot;
        None
    }
}
