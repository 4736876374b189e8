//! A call that is interrupted in the hook's own code: where its caller is.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::functions::link;
use super::{Following, Task, Watch, host};

static CALLER: AtomicUsize = AtomicUsize::new(0);
/// Interrupts in the entry or its thunk; in the stub with the caller's address
/// in `x30`, and without; wrong answers.
static SEEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static WRONG: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's.
    let context = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let (pc, sp) = (context.pc as usize, context.sp as usize);
    let x30 = context.regs[30] as usize;
    // SAFETY: what the signal interrupted.
    let told = unsafe { host::PATCH.interrupted(host::attach(0), pc, sp, x30) };
    let Some(told) = told else { return };
    let caller = CALLER.load(Relaxed);
    if told != caller {
        WRONG.fetch_add(1, Relaxed);
    }
    let func = link as extern "C" fn() -> usize as usize;
    let place = if (func - 12..func + 4).contains(&pc) {
        0
    } else if x30 == caller {
        1
    } else {
        2
    };
    SEEN[place].fetch_add(1, Relaxed);
}

/// The one place from which it is called.
#[inline(never)]
fn call() -> usize {
    black_box(link())
}

/// Calls [`link`], for the first time before `start`, until `done`.
fn hammer(start: impl FnOnce() -> Following, done: impl Fn() -> bool) {
    let mut start = Some(start);
    let mut following = None;
    loop {
        let seen = call();
        if let Some(start) = start.take() {
            CALLER.store(seen, Relaxed);
            following = Some(start());
        }
        if done() {
            break;
        }
    }
    drop(following);
}

#[test]
fn an_unwinder_is_told_the_caller_inside_the_hook() {
    let task = Task::new();
    let func = link as extern "C" fn() -> usize as usize;
    let begun = Instant::now();
    let all_seen = || SEEN.iter().all(|count| count.load(Relaxed) != 0);
    let done = AtomicBool::new(false);
    // SAFETY: the handler reads what it interrupts, and atomics.
    let own = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            0
        );
        libc::pthread_self()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                // SAFETY: the thread waits for this one at the scope's end.
                unsafe { libc::pthread_kill(own, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        hammer(
            || Following::new(Watch::count(), &[func]),
            || all_seen() || begun.elapsed() > Duration::from_secs(60),
        );
        done.store(true, Relaxed);
    });
    assert_eq!(WRONG.load(Relaxed), 0);
    assert!(all_seen(), "{SEEN:?}");
    drop(task);
}
