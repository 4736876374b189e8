//! What the examples of the documentation stand on, and hide: a kernel of one
//! CPU and one task, calls that it made, a trace that tells them.
//!
//! Each is text. Nothing of it is compiled but by the examples.

/// A kernel whose clock moves by a microsecond whenever it is read.
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
# STACK.attach(Box::leak(Box::new([0; 256])), 0..0).unwrap();"
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
# drop(outer);"#
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
