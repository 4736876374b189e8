//! Panics. A task that panics ends, and the others go on; where that can not
//! be (in an interrupt, with a lock held, in the main task), the kernel ends.

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
    let task = current();
    let confined = task.is_some_and(|task| {
        trace::context() == trace::Context::Task
            && arch::this_cpu().locks.load(Ordering::Relaxed) == 0
            && !task.is_idle()
            && task.name() != MAIN.name
    });
    if !confined {
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

/// The kernel ends in this panic; if it is the second one, at once.
fn last_words() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    let _ = arch::interrupts_off();
    if ONCE.swap(true, Ordering::Relaxed) {
        arch::exit(EXIT + 1);
    }
    console::break_lock();
}
