//! A function graph tracer for kernels: every entry **and every return** of the
//! functions that are traced, handed to up to 16 callbacks, over a *shadow
//! stack* of plain words that belongs to the running task.
//!
//! A kernel links it in, implements [`Platform`], puts a [`RetStack`] into its
//! task struct, makes one [`Fgraph`] a `static`, and registers callbacks: a
//! tracer of [`tracer`], or its own [`Callback`]. Calls are caught by a
//! [`hook`]. Nothing is allocated: all memory is the kernel's, and it chooses how
//! much.
//!
//! # Example
//!
//! A kernel of one CPU and one task, whose functions say by a scope that they
//! are called. Those that the compiler prepared need no scope: see
//! [`hook::patch`].
//!
//! ```
//! use fgraph::tracer::{
//!     Buffer, Cursor, Full, Graph, Open, Print, Record, Scale, Symbol, Symbols, Trace,
//! };
//! use fgraph::{Fgraph, Platform, RetStack};
//!
//! static SHADOW: RetStack = RetStack::new();
//!
//! /// What the crate must know of a kernel.
//! struct Kernel;
//!
//! // SAFETY: there is one task on one CPU, and `SHADOW` is its shadow stack.
//! unsafe impl Platform for Kernel {
//!     fn current<R>(f: impl FnOnce(&RetStack) -> R) -> Option<R> {
//!         Some(f(&SHADOW))
//!     }
//!     fn clock() -> u64 {
//!         // A microsecond passes between two readings, here.
//! #       static CLOCK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
//! #       let my_nanoseconds = || CLOCK.fetch_add(1000, std::sync::atomic::Ordering::Relaxed);
//!         my_nanoseconds()
//!     }
//! }
//!
//! /// The tracer, a callback that records, and the memory that it records to.
//! static FGRAPH: Fgraph<Kernel> = Fgraph::new();
//! static GRAPH: Graph<Kernel> = Graph::new(&BUFFERS);
//! static BUFFERS: [Buffer; 1] = [Buffer::new(&RECORDS, Full::Overwrite)];
//! static RECORDS: [Record; 1024] = [const { Record::new() }; 1024];
//!
//! fn read() {
//!     let _scope = FGRAPH.scope(read as fn() as usize, 0);
//!     check();
//! }
//!
//! fn check() {
//!     let _scope = FGRAPH.scope(check as fn() as usize, 0);
//! #   std::hint::black_box(&_scope);
//! }
//!
//! /// The names of functions, as a symbol table has them.
//! struct Names;
//!
//! impl Symbols for Names {
//!     fn symbol(&self, address: usize) -> Option<Symbol<'_>> {
//!         let functions = [(read as fn() as usize, "read"), (check as fn() as usize, "check")];
//!         let (start, name) = functions.into_iter().find(|&(start, _)| start == address)?;
//!         Some(Symbol { name, start })
//!     }
//! }
//!
//! // Words for the shadow stack, and where the task's real stack lies.
//! let words = Box::leak(Box::new([0; 512]));
//! # let here = &raw const words as usize;
//! # let my_stack = here - 0x1000..here + 0x1000;
//! SHADOW.attach(words, my_stack)?;
//!
//! let id = FGRAPH.register(&GRAPH)?;
//! read();
//! FGRAPH.unregister(id)?;
//!
//! // One cursor a buffer, and room for calls that are under way at once.
//! let (mut cursors, mut open) = ([Cursor::new()], [Open::new(); 64]);
//! let mut trace = Trace::whole(&BUFFERS, Scale::NANOSECONDS, &mut cursors, &mut open)?;
//! let mut text = String::new(); // Or a serial port: any `core::fmt::Write`.
//! Print::new(&Names).trace(&mut text, &mut trace)?;
//!
//! let (_heading, calls) = text.split_once('\n').unwrap();
//! assert_eq!(
//!     calls,
//! " 0)               |  read() {
//!  0)   1.000 us    |    check();
//!  0)   3.000 us    |  }
//! ");
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Where to find
//!
//! | what | where |
//! | --- | --- |
//! | what a kernel must supply | [`Platform`]; all but two functions have defaults |
//! | how large a shadow stack has to be | [`ret_stack::words_for`] |
//! | one whose words are in the task struct too | [`ret_stack::InlineStack`] |
//! | tracing without a word in the source | [`hook::patch`], or `hook::classic` on x86-64 |
//! | a graph of calls, a flame graph, a file for Perfetto | [`tracer::Graph`] records, [`tracer::Trace`] reads |
//! | how often functions run, and how long | [`tracer::Profile`] |
//! | some calls only | [`tracer::filter`] |
//! | the slowest call, the deepest stack, the moment of a bug | [`tracer::trigger`] |
//! | one's own callback | [`Callback`] |
//! | what a scheduler tells | [`Fgraph::switch`], [`Fgraph::exit_task`] |
//! | what an unwinder or a panic asks | [`Fgraph::real_return`], [`Fgraph::restore`] |
//! | a kernel's whole code, and what it means if nothing comes out | the README |
//! | what was lost | counters: [`RetStack::counters`], [`Fgraph::missed`], and each tracer's |
//!
//! Each function says who may call it. Where it does not, anybody may: in any
//! context, on any CPU, while calls are traced.
//!
//! # Words used
//!
//! | word | what it is |
//! | --- | --- |
//! | scope | code that tells by itself when it begins and ends: [`Fgraph::scope`] |
//! | callback slot | one of the up to 16 places for callbacks in an [`Fgraph`] |
//! | return slot | the word of the real stack by which a call is known: on x86-64, the one with its return address |
//! | shadow stack | a task's words beside its real stack: a [`RetStack`] |
//! | frame | the words of a call that has begun and not ended, callbacks' data included |
//! | near, wide | a frame that tells addresses by offsets, in a window of 4 GiB, or whole |
//! | epoch | the number of the newest registration when a call began |
//! | context | a task, or what interrupts it: a [`Context`] |
//! | tick | the unit of [`Platform::clock`]; a [`Scale`](tracer::Scale) tells how long it is |
//!
//! # Architecture
//!
//! A call's way through the code, entry to the left and return to the right:
//!
//! ```text
//!  a traced function's entry                         its caller goes on
//!    │ jump                                                  ▲ return
//!  ┌─▼───────────────────────────────────────────────────────┴──────┐
//!  │ arch, hook      the stub saves registers, calls the body       │
//!  └─┬───────────────────────────────────────────────────────▲──────┘
//!    │ Call { func, ret, slot }                              │ ret
//!  ┌─▼───────────────────────────────────────────────────────┴──────┐
//!  │ fgraph          enter: who wants it?    leave: who wanted it?  │
//!  └─┬────────────┬──────────────────────────────▲───────────▲──────┘
//!    │ push       │ Entry                   Exit │           │ pop
//!  ┌─▼──────────┐ │  ┌───────────────────────────┴────┐ ┌────┴──────┐
//!  │ ret_stack  │ └─▶│ tracer, or a kernel's callback │ │ ret_stack │
//!  └────────────┘    └────────────────────────────────┘ └───────────┘
//! ```
//!
//! | module | owns | does not know |
//! | --- | --- | --- |
//! | [`platform`] | what is asked of a kernel | what it is asked for |
//! | [`hook`], `arch` | code, registers, return slots | words, callbacks |
//! | [`fgraph`] | entering and leaving; slots and epochs | bits, registers |
//! | [`ret_stack`] | the words of one task; `word` in it their bits | callbacks, platform, architecture |
//! | [`tracer`] | callbacks that are ready to use | words, slots, architecture |
//! | `bits`, `sync` | fields of words; atomics, real or a model checker's | their users |
//!
//! A frame on the shadow stack, of which `word` in `ret_stack` owns the bits,
//! with two callbacks that want the return, the second of which keeps a word:
//!
//! ```text
//!            ┌────────────────────────────────────────────┐
//!  frame     │ func, ret: 32 bits each, in a code window  │
//!            │ near │ callbacks │ epoch │ return slot     │ ◀─┐
//!            ├────────────────────────────────────────────┤   │
//!  data      │ a callback's word                          │   │
//!            │ data │ words: 1 │ callback │ distance: 2   │ ──┘
//!            └────────────────────────────────────────────┘ ◀─ top
//! ```
//!
//! The newest word always tells how to find the start of its frame, so a stack
//! is popped and walked from the top, and a callback that takes no part in a
//! call costs its frame nothing.
//!
//! One return address, followed: a traced function's entry jumps to the stub
//! of [`hook::patch`], which hands slot and function to [`Fgraph::enter`].
//! That pushes a frame with the address, asks the callbacks, and says yes. The
//! stub drops the address from the real stack and calls the body, so that the
//! body returns to the stub: it hands the slot to [`Fgraph::leave`], which finds
//! the frame by its slot, writes the address back into it, calls the callbacks
//! in reverse, and pops. The stub returns to the caller.
//!
//! # Rules
//!
//! 1. *Balanced*: an entry that a callback accepted is followed by one exit to
//!    that callback with its data and the [cause](Cause), unless the callback
//!    was unregistered first.
//! 2. *Nobody else's frames*: a slot's next owner gets none of the former
//!    owner's returns. Each frame holds the epoch at its entry.
//! 3. *Nesting*: entries run in slot order, returns in reverse.
//! 4. *Interruptible anywhere*: an interrupt or NMI may come at any instruction,
//!    trace, and walk the same stack. Any CPU may read it.
//! 5. *No lock, no shared write* where calls are traced.
//! 6. *Nothing is lost in silence*: what could not be traced is counted, and the
//!    call goes on; a task without words is not traced. Nothing panics.
//! 7. *The tracer does not trace itself*: each context is guarded by itself.
//! 8. *A walker gets the truth*: [`Fgraph::real_return`] knows every replaced
//!    return address.

