//! What the examples of the documentation stand on, and hide: a kernel of one
//! CPU and one task, calls that it made, what tracers have of them.
//!
//! Each is text, which the examples alone compile. A last line without `#` is
//! shown, and says what came before.

/// A kernel whose clock moves by a microsecond whenever it is read. `SLOTS` is
/// the real stack of its task.
macro_rules! example_kernel {
    () => {
        r"# use fgraph::Platform as _;
# static STACK: fgraph::RetStack = fgraph::RetStack::new();
# static CLOCK: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
# struct Kernel;
# // SAFETY: one CPU, one task.
# unsafe impl fgraph::Platform for Kernel {
#     fn current<R>(f: impl FnOnce(&fgraph::RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
#     fn clock() -> u64 { CLOCK.fetch_add(1000, core::sync::atomic::Ordering::Relaxed) }
#     fn task() -> usize { 7 }
# }
# static FGRAPH: fgraph::Fgraph<Kernel> = fgraph::Fgraph::new();
# static SLOTS: [core::sync::atomic::AtomicUsize; 64] =
#     [const { core::sync::atomic::AtomicUsize::new(0) }; 64];
# let real_stack = SLOTS.as_ptr_range().start as usize..SLOTS.as_ptr_range().end as usize;
# STACK.attach(Box::leak(Box::new([0; 256])), real_stack).unwrap();"
    };
}

/// That kernel, whose calls a callback follows.
macro_rules! example_traced {
    () => {
        concat!(
            example_kernel!(),
            r"
# static FOLLOW: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&[]);
# let id = FGRAPH.register(&FOLLOW).unwrap();
// `FOLLOW`, registered as `id`, follows all calls."
        )
    };
}

/// Buffers of that kernel's, in which a call of `read` is recorded, which took
/// three microseconds, and inside it one of `check`, which took one. `Names`
/// knows the two functions.
macro_rules! example_calls {
    () => {
        concat!(
            example_kernel!(),
            r#"
# static RECORDS: [fgraph::tracer::Record; 64] = [const { fgraph::tracer::Record::new() }; 64];
# static BUFFERS: [fgraph::tracer::Buffer; 1] =
#     [fgraph::tracer::Buffer::new(&RECORDS, fgraph::tracer::Full::Overwrite)];
# static GRAPH: fgraph::tracer::Graph<Kernel> = fgraph::tracer::Graph::new(&BUFFERS);
# FGRAPH.register(&GRAPH).unwrap();
# fn read() { std::hint::black_box(1); }
# fn check() { std::hint::black_box(2); }
# struct Names;
# impl fgraph::tracer::Symbols for Names {
#     fn symbol(&self, address: usize) -> Option<fgraph::tracer::Symbol<'_>> {
#         let functions = [(read as fn() as usize, "read"), (check as fn() as usize, "check")];
#         let (start, name) = functions.into_iter().find(|&(start, _)| start == address)?;
#         Some(fgraph::tracer::Symbol { name, start })
#     }
# }
# let outer = FGRAPH.scope(read as fn() as usize, 0);
# drop(FGRAPH.scope(check as fn() as usize, 0));
# drop(outer);
// Task 7 has called `read`, for 3 µs, and that `check`, for 1 µs."#
        )
    };
}

/// These calls, and a `trace` of them.
macro_rules! example_trace {
    () => {
        concat!(
            example_calls!(),
            r"
# let mut cursors = [fgraph::tracer::Cursor::new()];
# let mut open = [fgraph::tracer::Open::new(); 16];
# let scale = fgraph::tracer::Scale::NANOSECONDS;
# let mut trace =
#     fgraph::tracer::Trace::whole(&BUFFERS, scale, &mut cursors, &mut open).unwrap();"
        )
    };
}

