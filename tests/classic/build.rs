//! Compiles the C functions for the chosen hook.

fn main() {
    println!("cargo::rerun-if-changed=../c/calls.c");
    println!("cargo::rustc-check-cfg=cfg(c)");
    let chosen = |feature: &str| std::env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let flags: &[&str] = match (chosen("FENTRY"), chosen("MCOUNT")) {
        (true, _) => &["-pg", "-mfentry"],
        (_, true) => &["-pg"],
        _ => return,
    };
    let mut build = cc::Build::new();
    flags.iter().for_each(|flag| {
        build.flag(flag);
    });
    // Tail calls are jumps from -O2 on, in every profile of this program.
    build.file("../c/calls.c").opt_level(2).compile("calls");
    println!("cargo::rustc-cfg=c");
}
