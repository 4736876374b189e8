//! A function graph tracer for kernels: every entry **and every return** of the
//! functions that are traced, handed to up to 16 callbacks, over a *shadow
//! stack* of plain words that belongs to the running task.
//!
//! A kernel links it in, implements [`Platform`], puts a [`RetStack`] into its
//! task struct, makes one [`Fgraph`] a `static`, and registers callbacks: a
//! tracer of [`tracer`], or its own [`Callback`]. Calls are caught by a
//! [`hook`]. The README has a complete example, and how to begin.
//!
//! # Architecture
//!
//! ```text
//!  arch, hook      catch a call; know registers and code
//!    │                Call { func, ret, slot }          return address
//!    ▼                                                       ▲
//!  fgraph          enter: who wants it?            leave: who wanted it?
//!    │                one bit a callback, data words         ▲
//!    ▼                                                       │
//!  ret_stack       push ──────────▶ the task's words ──────▶ pop
//!
//!  tracer          callbacks; know calls, neither words nor registers
//! ```
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
//!    call goes on. Nothing panics.
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

#[macro_use]
mod example;

mod arch;
pub mod fgraph;
pub mod hook;
pub mod platform;
pub mod ret_stack;
mod sync;
pub mod tracer;

pub use fgraph::{Callback, CallbackId, Cause, Entry, Exit, Fgraph, FrameData};
pub use platform::{Context, Platform};
pub use ret_stack::RetStack;

/// The README's own kernel, compiled.
#[cfg(all(doctest, target_arch = "x86_64"))]
#[doc = include_str!("../README.md")]
struct Readme;
