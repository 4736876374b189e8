//! What a kernel uses of the crate: shadow stacks, dispatch, scope guards,
//! tracers, the hooks where the target has them, and elsewhere `Fgraph::enter`
//! and `Fgraph::leave` behind an entry hook of its own. Built for other targets,
//! where it is compiled and not run.
//!
//! Functions here are not generic, so that all which is generic in the crate
//! is compiled to machine code with them.
#![no_std]

use core::fmt::{self, Write};
use core::ops::Range;
use core::pin::Pin;

use fgraph::fgraph::Call;
use fgraph::ret_stack::{InlineStack, words_for};
use fgraph::tracer::filter::{Contexts, Depth, Filtered, MinDuration, OnlyBelow, Predicate};
use fgraph::tracer::profile::{Order, Row, Summary};
use fgraph::tracer::trigger::{Counts, Deepest, MaxLatency, Measure, StackWatch, Tally, Tree};
use fgraph::tracer::{
    Buffer, ByteSink, Cursor, Full, Graph, Open, Print, Profile, Record, Recorded, Scale, Symbols,
    Trace, folded, fxt, json,
};
use fgraph::{CallbackId, Context, Fgraph, Platform, RetStack};

static STACK: InlineStack<{ words_for(50, &[1]) }> = InlineStack::new();

/// The kernel: one CPU, one task.
pub struct Kernel;

// SAFETY: there is one task on one CPU, and its stack is `STACK`.
unsafe impl Platform for Kernel {
    fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
        Some(f(STACK.control()))
    }

    fn clock() -> u64 {
        0
    }

    fn context() -> Context {
        Context::Task
    }
}

pub static FGRAPH: Fgraph<Kernel> = Fgraph::new();

static RECORDS: [Record; 64] = [const { Record::new() }; 64];
static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
static GRAPH: Graph<Kernel> = Graph::new(&BUFFERS)
    .max_depth(20)
    .arguments(2)
    .recorded(Recorded::RETURN_VALUE);

type Slow = MinDuration<Kernel, Depth<Filtered<Profile<Kernel>, Contexts>>>;

static ROWS: [Row; 64] = [const { Row::new() }; 64];
static PROFILE: OnlyBelow<Slow, Predicate> = OnlyBelow::new(
    MinDuration::new(
        Depth::new(Filtered::new(Profile::new(&ROWS), Contexts::TASK), 3),
        100,
    ),
    Predicate(|func| func == 0x2000),
);

static TREES: [Tree<16>; 3] = [const { Tree::new() }; 3];
static WORST: MaxLatency<Kernel, Predicate, 16> =
    MaxLatency::new(&TREES, Predicate(|func| func == 0x2000), Measure::Slowest);

static PLACES: [Deepest; 4] = [const { Deepest::new() }; 4];
static WATCH: StackWatch<Kernel> = StackWatch::new(&PLACES);

static TALLIES: [Tally; 64] = [const { Tally::new() }; 64];
static COUNTS: Counts = Counts::new(&TALLIES);

/// Begins to trace the task whose real stack is at `stack`.
pub fn start(stack: Range<usize>) -> Option<[CallbackId; 5]> {
    Pin::static_ref(&STACK).attach(stack).ok()?;
    Some([
        FGRAPH.register(&GRAPH).ok()?,
        FGRAPH.register(&PROFILE).ok()?,
        FGRAPH.register(&WORST).ok()?,
        FGRAPH.register(&WATCH).ok()?,
        FGRAPH.register(&COUNTS).ok()?,
    ])
}

/// Ends that.
pub fn stop(callbacks: [CallbackId; 5]) {
    for callback in callbacks {
        let _ = FGRAPH.unregister(callback);
    }
    FGRAPH.switch(Some(STACK.control()), None);
    // SAFETY: there is one CPU, and no call is under way that will return.
    let _ = unsafe { FGRAPH.exit_task(STACK.control()) };
}

/// A scope.
pub fn scoped(func: usize) {
    let _scope = FGRAPH.scope(func, 0);
}

/// What an entry hook of the kernel's own calls for a call on `slot`.
///
/// # Safety
///
/// That of [`Fgraph::enter`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn entered(func: usize, ret: usize, slot: usize) -> bool {
    let call = Call {
        func,
        ret,
        slot,
        tail: false,
        registers: None,
    };
    // SAFETY: the caller's.
    unsafe { FGRAPH.enter(&call, 1) }
}

