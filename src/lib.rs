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
//! x
mod arch;
pub mod fgraph;
pub mod hook;
pub mod platform;
pub mod ret_stack;
mod sync;

pub use fgraph::{Callback, CallbackId, Cause, Entry, Exit, Fgraph, FrameData};
pub use platform::{Context, Platform};
pub use ret_stack::RetStack;
