//! Traces a JSON library at work: functions that nobody annotated, in several
//! threads, with names from this program's own file.
//!
//! ```text
//! cargo run --release --example graph
//! cargo run --release --example graph -- --help
//! ```

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn main() {
    eprintln!("graph: this example traces patched entries, of x86-64 Linux programs");
    std::process::exit(1);
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "../common/host.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the tests and benches"
)]
mod host;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod elf;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod options;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod output;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod run;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod uftrace;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod work;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn main() -> std::process::ExitCode {
    run::main()
}
