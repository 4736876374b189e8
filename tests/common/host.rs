//! The platform of a host program: threads are tasks, text is made writable
//! with `mprotect`, and the other threads are stopped by a signal meanwhile.
//!
//! Shared by the tests, the benches and the example. Linux.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fgraph::hook::Global;
use fgraph::{Context, Fgraph, Platform, RetStack};

/// The host.
#[derive(Debug)]
pub struct Host;

/// The one tracer.
pub static FGRAPH: Fgraph<Host> = Fgraph::new();

thread_local! {
    static CURRENT: Cell<Option<&'static RetStack>> = const { Cell::new(None) };
    static CONTEXT: Cell<Context> = const { Cell::new(Context::Task) };
    static INTERRUPTS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static TASK: Cell<usize> = const { Cell::new(0) };
    static LEAVES: Leaves = const { Leaves };
}

/// Takes a thread that ends off the list, so that nobody waits for it.
struct Leaves;

impl Drop for Leaves {
    fn drop(&mut self) {
        exit();
    }
}

/// The threads that have a shadow stack, in the order in which they got it.
static THREADS: Mutex<Vec<(libc::pthread_t, &'static RetStack)>> = Mutex::new(Vec::new());

// SAFETY: the current stack is the running thread's own, and signal handlers
// that trace set a context of theirs.
unsafe impl Platform for Host {
    #[inline]
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        match CURRENT.try_with(Cell::get) {
            Ok(Some(stack)) => Some(f(stack)),
            _ => None,
        }
    }

    #[inline]
    fn clock() -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction.
        unsafe {
            std::arch::x86_64::_rdtsc()
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            nanoseconds()
        }
    }

    fn cpu() -> usize {
        // SAFETY: no arguments, no state.
        usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
    }

    #[inline]
    fn context() -> Context {
        CONTEXT.try_with(Cell::get).unwrap_or(Context::Task)
    }

    #[inline]
    fn task() -> usize {
        TASK.try_with(Cell::get).unwrap_or(0)
    }

    fn interrupt_stack(slot: usize) -> Option<Range<usize>> {
        let (low, high) = INTERRUPTS.try_with(Cell::get).ok()?;
        let bounds = low..high;
        bounds.contains(&slot).then_some(bounds)
    }

    fn synchronize() -> bool {
        // SAFETY: makes every thread of the process pass a full barrier.
        unsafe {
            const QUERY_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
            const PRIVATE_EXPEDITED: i32 = 1 << 3;
            libc::syscall(libc::SYS_membarrier, QUERY_REGISTER_PRIVATE_EXPEDITED, 0);
            if libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0) != 0 {
                return false;
            }
        }
        let own = CURRENT.try_with(Cell::get).ok().flatten();
        let others: Vec<&'static RetStack> = threads().iter().map(|&(_, stack)| stack).collect();
        let begun = Instant::now();
        for stack in others {
            while own.is_none_or(|own| !std::ptr::eq(own, stack)) && stack.is_inside() {
                if begun.elapsed() > Duration::from_secs(10) {
                    return false;
                }
                std::thread::yield_now();
            }
        }
        true
    }
}

impl Global for Host {
    #[inline]
    fn fgraph() -> &'static Fgraph<Self> {
        &FGRAPH
    }
}

fn threads() -> std::sync::MutexGuard<'static, Vec<(libc::pthread_t, &'static RetStack)>> {
    THREADS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The monotonic clock.
pub fn nanoseconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds and the ticks of [`Platform::clock`] over the same time.
pub fn clock_rate() -> (u64, u64) {
    let (ns, ticks) = (nanoseconds(), Host::clock());
    while nanoseconds() - ns < 20_000_000 {}
    (nanoseconds() - ns, Host::clock() - ticks)
}

/// The range of the running thread's real stack.
pub fn real_stack() -> Range<usize> {
    // SAFETY: the attributes are initialised by the first call and destroyed
    // by the last.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let mut low = std::ptr::null_mut();
        let mut size = 0;
        assert_eq!(
            libc::pthread_getattr_np(libc::pthread_self(), &mut attributes),
            0
        );
        assert_eq!(
            libc::pthread_attr_getstack(&attributes, &mut low, &mut size),
            0
        );
        libc::pthread_attr_destroy(&mut attributes);
        low as usize..low as usize + size
    }
}

