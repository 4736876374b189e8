//! The architecture's part, one file an architecture.
//!
//! A file supplies, to [`hook::patch`](crate::hook::patch):
//!
//! | item | what |
//! | --- | --- |
//! | `Registers` | the saved registers, `argument(n)` and `return_value()` |
//! | `Stub<B, N>` | the addresses of the stubs for a bound tracer |
//! | `entry` | how a padding and an entry are read and written |
//!
//! Where there is none, the crate has scopes and everything that is above the
//! hooks; `hook::patch` is absent.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::Registers;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{entry, learn_stub, lost, stub, stub_return};

#[cfg(not(target_arch = "x86_64"))]
mod none;
#[cfg(not(target_arch = "x86_64"))]
pub use none::Registers;
