//! Panics. A task that panics ends, and the others go on; where that can not
//! be (in an interrupt, with a spin lock held, in the main task), the kernel
//! ends. A mutex that the task holds stays locked: nothing unwinds.

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::{self, current};
use crate::backtrace::Backtrace;
use crate::task::Cause;
use crate::{MAIN, console, println, sched, trace};

/// The kernel's exit code after a panic.
const EXIT: u8 = 101;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // Which CPU's locks are counted must not change meanwhile.
    let interrupts = arch::interrupts_off();
    let task = current();
    let confined = task.is_some_and(|task| {
        trace::context() == trace::Context::Task
            && arch::this_cpu().locks.load(Ordering::Relaxed) == 0
            && !task.is_idle()
            && task.name() != MAIN.name
    });
    if confined {
        arch::interrupts_restore(interrupts);
    } else {
        last_words();
    }

    // Before the stack is walked: what the tracer replaced is put back.
    trace::restore();
    let cpu = arch::cpu_number();
    let (id, name) = task.map_or((0, "none"), |task| (task.id(), task.name()));
    println!(
        "panic on cpu {cpu} in task {id} {name}: {info}\n{}",
        Backtrace::here()
    );

    if confined {
        sched::exit(Cause::Panicked);
    }
    arch::exit(EXIT);
}

/// The kernel ends in this panic, with interrupts off; if it is the second one, at once.
fn last_words() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if ONCE.swap(true, Ordering::Relaxed) {
        arch::exit(EXIT + 1);
    }
    console::break_lock();
}