/// Gives the running thread a shadow stack of `words` words, if it has none,
/// and makes it a task of its own.
pub fn attach(words: usize) -> &'static RetStack {
    static TASKS: AtomicUsize = AtomicUsize::new(1);
    if let Some(stack) = CURRENT.get() {
        return stack;
    }
    let stack: &'static RetStack = Box::leak(Box::default());
    stack
        .attach(Box::leak(vec![0; words].into_boxed_slice()), real_stack())
        .expect("a new stack takes its words");
    TASK.set(TASKS.fetch_add(1, Ordering::Relaxed));
    // SAFETY: no arguments.
    threads().push((unsafe { libc::pthread_self() }, stack));
    LEAVES.with(|_| {});
    CURRENT.set(Some(stack));
    stack
}

/// The running thread is about to end: nobody waits for it any more. It keeps
/// its shadow stack, on which the call of this very function may lie.
pub fn exit() {
    // By thread, not by stack: a test may have made another one current.
    // SAFETY: no arguments.
    let own = unsafe { libc::pthread_self() };
    threads().retain(|&(thread, _)| thread != own);
}

/// The running thread is no task any more: what it does from here on, ending
/// included, is not traced. Called while no entry is hooked; with calls in
/// flight it stays a task, as their returns need the stack.
pub fn resign() {
    exit();
    if CURRENT.get().is_some_and(|stack| stack.depth() == 0) {
        CURRENT.set(None);
    }
}

/// Makes `stack` the running thread's, whatever it had; gives the former one
/// back.
pub fn replace_current(stack: Option<&'static RetStack>) -> Option<&'static RetStack> {
    CURRENT.replace(stack)
}

/// Says on which stack the running thread's signal handlers run.
pub fn set_interrupt_stack(bounds: Range<usize>) {
    INTERRUPTS.set((bounds.start, bounds.end));
}

/// Runs `f` in a context.
pub fn in_context<R>(context: Context, f: impl FnOnce() -> R) -> R {
    struct Restore(Context);
    impl Drop for Restore {
        fn drop(&mut self) {
            CONTEXT.set(self.0);
        }
    }
    let _restore = Restore(CONTEXT.replace(context));
    f()
}

static STOPPED: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop_here(_: libc::c_int) {
    STOPPED.fetch_add(1, Ordering::SeqCst);
    while STOP.load(Ordering::SeqCst) {
        core::hint::spin_loop();
    }
    STOPPED.fetch_sub(1, Ordering::SeqCst);
}

/// Runs `f` while all other threads that have a shadow stack spin in a signal
/// handler.
pub fn with_others_stopped<R>(f: impl FnOnce() -> R) -> R {
    let threads = threads();
    // SAFETY: the handler spins and counts, which any thread may do at any
    // instruction; threads in the list have not ended, as they leave it first.
    let stopped = unsafe {
        let handler = stop_here as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGUSR2, handler);
        STOP.store(true, Ordering::SeqCst);
        let own = libc::pthread_self();
        let others = threads.iter().filter(|&&(thread, _)| thread != own);
        others
            .filter(|&&(thread, _)| libc::pthread_kill(thread, libc::SIGUSR2) == 0)
            .count()
    };
    while STOPPED.load(Ordering::SeqCst) < stopped {
        core::hint::spin_loop();
    }
    let result = f();
    STOP.store(false, Ordering::SeqCst);
    while STOPPED.load(Ordering::SeqCst) > 0 {
        core::hint::spin_loop();
    }
    result
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod writable;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod text {
    use fgraph::hook::patch::{Patch, PatchText};

    use super::writable::with_writable_text;
    use super::{Host, with_others_stopped};

    /// The functions of this program.
    pub static PATCH: Patch<Host> = Patch::new();

    // SAFETY: the pages are writable while `f` runs, the other threads stand
    // still, and signal handlers of this thread are blocked. What is written is
    // in the processor's reach of fetching when `f` returns; it starts afresh
    // on leaving the kernel, which this thread does after the last `mprotect`
    // and the others do after their signal handler.
    unsafe impl PatchText for Host {
        fn patch_text<R>(f: impl FnOnce() -> R) -> R {
            with_others_stopped(|| {
                // SAFETY: the sets are initialised by the calls.
                unsafe {
                    let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
                    libc::sigfillset(&mut all);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
                    let result = with_writable_text(f);
                    libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                    result
                }
            })
        }
    }

    /// Takes the table of this program's functions, once.
    pub fn init() -> &'static Patch<Host> {
        static INIT: std::sync::Once = std::sync::Once::new();
        INIT.call_once(|| {
            super::attach(4096);
            // SAFETY: this program's own table.
            let found = unsafe { PATCH.init(fgraph::patchable_functions!()) };
            let found = found.expect("the first init succeeds");
            assert!(found.patchable > 0, "{found:?}");
        });
        &PATCH
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use text::{PATCH, init as init_patch};
