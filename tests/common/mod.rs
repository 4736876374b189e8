//! What several test files share.
#![allow(dead_code)]

pub mod own;
