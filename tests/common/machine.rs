//! The kernel of `tests/kernel`, built for a machine and booted there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A machine that QEMU makes.
#[derive(Debug)]
pub struct Machine {
    pub name: &'static str,
    target: &'static str,
    qemu: &'static str,
    /// For a target that is not the host's.
    linker: Option<&'static str>,
    /// What the runs take that run by the clock, in thousandths.
    pace: usize,
    missing: OnceLock<Option<String>>,
    image: OnceLock<PathBuf>,
    untraced: OnceLock<Option<BTreeMap<String, String>>>,
}

pub static X86_64: Machine = Machine {
    name: "x86-64",
    target: "x86_64-unknown-linux-gnu",
    qemu: "qemu-system-x86_64",
    linker: None,
    pace: 1000,
    missing: OnceLock::new(),
    image: OnceLock::new(),
    untraced: OnceLock::new(),
};

pub static AARCH64: Machine = Machine {
    name: "AArch64",
    target: "aarch64-unknown-linux-gnu",
    qemu: "qemu-system-aarch64",
    linker: Some("aarch64-linux-gnu-gcc"),
    pace: 400,
    missing: OnceLock::new(),
    image: OnceLock::new(),
    untraced: OnceLock::new(),
};

/// The kernel's folder.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel")
}

