//! What `test=NAME` runs instead of the workload. A scenario checks itself; the
//! kernel's exit code says how it went.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::backtrace::{self, Backtrace};
use crate::cpu::CPUS;
use crate::options::Options;
use crate::symbols::At;
use crate::task::{Cause, Program};
use crate::trace::walks;
use crate::{arch, println, sched, stop, trap};

pub(crate) mod backtraces;
mod counted;
pub(crate) mod restore;
mod same;
mod tracing;

/// Runs the scenario of that name; `None` if there is none.
pub(crate) fn run(name: &str, options: &Options) -> Option<bool> {
    let scenario: fn(&Options) -> bool = match name {
        "hello" => hello,
        "panic" => panic,
        "task-panic" => task_panic,
        "fault" => fault,
        "task-fault" => task_fault,
        "kill" => kill,
        "nmi" => nmi,
        "stop" => stop,
        "grace" => grace,
        "breakpoint" => breakpoint,
        "backtraces" => backtraces::equal,
        "step" => backtraces::step,
        "same" => same::run,
        "restore" => restore::often,
        "interrupt-panic" => restore::panic,
        "everything" => tracing::everything,
        "filters" => tracing::filters,
        "churn" => tracing::churn,
        "ends" => tracing::ends,
        "deep" => tracing::deep,
        "counted" => counted::run,
        _ => return None,
    };
    Some(scenario(options))
}

fn hello(_: &Options) -> bool {
    println!("hello");
    true
}

/// The kernel ends, with exit code 101.
fn panic(_: &Options) -> bool {
    nest(10, &|| panic!("as asked for"));
    false
}

/// Calls `f` inside so many nested calls.
#[inline(never)]
fn nest(depth: usize, f: &dyn Fn()) -> usize {
    if depth == 0 {
        f();
        return 0;
    }
    let below = nest(depth - 1, f);
    // Not a tail call: something is left to do.
    core::hint::black_box(below + 1)
}

/// The same for what changes something.
fn nest_mut(depth: usize, f: &mut dyn FnMut()) {
    let f = core::cell::RefCell::new(f);
    nest(depth, &|| f.borrow_mut()());
}

/// Only the task ends.
fn task_panic(_: &Options) -> bool {
    static PROGRAM: Program = Program {
        name: "panicker",
        run: |_| _ = nest(10, &|| panic!("in a task, as asked for")),
    };
    let task = sched::spawn(&PROGRAM, 0).expect("a place");
    let cause = sched::join(task);
    println!("ended: {cause:?}");
    cause == Cause::Panicked && reused(task.place())
}

/// Reads where nothing is mapped, and goes on.
fn fault(_: &Options) -> bool {
    let failed = AtomicUsize::new(0);
    nest(10, &|| {
        if trap::probe(UNMAPPED).is_none() {
            failed.fetch_add(1, Ordering::Relaxed);
        }
    });
    let trace = backtrace::PROBED.get();
    println!("page fault caught\n{trace}");
    failed.into_inner() == 1 && trap::PROBED.load(Ordering::Relaxed) == 1 && depth_of(&trace) == 11
}

/// Beyond the first 4 GiB, and canonical.
const UNMAPPED: usize = 0x10_0000_0000;

/// How often `nest` is in a backtrace.
fn depth_of(trace: &Backtrace) -> usize {
    let start = nest as *const () as usize;
    let is_nest = |&&address: &&usize| {
        crate::symbols::find(address).is_some_and(|symbol| symbol.start == start)
    };
    trace.addresses().iter().filter(is_nest).count()
}

/// Reads where nothing is mapped, and ends.
fn task_fault(_: &Options) -> bool {
    static PROGRAM: Program = Program {
        name: "faulter",
        run: |_| {
            nest(10, &|| {
                // SAFETY: none: this is the fault. The kernel ends the task.
                _ = unsafe { (UNMAPPED as *const u8).read_volatile() };
            });
        },
    };
    let task = sched::spawn(&PROGRAM, 0).expect("a place");
    let cause = sched::join(task);
    println!("ended: {cause:?}");
    cause == Cause::Faulted && reused(task.place())
}

static ARRIVED: AtomicBool = AtomicBool::new(false);

/// Kills tasks that compute, sleep and hold a lock, in nested calls.
fn kill(_: &Options) -> bool {
    static SPINNER: Program = Program {
        name: "spinner",
        run: |_| {
            nest(10, &|| {
                ARRIVED.store(true, Ordering::Release);
                loop {
                    core::hint::spin_loop();
                }
            });
        },
    };
    static SLEEPER: Program = Program {
        name: "sleeper",
        run: |_| {
            nest(10, &|| {
                ARRIVED.store(true, Ordering::Release);
                sched::sleep(u64::MAX / 2);
            });
        },
    };
    static LOCK: crate::sync::Mutex<u32> = crate::sync::Mutex::new(0);
    static HOLDER: Program = Program {
        name: "holder",
        run: |_| {
            nest(10, &|| {
                let mut held = LOCK.lock();
                ARRIVED.store(true, Ordering::Release);
                sched::sleep(20_000_000);
                *held += 1;
            });
        },
    };

    let mut fine = true;
    for program in [&SPINNER, &SLEEPER, &HOLDER] {
        ARRIVED.store(false, Ordering::Relaxed);
        let task = sched::spawn(program, 0).expect("a place");
        while !ARRIVED.load(Ordering::Acquire) {
            sched::yield_now();
        }
        sched::kill(task);
        let cause = sched::join(task);
        println!("{}: {cause:?}", program.name);
        fine &= cause == Cause::Killed && reused(task.place());
    }
    // The holder gave its lock back first, after what it had to do.
    fine && *LOCK.lock() == 1
}