#![no_std]
#![deny(missing_docs, unreachable_pub)]
// What the hook for patched entries alone uses, where there is none.
#![cfg_attr(
    not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64"
    )),
    allow(dead_code, unused_imports)
)]

// A target without compare-and-swap gets this error, and not hundreds of what
// follows from it.
#[cfg(not(target_has_atomic = "ptr"))]
compile_error!(
    "fgraph needs atomic compare-and-swap, which this target's instruction set does not have"
);
#[cfg(not(any(target_pointer_width = "32", target_pointer_width = "64")))]
compile_error!("fgraph packs words of 32 or 64 bits, and this target's pointers have others");

#[cfg(target_has_atomic = "ptr")]
#[macro_use]
mod example;

#[cfg(target_has_atomic = "ptr")]
mod arch;
#[cfg(target_has_atomic = "ptr")]
mod bits;
#[cfg(target_has_atomic = "ptr")]
pub mod fgraph;
#[cfg(target_has_atomic = "ptr")]
pub mod hook;
#[cfg(target_has_atomic = "ptr")]
pub mod platform;
#[cfg(target_has_atomic = "ptr")]
pub mod ret_stack;
#[cfg(target_has_atomic = "ptr")]
mod sync;
#[cfg(target_has_atomic = "ptr")]
pub mod tracer;

#[cfg(target_has_atomic = "ptr")]
pub use {
    fgraph::{Callback, CallbackId, Cause, Entry, Exit, Fgraph, FrameData},
    platform::{Context, Platform},
    ret_stack::RetStack,
};

/// The README's own kernel, compiled.
#[cfg(all(doctest, target_arch = "x86_64"))]
#[doc = include_str!("../README.md")]
struct Readme;
