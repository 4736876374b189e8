//! What several test files share.
#![allow(dead_code, reason = "none uses all of it")]

pub mod own;
