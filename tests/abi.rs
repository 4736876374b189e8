//! What a call may carry, through traced functions: every kind of argument and
//! result, and every register.
//!
//! All is compared with what is written here or with the untraced call, while
//! callbacks change every register that a function may change.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![feature(c_variadic, explicit_tail_calls)]
#![expect(
    incomplete_features,
    reason = "`become` says that a call is a tail call"
)]

#[path = "abi/callbacks.rs"]
mod callbacks;
#[path = "common/host.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod host;
#[path = "abi/registers.rs"]
mod registers;
#[path = "abi/values.rs"]
mod values;
