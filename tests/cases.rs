//! Failures that real tracers had: one test each, named for the failure.
//!
//! Where control flow matters the calls are real ones, caught by patched
//! entries; elsewhere a made-up hook enters and leaves on words of its own.
#![cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux"
))]
#![cfg_attr(target_arch = "x86_64", feature(abi_x86_interrupt))]
#![feature(explicit_tail_calls)]
#![expect(
    incomplete_features,
    reason = "`become` says that a call is a tail call"
)]

#[macro_use]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/host.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests")]
mod host;

#[cfg(target_arch = "x86_64")]
#[path = "common/state.rs"]
mod state;

#[path = "cases/callbacks.rs"]
mod callbacks;
#[path = "cases/fixture.rs"]
mod fixture;
#[path = "cases/flow.rs"]
mod flow;
#[path = "cases/frames.rs"]
mod frames;
#[path = "cases/jumps.rs"]
mod jumps;
#[path = "cases/misbehaving.rs"]
mod misbehaving;
#[path = "cases/reading.rs"]
mod reading;
#[cfg(target_arch = "x86_64")]
#[path = "cases/registers.rs"]
mod registers;
#[cfg(target_arch = "x86_64")]
#[path = "cases/restored.rs"]
mod restored;
#[path = "cases/switches.rs"]
mod switches;
#[path = "cases/walking.rs"]
mod walking;
