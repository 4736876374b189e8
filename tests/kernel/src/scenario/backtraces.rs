//! Backtraces, untraced and traced: the same, from wherever they start.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::{UNMAPPED, nest};
use crate::arch::{self, TrapFrame};
use crate::backtrace::{self, Backtrace, Walk};
use crate::options::Options;
use crate::sync::SpinLock;
use crate::task::{Cause, Program};
use crate::trace::{self, balance::Balance};
use crate::{println, sched, stop, symbols, trap};

const DEPTH: usize = 6;
/// Calls that are stepped through, but one.
const STEP_DEPTH: usize = 3;
const KINDS: [&str; 4] = ["task", "interrupt", "NMI", "page fault"];

static COUNTED: Balance = Balance::new();

/// From a task, from inside an interrupt, an NMI and a page fault that hit
/// traced code.
pub(super) fn equal(options: &Options) -> bool {
    static SENDER: Program = Program {
        name: "nmi-sender",
        run: send_nmis,
    };
    let sender = sched::spawn(&SENDER, 0).expect("a place");
    let untraced = taken();
    trace::begin(options);
    let id = trace::follow(&COUNTED, "*");
    let traced = taken();
    trace::unfollow(id);
    DONE.store(true, Ordering::Relaxed);
    let mut fine = sched::join(sender) == Cause::Finished;

    for ((kind, untraced), traced) in KINDS.iter().zip(untraced).zip(traced) {
        // The interrupted instruction may be another one.
        let skip = usize::from(*kind != "task");
        let same = untraced.addresses()[skip..] == traced.addresses()[skip..];
        let deep = super::depth_of(&traced) == DEPTH + 1;
        println!("backtrace from {kind}, untraced:\n{untraced}");
        println!("backtrace from {kind}, traced:\n{traced}");
        println!("backtraces from {kind}: equal {same}, whole {deep}");
        fine &= same && deep;
    }
    fine & balanced(&COUNTED)
}

fn balanced(accounts: &'static Balance) -> bool {
    let fine = trace::is_balanced(&[accounts]) && accounts.counts().entries != 0;
    println!("counted: {}, balanced {fine}", accounts.counts());
    fine
}

/// What a task of its own takes, so that there is no caller whose return
/// address differs.
fn taken() -> [Backtrace; 4] {
    static TAKEN: SpinLock<Option<[Backtrace; 4]>> = SpinLock::new(None);
    static TAKER: Program = Program {
        name: "taker",
        run: |_| {
            let taken = take();
            *TAKEN.lock() = Some(taken);
        },
    };
    let taker = sched::spawn(&TAKER, 0).expect("a place");
    let _ = sched::join(taker);
    TAKEN.lock().take().expect("the task has finished")
}

/// One backtrace of each kind.
#[inline(never)]
fn take() -> [Backtrace; 4] {
    let mut task = None;
    super::nest_mut(DEPTH, &mut || task = Some(Backtrace::here()));
    nest(DEPTH, &|| spin_for(&WANT_TICK));
    nest(DEPTH, &|| {
        // Not to be moved to another CPU, which is to send it.
        let on = arch::interrupts_off();
        TARGET.store(arch::cpu_number(), Ordering::Relaxed);
        spin_for(&WANT_NMI);
        arch::interrupts_restore(on);
    });
    nest(DEPTH, &|| {
        let _ = core::hint::black_box(trap::probe(UNMAPPED));
    });
    [
        task.expect("the innermost call ran"),
        backtrace::TICK.get(),
        backtrace::NMI.get(),
        backtrace::PROBED.get(),
    ]
}

static WANT_TICK: AtomicBool = AtomicBool::new(false);
static WANT_NMI: AtomicBool = AtomicBool::new(false);
static TARGET: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicBool = AtomicBool::new(false);

/// Is interrupted here, until the handler is content.
#[inline(never)]
fn spin_for(wanted: &AtomicBool) {
    wanted.store(true, Ordering::Release);
    while wanted.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
}

/// Whether `frame` is of what spins for `wanted`; it need not any more.
fn is_wanted(wanted: &AtomicBool, frame: &TrapFrame) -> bool {
    let start = spin_for as *const () as usize;
    wanted.load(Ordering::Acquire)
        && symbols::find(frame.pc()).is_some_and(|symbol| symbol.start == start)
}

