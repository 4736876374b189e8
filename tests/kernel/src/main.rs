//! A small kernel, made to trace itself: two CPUs, preemptive tasks with their
//! own stacks, a serial port. No heap, no user mode, no disk. On x86-64 and on
//! AArch64.
//!
//! Read it in this order: `main` here, [`task`] and [`sched`], [`sync`] and
//! [`pipe`], [`trap`], [`trace`]; then a processor's part in [`arch`]. What it
//! computes is [`work`], and what tests have it do, [`scenario`].
//!
//! `cargo run --release -- trace='*' depth=4` boots it in QEMU and ends with the
//! graph of its calls; for AArch64, `run` boots what
//! `--target aarch64-unknown-linux-gnu` has built. The words are its [command line](options); where the
//! tracer meets the kernel is [`trace`] alone.

#![no_std]
#![no_main]
#![cfg_attr(target_arch = "x86_64", feature(abi_x86_interrupt))]

mod arch;
mod backtrace;
mod console;
mod cpu;
mod fs;
mod options;
mod panic;
mod pipe;
mod scenario;
mod sched;
mod stop;
mod symbols;
mod sync;
mod task;
mod time;
mod trace;
mod trap;
mod work;

use arch::Boot;
use cpu::CPUS;
use options::{BadWord, Options};
use sync::SpinLock;
use task::Program;

/// Timer interrupts of each CPU in a second.
const TICK_HZ: u64 = 1000;

/// Exit codes; a panic's is 101.
const EXIT_FINE: u8 = 0;
const EXIT_WRONG: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// The main task.
static MAIN: Program = Program {
    name: "main",
    run: main_task,
};

/// The command line, from the boot to the main task.
static OPTIONS: SpinLock<Option<Result<Options, BadWord>>> = SpinLock::new(None);

/// The first CPU comes here from its boot code, once.
fn main(boot: &Boot) -> ! {
    // SAFETY: there is nothing else yet.
    unsafe { symbols::init(boot.module()) };
    *OPTIONS.lock() = Some(Options::parse(boot.command_line()));
    arch::init();
    arch::init_cpu();
    sched::begin_idle();
    arch::start_cpus();
    // Never joined: its end is the kernel's.
    let _ = sched::spawn(&MAIN, 0).expect("a place for the main task");
    sched::idle()
}

/// The other CPUs come here.
fn cpu_main() -> ! {
    arch::init_cpu();
    sched::begin_idle();
    sched::idle()
}

fn main_task(_: usize) {
    let options = OPTIONS.lock().take();
    let code = match options.expect("the command line was read") {
        Ok(options) => run(&options),
        Err(BadWord(word)) => {
            println!("no such option, or not so: {word}");
            EXIT_USAGE
        }
    };
    arch::exit(code);
}

/// Does what the command line asks for; returns the exit code.
fn run(options: &Options) -> u8 {
    let online = CPUS.iter().filter(|cpu| cpu.is_online()).count();
    println!("kernel: {online} CPUs, up after {} us", time::now() / 1000);

    trace::start(options);
    let fine = match options.test {
        None => Some(work::run(options)),
        Some(name) => scenario::run(name, options),
    };
    trace::stop();
    let balanced = trace::report(options);

    for (number, cpu) in CPUS.iter().enumerate() {
        println!("cpu {number}: {}", cpu.counts());
    }
    let verdict = match fine {
        Some(true) if balanced => ("fine", EXIT_FINE),
        Some(_) => ("wrong", EXIT_WRONG),
        None => ("no such test", EXIT_USAGE),
    };
    println!("done: {}, after {} ms", verdict.0, time::now() / 1_000_000);
    verdict.1
}
