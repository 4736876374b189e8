//! What the examples of the documentation stand on, and hide: a kernel of one
//! CPU and one task, calls that it made, a trace that tells them.
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