/// That kernel with a profile, after four calls.
macro_rules! example_profile {
    () => {
        concat!(
            example_kernel!(),
            r"
# use fgraph::tracer::profile::{Order, Row, Summary};
# static ROWS: [Row; 64] = [const { Row::new() }; 64];
# static PROFILE: fgraph::tracer::Profile<Kernel> = fgraph::tracer::Profile::new(&ROWS);
# FGRAPH.register(&PROFILE).unwrap();
# drop(FGRAPH.scope(0x2000, 0));
# drop(FGRAPH.scope(0x2000, 0));
# let outer = FGRAPH.scope(0x1000, 0);
# drop(FGRAPH.scope(0x2000, 0));
# drop(outer);
// `PROFILE` has seen one call of 0x1000 and three of 0x2000, one of these in it."
        )
    };
}

/// That kernel, and the slowest call of 0x1000 so far in a tree.
macro_rules! example_worst {
    () => {
        concat!(
            example_kernel!(),
            r"
# use fgraph::tracer::filter::Predicate;
# use fgraph::tracer::trigger::{MaxLatency, Measure, Tree};
# static TREES: [Tree<16>; 3] = [const { Tree::new() }; 3];
# static WORST: MaxLatency<Kernel, Predicate, 16> =
#     MaxLatency::new(&TREES, Predicate::new(|func| func == 0x1000), Measure::Slowest);
# let id = FGRAPH.register(&WORST).unwrap();
# drop(FGRAPH.scope(0x1000, 0));
// `WORST`, registered as `id`, has seen a call of 0x1000: 1,000 ticks."
        )
    };
}

/// A kernel that watches its stack, after a call of 0x1000 with its return
/// address 24 words from the stack's end.
macro_rules! example_watch {
    () => {
        concat!(
            example_kernel!(),
            r"
# use fgraph::tracer::trigger::{Deepest, StackWatch};
# static PLACES: [Deepest; 16] = [const { Deepest::new() }; 16];
# static WATCH: StackWatch<Kernel> = StackWatch::new(&PLACES);
# let id = FGRAPH.register(&WATCH).unwrap();
# let slot = &raw const SLOTS[64 - 24] as usize;
# let (func, ret) = (0x1000, 0x2000);
# let call = fgraph::fgraph::Call { func, ret, slot, tail: false, registers: None };
# // SAFETY: the slot is a word of the example's, which may be written.
# unsafe { assert!(FGRAPH.enter(&call, usize::MAX)) };
# // SAFETY: as above; it was entered.
# assert_eq!(unsafe { FGRAPH.leave(slot, None) }, Some(ret));
// Task 7 has called 0x1000, 24 words deep in its stack of 64."
        )
    };
}

/// That kernel, and what a callback for it needs: a `Mine` that the example
/// makes one of, and `see`, which keeps what `seen` then tells.
macro_rules! example_callback {
    () => {
        concat!(
            example_kernel!(),
            r"
# use fgraph::{Callback, Entry, Exit};
# static SEEN: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
# fn see(value: usize) { SEEN.lock().unwrap().push(value) }
# fn seen() -> Vec<usize> { core::mem::take(&mut SEEN.lock().unwrap()) }
# struct Mine;
# static MINE: Mine = Mine;"
        )
    };
}