/// Each timer interrupt comes by here.
pub(crate) fn tick(frame: &TrapFrame) {
    if is_wanted(&WANT_TICK, frame) {
        backtrace::TICK.capture(frame);
        WANT_TICK.store(false, Ordering::Release);
    }
}

/// Each NMI with a handler.
pub(crate) fn nmi(frame: &TrapFrame) {
    if is_wanted(&WANT_NMI, frame) {
        backtrace::NMI.capture(frame);
        WANT_NMI.store(false, Ordering::Release);
    }
}

fn send_nmis(_: usize) {
    while !DONE.load(Ordering::Relaxed) {
        if WANT_NMI.load(Ordering::Acquire) {
            stop::send_nmi(TARGET.load(Ordering::Relaxed));
        }
        sched::sleep(100_000);
    }
}

/// After each instruction of traced calls and of the tracer, a handler that is
/// traced itself walks the stack. The callers that it meets must be those of
/// the untraced run, in the same order.
pub(super) fn step(options: &Options) -> bool {
    let untraced = stepped();
    trace::begin(options);
    let id = trace::follow(&COUNTED, "*");
    let traced = stepped();
    trace::unfollow(id);
    println!("stepped untraced: {untraced:x?}");
    println!("stepped traced: {traced:x?}");
    let same = untraced.chains == traced.chains && untraced.sum == traced.sum;
    println!("chains at each instruction: equal {same}");
    let whole = untraced.gaps == 0 && traced.gaps == 0;
    same && whole
        && untraced.chains > 2 * STEP_DEPTH
        && traced.instructions > 10 * untraced.instructions
        && balanced(&COUNTED)
}

/// What stepping through saw.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "some are only printed")]
struct Stepped {
    instructions: usize,
    /// How often the chain of callers changed.
    chains: usize,
    /// All of them, as one number.
    sum: u64,
    /// How often the outermost of the stepped calls was not among the callers
    /// of what it calls.
    gaps: usize,
}

static INSTRUCTIONS: AtomicUsize = AtomicUsize::new(0);
static CHAINS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);
static GAPS: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
fn stepped() -> Stepped {
    for count in [&INSTRUCTIONS, &CHAINS, &GAPS] {
        count.store(0, Ordering::Relaxed);
    }
    LAST.store(0, Ordering::Relaxed);
    SUM.store(0, Ordering::Relaxed);
    // The timer's interrupts would be steps too.
    let on = arch::interrupts_off();
    arch::step_through(section);
    arch::interrupts_restore(on);
    Stepped {
        instructions: INSTRUCTIONS.load(Ordering::Relaxed),
        chains: CHAINS.load(Ordering::Relaxed),
        sum: SUM.load(Ordering::Relaxed),
        gaps: GAPS.load(Ordering::Relaxed),
    }
}

/// What is stepped through.
extern "C" fn section() {
    nest(STEP_DEPTH, &|| ());
    for n in 0..2 {
        core::hint::black_box(early(n));
    }
}

/// Could return before it has a frame.
#[inline(never)]
fn early(n: usize) -> usize {
    if n == 0 {
        return 1;
    }
    core::hint::black_box(nest(0, &|| ())) + 1
}

/// After each instruction that is stepped through.
pub(crate) fn stepped_to(frame: &TrapFrame) {
    trap::STEPS.fetch_add(1, Ordering::Relaxed);
    let start = |address| symbols::find(address).map(|symbol| symbol.start);
    let section = section as *const () as usize;
    let called = [nest as *const () as usize, early as *const () as usize];
    if start(frame.pc()).is_some_and(|start| called.contains(&start))
        && !Walk::interrupted(frame).any(|address| start(address) == Some(section))
    {
        GAPS.fetch_add(1, Ordering::Relaxed);
    }
    let ours = [nest as *const () as usize, section];
    let chain = Walk::interrupted(frame)
        .filter(|&address| {
            symbols::find(address).is_some_and(|symbol| ours.contains(&symbol.start))
        })
        .fold(1, |sum, address| crate::fs::mix(sum, address as u64));
    INSTRUCTIONS.fetch_add(1, Ordering::Relaxed);
    if LAST.swap(chain, Ordering::Relaxed) != chain {
        CHAINS.fetch_add(1, Ordering::Relaxed);
        let sum = SUM.load(Ordering::Relaxed);
        SUM.store(crate::fs::mix(sum, chain), Ordering::Relaxed);
    }
}