/// Whether the program is there and says its version.
fn is_there(program: &str) -> bool {
    let status = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// The compiler for targets that are not the host's: `.ci/toolchains` names one.
fn cross_compiler() -> String {
    std::env::var("CROSS_RUSTC").unwrap_or_else(|_| "rustc".into())
}

/// Whether a compiler comes with the target's `core`.
fn compiles(compiler: &str, target: &str) -> bool {
    let output = Command::new(compiler)
        .args(["--print", "target-libdir", "--target", target])
        .output();
    output.is_ok_and(|output| {
        output.status.success()
            && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}

impl Machine {
    /// Whether it can be built for and booted; says so if not.
    fn is_there(&self) -> bool {
        let missing = self.missing.get_or_init(|| {
            if !is_there(self.qemu) {
                return Some(format!("{} is missing", self.qemu));
            }
            let linker = self.linker?;
            if !is_there(linker) {
                return Some(format!("{linker} is missing"));
            }
            (!compiles(&cross_compiler(), self.target)).then(|| {
                let target = self.target;
                format!("no compiler for {target}; .ci/toolchains has one, and sets CROSS_RUSTC")
            })
        });
        if let Some(missing) = missing {
            let required = std::env::var("FGRAPH_REQUIRE").unwrap_or_default();
            assert!(
                !required.split_whitespace().any(|word| word == "qemu"),
                "{missing}, and FGRAPH_REQUIRE names qemu"
            );
            println!("skipped: {missing}");
            eprintln!("skipped: {missing}");
        }
        missing.is_none()
    }

    /// The kernel's image, built once.
    pub fn image(&self) -> &Path {
        self.image.get_or_init(|| {
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel");
            let mut cargo = Command::new(env!("CARGO"));
            // In its folder, where cargo finds the kernel's own flags.
            cargo.current_dir(folder());
            cargo
                .args(["build", "--release", "--target", self.target])
                .arg("--target-dir")
                .arg(&target);
            // What was meant for this build and not for the kernel's: flags
            // replace those of the configuration, and the rest moves what is
            // built.
            for (name, _) in std::env::vars_os() {
                let text = name.to_string_lossy();
                let is_ours = text.starts_with("CARGO_PROFILE_")
                    || text.starts_with("CARGO_BUILD_")
                    || (text.starts_with("CARGO_TARGET_") && text != "CARGO_TARGET_TMPDIR")
                    || text.ends_with("RUSTFLAGS")
                    || text == "RUSTC_WRAPPER"
                    || text == "RUSTC_WORKSPACE_WRAPPER";
                if is_ours {
                    cargo.env_remove(name);
                }
            }
            if self.linker.is_some() {
                cargo.env("RUSTC", cross_compiler());
            }
            let output = cargo.output().expect("cargo runs");
            assert!(
                output.status.success(),
                "the kernel does not build:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
            target.join(self.target).join("release/kernel")
        })
    }

    /// So many seconds of a faster machine: what is emulated by more instructions
    /// runs for less time, and still does enough.
    pub fn seconds(&self, seconds: usize) -> usize {
        (seconds * self.pace / 1000).max(1)
    }

    /// Boots on two CPUs.
    pub fn boot(&self, line: &str, code: i32) -> Option<Run> {
        self.boot_with(2, line, code)
    }

    /// Boots on so many CPUs with a command line; `None` where the tools are
    /// missing. The exit code must be `code`.
    pub fn boot_with(&self, cpus: usize, line: &str, code: i32) -> Option<Run> {
        // One at a time: two CPUs of the kernel take two of this machine.
        static ONE: Mutex<()> = Mutex::new(());
        if !self.is_there() {
            return None;
        }
        let image = self.image();
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let output = Command::new(folder().join("run"))
            .arg(image)
            .args(line.split_whitespace())
            .env("KERNEL_CPUS", cpus.to_string())
            .output()
            .expect("the script runs");
        let took = begun.elapsed();
        println!("{}: {line}: {took:.2?}", self.name);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{line}\n{}\n{}",
            tail(&text),
            String::from_utf8_lossy(&output.stderr)
        );
        Some(Run { text, took })
    }

    /// The checksums without any tracing.
    pub fn untraced(&self) -> Option<BTreeMap<String, String>> {
        self.untraced
            .get_or_init(|| {
                let run = self.boot("rounds=20", 0)?;
                let sums = run.checksums();
                assert_eq!(sums.len(), 8, "{sums:?}");
                Some(sums)
            })
            .clone()
    }
}

/// One boot.
#[derive(Debug)]
pub struct Run {
    pub text: String,
    pub took: Duration,
}

/// The last lines.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

impl Run {
    /// The lines that begin so, without that.
    pub fn lines<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.text
            .lines()
            .filter_map(move |line| line.strip_prefix(start))
    }

    /// The one line that begins so.
    pub fn line<'a>(&'a self, start: &'a str) -> &'a str {
        let mut lines = self.lines(start);
        match (lines.next(), lines.next()) {
            (Some(line), None) => line.trim(),
            _ => panic!("not one line {start:?} in\n{}", tail(&self.text)),
        }
    }

    /// What each task of the workload computed, none of them differently in
    /// any round.
    pub fn checksums(&self) -> BTreeMap<String, String> {
        let sums = self.lines("checksum ").map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, sum, "rounds", rounds, "mismatches", "0"] = words[..] else {
                panic!("not as it should be: {line}");
            };
            assert_ne!(rounds, "0", "{line}");
            (name.to_owned(), sum.to_owned())
        });
        sums.collect()
    }

    /// The number before `what` in a line, where words are separated by blanks
    /// and punctuation.
    pub fn count(line: &str, what: &str) -> usize {
        let words: Vec<&str> = line.split([' ', ',', ';', ':', '{', '}']).collect();
        let at = words.iter().position(|&word| word == what);
        let at = at.unwrap_or_else(|| panic!("no {what} in {line}"));
        let before = words[..at].iter().rev().find(|word| !word.is_empty());
        before
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no number before {what} in {line}"))
    }

    /// A field of a structure that was printed.
    pub fn field(line: &str, name: &str) -> usize {
        let value = line.split(&format!("{name}: ")).nth(1);
        let value = value.and_then(|rest| rest.split([',', ' ', '}']).next());
        value
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {line}"))
    }

    /// Each account of a callback balances; returns how many entries they have.
    pub fn balanced(&self) -> Vec<usize> {
        let entries: Vec<usize> = self
            .lines("counted: ")
            .map(|line| {
                let count = |what| Self::count(line, what);
                let exits = count("returned") + count("unwound") + count("with");
                assert_eq!(count("entries"), exits, "{line}");
                assert_eq!((count("strange"), count("late")), (0, 0), "{line}");
                count("entries")
            })
            .collect();
        assert!(!entries.is_empty(), "no accounts in\n{}", tail(&self.text));
        entries
    }

    /// The shadow stacks' counters after the run: all frames are gone, and
    /// nothing was lost.
    pub fn stacks(&self) -> &str {
        let line = self.line("stacks: ");
        for nothing in ["strays", "frames", "wrong"] {
            assert_eq!(Self::field(line, nothing), 0, "{line}");
        }
        line
    }

    /// The backtrace below the line.
    pub fn backtrace(&self, heading: &str) -> Vec<&str> {
        let mut lines = self.text.lines().skip_while(|line| !line.contains(heading));
        assert!(lines.next().is_some(), "no {heading:?} in\n{}", self.text);
        let lines = lines.skip_while(|line| !line.starts_with("  "));
        lines.take_while(|line| line.starts_with("  ")).collect()
    }
}
