//! `cargo fuzz run --fuzz-dir tests/fuzz words`
#![no_main]

#[path = "../inputs.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    inputs::words(input);
});