/// Such a callback that sees `$seen` of each call at both of its ends, and two
/// calls, the second inside the first.
macro_rules! example_seen {
    ($seen:literal) => {
        concat!(
            example_callback!(),
            r"
# impl Callback for Mine { type Frame = ();
fn entry(&self, call: Entry<'_, ()>) -> Option<()> {
    see(",
            $seen,
            r");
    Some(())
}
fn exit(&self, call: Exit<'_, ()>, (): ()) {
    see(",
            $seen,
            r");
}
# }
# FGRAPH.register(&MINE).unwrap();
let outer = FGRAPH.scope(0x1000, 0);
drop(FGRAPH.scope(0x2000, 0x1004));
drop(outer);"
        )
    };
}

/// Such a callback that keeps the function of each call, and sees it at the
/// end; with the call around it, it does `$does`. Two calls, as above.
macro_rules! example_parent {
    ($does:literal) => {
        concat!(
            example_callback!(),
            r"
# impl Callback for Mine { type Frame = usize;
fn entry(&self, call: Entry<'_, usize>) -> Option<usize> {
    if let Some(parent) = call.parent() {
        ",
            $does,
            r"
    }
    Some(call.func())
}
fn exit(&self, _: Exit<'_, usize>, data: usize) {
    see(data);
}
# }
# FGRAPH.register(&MINE).unwrap();
let outer = FGRAPH.scope(0x1000, 0);
drop(FGRAPH.scope(0x2000, 0x1004));
drop(outer);"
        )
    };
}

/// The part of another kernel's platform that an example is not about. The
/// example adds the rest, and a brace.
macro_rules! example_platform {
    () => {
        r"# use fgraph::{Context, Platform, RetStack};
# static STACK: RetStack = RetStack::new();
# struct Kernel;
# // SAFETY: one CPU, one task.
# unsafe impl Platform for Kernel {
# fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> { Some(f(&STACK)) }
# fn clock() -> u64 { 0 }"
    };
}

/// The first kernel with two functions, `read` and `check`, as the compiler makes
/// patchable ones: they return 1 and 2, and `run` calls them. `listed` has the
/// addresses that their section would list. `COUNTS` counts their calls.
#[allow(unused_macros, reason = "not every target has the hook")]
macro_rules! example_patch {
    () => {
        concat!(
            example_kernel!(),
            r#"
# use fgraph::hook::{Global, patch::{Functions, Patch, PatchError, PatchText}};
# impl Global for Kernel { fn fgraph() -> &'static fgraph::Fgraph<Self> { &FGRAPH } }
# // SAFETY: the functions' page is writable, and nothing runs beside it.
# unsafe impl PatchText for Kernel { fn patch_text<R>(f: impl FnOnce() -> R) -> R { f() } }
# static PATCH: Patch<Kernel> = Patch::new();
# static COUNTS: fgraph::tracer::trigger::Counts = fgraph::tracer::trigger::Counts::new(&[]);
# #[cfg(target_arch = "x86_64")]
# const PADDING: [u32; 4] = [0x9090_9090; 4];
# #[cfg(target_arch = "x86_64")]
# const CODE: [u32; 4] = [0x0084_1f0f, 0x0000_0200, 0x0000_00b8, 0xcccc_c300];
# #[cfg(target_arch = "x86_64")]
# const RESULT: u32 = 8;
# #[cfg(target_arch = "aarch64")]
# const PADDING: [u32; 8] = [0xd503_201f; 8];
# #[cfg(target_arch = "aarch64")]
# const CODE: [u32; 4] = [0xd503_201f, 0xd503_201f, 0x5280_0000, 0xd65f_03c0];
# #[cfg(target_arch = "aarch64")]
# const RESULT: u32 = 5;
# #[repr(C, align(4096))]
# struct Text([core::sync::atomic::AtomicU32; 1024]);
# static TEXT: Text = Text([const { core::sync::atomic::AtomicU32::new(0) }; 1024]);
# let page = (&raw const TEXT).cast_mut().cast();
# let how = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
# // SAFETY: the page is the example's own.
# assert_eq!(unsafe { libc::mprotect(page, 4096, how) }, 0);
# let [read, check] = [1, 2].map(|number: u32| {
#     let at = number as usize * 32;
#     let mut code = CODE;
#     code[2] |= number << RESULT;
#     for (i, word) in PADDING.into_iter().chain(code).enumerate() {
#         TEXT.0[at + i].store(word, core::sync::atomic::Ordering::Relaxed);
#     }
#     &raw const TEXT.0[at + PADDING.len()] as usize
# });
# let listed: &'static [usize] =
#     Box::leak(Box::new([read, check].map(|func| func - size_of_val(&PADDING))));
# // SAFETY: a function without arguments, of the code above.
# let run = |func: usize| unsafe {
#     core::mem::transmute::<usize, extern "C" fn() -> u32>(func)()
# };"#
        )
    };
}
