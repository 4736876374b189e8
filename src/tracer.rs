//! Tracers: callbacks that are ready to use.
//!
//! A tracer knows calls as [`Entry`](crate::Entry) and [`Exit`](crate::Exit)
//! show them. It knows neither words nor slots nor the architecture, allocates
//! nothing, lives in memory that the kernel gives it, and is safe code.
//!
//! | callback | keeps | read by |
//! | --- | --- | --- |
//! | [`Graph`] | each call, with its times, in a [`Buffer`] a CPU | [`Trace`] |
//! | [`Profile`] | how often each function ran, and how long | [`Profile::report`] |
//! | [`trigger`]s | one moment: the slowest call, the deepest stack | themselves |
//!
//! [`filter`]s wrap any callback, these or a kernel's own.
//!
//! # From buffers to text
//!
//! A [`Trace`] merges all CPUs' buffers into one sequence of [`Event`]s, while
//! tracing goes on or afterwards, in memory that its caller gives: a
//! [`Cursor`] for each buffer and [`Open`]s for the calls under way. The events
//! are a kernel's to use, or one of these writes them:
//!
//! | writer | for |
//! | --- | --- |
//! | [`Print`] | people: the graph as text |
//! | [`folded()`] | flame graphs |
//! | [`json()`], [`fxt()`] | Perfetto and its kin, as text or as words |
//!
//! Times are ticks of the platform's clock until a [`Scale`] makes nanoseconds
//! of them; functions are addresses until [`Symbols`] name them.

#![forbid(unsafe_code)]

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
pub use graph::{Graph, GraphCounters, GraphFrame, LateFrame, LateGraph, Recorded};
pub use json::json;
pub use names::{Symbol, Symbols};
pub use print::{Print, Shown};
pub use profile::Profile;
pub use record::Record;
pub use scale::Scale;
pub use trace::{Call, End, Ending, Event, Open, Trace, TraceError};
