//! Hands the linker script over. Here and not in the flags of
//! `.cargo/config.toml`, because only this file knows its own folder.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=link.ld");
    for argument in [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{here}/link.ld");
}