/// The next task gets the place that was given back, and runs there.
fn reused(place: usize) -> bool {
    static PROGRAM: Program = Program {
        name: "next",
        run: |_| _ = nest(10, &|| ()),
    };
    let task = sched::spawn(&PROGRAM, 0).expect("a place");
    let cause = sched::join(task);
    println!("place {place} again: {cause:?}");
    task.place() == place && cause == Cause::Finished
}

/// Runs `f` while a task sends NMIs to all CPUs; false if that task did not end
/// as it should.
fn beside_nmis(f: impl FnOnce() -> bool) -> bool {
    static DONE: AtomicBool = AtomicBool::new(false);
    static SENDER: Program = Program {
        name: "nmi-sender",
        run: |_| {
            for n in 0_u64.. {
                if DONE.load(Ordering::Relaxed) {
                    break;
                }
                let handled = || {
                    let nmis = CPUS.iter().map(|cpu| cpu.nmis.load(Ordering::Relaxed));
                    nmis.sum::<usize>()
                };
                let before = handled();
                let me = arch::cpu_number();
                for (number, cpu) in CPUS.iter().enumerate() {
                    if number != me && cpu.is_online() {
                        stop::send_nmi(number);
                    }
                }
                // At odd moments, and with time in between for other things,
                // however long the handler takes.
                let begun = crate::time::now();
                while handled() == before && crate::time::now() - begun < 1_000_000 {
                    core::hint::spin_loop();
                }
                let took = crate::time::now() - begun;
                crate::time::spin(2 * took + 20_000 + (n * 7_919) % 50_000);
            }
        },
    };
    let task = sched::spawn(&SENDER, 0).expect("a place");
    let fine = f();
    DONE.store(true, Ordering::Relaxed);
    let finished = sched::join(task) == Cause::Finished;
    let nmis = CPUS.iter().map(|cpu| cpu.nmis.load(Ordering::Relaxed));
    fine && finished && nmis.sum::<usize>() > 0
}

/// Walks from NMIs to all CPUs while they work.
fn nmi(options: &Options) -> bool {
    let fine = beside_nmis(|| crate::work::run(options));
    println!("latest NMI\n{}", backtrace::NMI.get());
    fine & walks_were_whole()
}

/// Every walk from an NMI got through to where its task began.
fn walks_were_whole() -> bool {
    let walks = walks::WALKS.load(Ordering::Relaxed);
    let broken = walks::BROKEN.load(Ordering::Relaxed);
    println!("walks from NMIs: {walks}, broken {broken}");
    if broken != 0 {
        println!(
            "the first ended at {}",
            At(walks::END.load(Ordering::Relaxed))
        );
    }
    walks > 10 && broken == 0
}

/// Stops the other CPUs, over and over, while they work.
fn stop(options: &Options) -> bool {
    static STOPPER: Program = Program {
        name: "stopper",
        run: |count| {
            for _ in 0..count {
                let ticks = || {
                    CPUS.iter()
                        .map(|cpu| cpu.timer_ticks.load(Ordering::Relaxed))
                };
                stop::with_other_cpus_stopped(|| {
                    let before: usize = ticks().sum();
                    crate::time::spin(10_000);
                    assert!(ticks().sum::<usize>() == before, "a stopped CPU went on");
                });
                crate::time::spin(20_000);
            }
        },
    };
    let tasks = [(); 2].map(|()| sched::spawn(&STOPPER, 300).expect("a place"));
    let fine = crate::work::run(options);
    fine & tasks
        .map(sched::join)
        .iter()
        .all(|&cause| cause == Cause::Finished)
}

/// Grace periods end, beside a workload that never sleeps for long.
fn grace(options: &Options) -> bool {
    static WAITER: Program = Program {
        name: "waiter",
        run: |count| (0..count).for_each(|_| sched::grace_period()),
    };
    let task = sched::spawn(&WAITER, 40).expect("a place");
    let fine = crate::work::run(options);
    fine & (sched::join(task) == Cause::Finished)
}

/// Runs into a handler with the interrupt ABI.
fn breakpoint(_: &Options) -> bool {
    nest(3, &arch::breakpoint);
    trap::BREAKPOINTS.load(Ordering::Relaxed) == 1
}
