//! What do other ways cost that see every entry and every return, on this
//! machine? Each traces the same C function; its time is over that of the same
//! program untraced, run before and after it. Ways whose tools are missing are
//! left out, and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

mod support;

use support::{Effort, line, median};

/// A way of tracing a program.
struct Way {
    name: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    /// What runs the program, before its path.
    runner: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const UNTRACED: Way = Way {
    name: "untraced",
    compiler: "gcc",
    flags: &[],
    runner: &[],
    environment: &[],
};

const WAYS: [Way; 4] = [
    Way {
        name: "instrument-functions/empty",
        flags: &["-finstrument-functions", "-DHANDLERS"],
        ..UNTRACED
    },
    Way {
        name: "replaced-address/empty",
        flags: &["-pg", "-mfentry", "-DREPLACED"],
        ..UNTRACED
    },
    Way {
        name: "xray/log",
        compiler: "clang",
        flags: &["-fxray-instrument"],
        environment: &[(
            "XRAY_OPTIONS",
            "patch_premain=true xray_mode=xray-fdr verbosity=0",
        )],
        ..UNTRACED
    },
    Way {
        name: "uftrace/record",
        flags: &["-pg"],
        runner: &["uftrace", "record", "--no-libcall", "-d", "uftrace.data"],
        ..UNTRACED
    },
];

/// Nothing but a new folder of this bench's own.
fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("others");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// Compiles the program; why not, if not.
fn compile(folder: &Path, way: &Way) -> Result<PathBuf, String> {
    let program = folder.join(way.name.replace('/', "-"));
    let output = Command::new(way.compiler)
        .args(["-O2", "-no-pie", "-w"])
        .args(way.flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/others/leaf.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .map_err(|error| format!("{}: {error}", way.compiler))?;
    match output.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Nanoseconds a call of one run.
fn run(folder: &Path, way: &Way, program: &Path, effort: Effort) -> Result<f64, String> {
    let mut words = way.runner.iter().map(Path::new).chain([program]);
    let first = words.next().unwrap_or(program);
    let output = Command::new(first)
        .args(words)
        .args([effort.rounds().to_string(), effort.calls().to_string()])
        .envs(way.environment.iter().copied())
        .current_dir(folder)
        .output()
        .map_err(|error| format!("{}: {error}", first.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .next_back()
        .and_then(|line| line.trim().parse().ok())
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Nanoseconds a call over the untraced program's.
fn measure(folder: &Path, way: &Way, untraced: &Path, effort: Effort) -> Result<f64, String> {
    let program = compile(folder, way)?;
    let mut over = Vec::new();
    for _ in 0..5 {
        let before = run(folder, &UNTRACED, untraced, effort)?;
        let subject = run(folder, way, &program, effort)?;
        let after = run(folder, &UNTRACED, untraced, effort)?;
        over.push(subject - (before + after) / 2.0);
    }
    Ok(median(over))
}

fn main() {
    let effort = Effort::from_args();
    let folder = scratch();
    match compile(&folder, &UNTRACED) {
        Ok(untraced) => {
            for way in &WAYS {
                match measure(&folder, way, &untraced, effort) {
                    Ok(over) => line(&format!("others/{}", way.name), over, "ns"),
                    Err(why) => println!("left out: {}: {}", way.name, why.trim()),
                }
            }
        }
        Err(why) => println!("left out: {}", why.trim()),
    }
    let _ = std::fs::remove_dir_all(folder);
}
