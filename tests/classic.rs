//! Programs whose compilers' hooks trace them: C objects, all Rust code, and
//! all Rust code on stable flags alone. Each is built for itself, in debug and
//! in release builds, with the tracer instrumented like the rest; it checks
//! itself, and prints a graph.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

const TARGET: &str = "x86_64-unknown-linux-gnu";

const STABLE: &str = "-Cforce-frame-pointers=yes -Cpasses=sancov-module \
                      -Cllvm-args=-sanitizer-coverage-level=1 \
                      -Cllvm-args=-sanitizer-coverage-trace-pc";

/// Builds and runs the program for a hook; returns what it printed.
fn run(hook: &str, flags: &str, release: bool, unstable: bool) -> Option<String> {
    // Cargo would wait for its own lock anyway.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if hook != "sancov" && !has_c_compiler() {
        let required = std::env::var("FGRAPH_REQUIRE").unwrap_or_default();
        assert!(
            !required.split_whitespace().any(|tool| tool == "cc"),
            "no C compiler"
        );
        eprintln!("SKIPPED: no C compiler, so nothing is compiled with -pg");
        return None;
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/classic/Cargo.toml");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(hook);
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--locked", "--target", TARGET])
        .args(["--features", hook])
        .args(release.then_some("--release"))
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        // In place of the flags of this repository's own configuration.
        .env("RUSTFLAGS", flags)
        // -1: as a stable compiler, also where the configuration asks for more.
        .env("RUSTC_BOOTSTRAP", if unstable { "1" } else { "-1" })
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if hook == "sancov" {
        // Functions that are inlined when they have their calls already would
        // be seen, as tail calls of those that they are part of.
        cargo.env("CARGO_PROFILE_DEV_LTO", "off");
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off");
    }
    let built = cargo.output().expect("cargo runs");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{hook}: {errors}");
    let profile = if release { "release" } else { "debug" };
    let program = target.join(TARGET).join(profile).join("classic");
    let ran = Command::new(program).output().expect("the program runs");
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "{:?}\n{printed}\n{errors}",
        ran.status
    );
    println!("{printed}");
    Some(printed)
}

fn has_c_compiler() -> bool {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    Command::new(compiler).arg("--version").output().is_ok()
}

/// The calls of `top`, in Rust and in C.
const GRAPH: &str = "\
top() {
  middle() {
    leaf();
    leaf();
  } middle
  leaf();
} top
";

fn check(printed: Option<String>, graphs: usize) {
    if let Some(printed) = printed {
        assert_eq!(printed.matches(GRAPH).count(), graphs, "{printed}");
        assert!(printed.ends_with(" calls traced, all right\n"), "{printed}");
    }
}

#[test]
fn c_objects_with_fentry() {
    for release in [false, true] {
        check(run("fentry", "", release, false), 1);
    }
}

#[test]
fn rust_and_c_with_mcount() {
    for release in [false, true] {
        check(run("mcount", "-Zinstrument-mcount", release, true), 2);
    }
}

#[test]
fn rust_with_stable_flags() {
    for release in [false, true] {
        check(run("sancov", STABLE, release, false), 1);
    }
}
