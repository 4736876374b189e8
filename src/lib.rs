#![no_std]
#![deny(missing_docs, unreachable_pub)]
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