/// What that hook calls at the return.
///
/// # Safety
///
/// That of [`Fgraph::leave`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn returned(slot: usize) -> usize {
    // SAFETY: the caller's.
    unsafe { FGRAPH.leave(slot, None) }.unwrap_or(0)
}

/// The kernel's console.
pub struct Console(pub fn(&[u8]));

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0(text.as_bytes());
        Ok(())
    }
}

impl ByteSink for Console {
    type Error = fmt::Error;

    fn write(&mut self, bytes: &[u8]) -> fmt::Result {
        self.0(bytes);
        Ok(())
    }
}

/// Prints what was recorded in one of four formats.
pub fn print(out: &mut Console, symbols: &dyn Symbols, format: u8) -> fmt::Result {
    let mut cursors = [const { Cursor::new() }; 1];
    let mut open = [const { Open::new() }; 64];
    let trace = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open);
    let mut trace = trace.map_err(|_| fmt::Error)?;
    match format {
        0 => Print::new(symbols).trace(out, &mut trace),
        1 => json(out, &mut trace, symbols),
        2 => folded(out, &mut trace, symbols).map(drop),
        _ => fxt(out, &mut trace, symbols),
    }
}

/// Prints what the other tracers found.
pub fn report(out: &mut Console, symbols: &dyn Symbols) -> fmt::Result {
    let profile = PROFILE.callback().callback().callback().callback();
    let mut scratch = [Summary::default(); 16];
    let report = profile.report(Order::Total, &mut scratch);
    write!(out, "{}", report.symbols(symbols))?;
    if let Some(tree) = WORST.worst() {
        write!(out, "{}", tree.display(symbols, Scale::NANOSECONDS))?;
    }
    for deepest in WATCH.iter() {
        write!(out, "{}", deepest.display(symbols))?;
    }
    for (func, hits) in COUNTS.iter() {
        writeln!(out, "{func:#x} {hits}")?;
    }
    Ok(())
}

/// Walks the task, as its panic handler would, and puts its addresses back.
pub fn backtrace(out: &mut Console) -> fmt::Result {
    let stack = STACK.control();
    for frame in stack.frames() {
        let ret = FGRAPH.real_return(stack, frame.slot, frame.ret);
        writeln!(out, "{:#x} from {ret:#x}", frame.func)?;
    }
    // SAFETY: the task runs on the one stack that it has.
    let ended = unsafe { FGRAPH.restore() };
    writeln!(out, "{ended} {:?}", stack.counters())
}

/// The hooks, where the target has them: their stubs are assembled for it.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
))]
pub mod hooked {
    use fgraph::hook::Global;
    use fgraph::hook::patch::{Functions, Patch, PatchError, PatchText};

    use super::{CallbackId, FGRAPH, Fgraph, Kernel};

    pub static PATCH: Patch<Kernel> = Patch::new();

    impl Global for Kernel {
        fn fgraph() -> &'static Fgraph<Self> {
            &FGRAPH
        }
    }

    // SAFETY: the one CPU runs this, and text is writable.
    unsafe impl PatchText for Kernel {
        fn patch_text<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
    }

    /// Once, before anything is followed.
    pub fn init() -> Result<Functions, PatchError> {
        // SAFETY: this image's own table.
        unsafe { PATCH.init(fgraph::patchable_functions!()) }
    }

    /// Follows every function, or no longer does.
    pub fn follow(callback: CallbackId, on: bool) -> Result<usize, PatchError> {
        if on {
            PATCH.enable(callback, |_| true)
        } else {
            PATCH.disable(callback, |_| true)
        }
    }

    #[cfg(target_arch = "x86_64")]
    fgraph::bind_fentry!(Kernel);
    #[cfg(target_arch = "x86_64")]
    fgraph::bind_mcount!(Kernel);
    #[cfg(target_arch = "x86_64")]
    fgraph::bind_sancov!(Kernel);
}

#[cfg(feature = "patchable_functions")]
pub fn patchable() -> &'static [usize] {
    fgraph::patchable_functions!()
}
#[cfg(feature = "fentry")]
fgraph::bind_fentry!(Kernel);
#[cfg(feature = "mcount")]
fgraph::bind_mcount!(Kernel, 16);
#[cfg(feature = "sancov")]
fgraph::bind_sancov!(Kernel);
