//! Tracers: callbacks that are ready to use.
//!
//! A tracer knows calls as [`Entry`](crate::Entry) and [`Exit`](crate::Exit)
//! show them. It knows neither words nor slots nor the architecture, allocates
//! nothing, and lives in memory that the kernel gives it.
//!
//! [`filter`]s wrap any callback, these or a kernel's own.

mod buffer;
mod cursor;
pub mod filter;
mod folded;
mod fxt;
mod graph;
mod json;
mod names;
mod print;
pub mod profile;
mod record;
mod scale;
mod table;
mod trace;
pub mod trigger;

pub use buffer::{Buffer, Full};
pub use cursor::{Arguments, Cursor};
pub use folded::{Folded, folded};
pub use fxt::{ByteSink, fxt};
pub use graph::{Graph, GraphCounters, GraphFrame, Recorded};
pub use json::json;
pub use names::{Symbol, Symbols};
pub use print::{Print, Shown};
pub use profile::Profile;
pub use record::Record;
pub use scale::Scale;
pub use trace::{Call, End, Ending, Event, Open, Trace, TraceError};
