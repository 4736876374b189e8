//! Hands the linker script over, and what it does not know: where the image
//! begins. Here and not in the flags of `.cargo/config.toml`, because only this
//! file knows its own folder.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    println!("cargo:rerun-if-changed=link.ld");
    // On AArch64 RAM begins at 1 GiB, with 2 MiB that QEMU puts its device tree in.
    let (base, entry) = match arch.as_str() {
        "aarch64" => ("0x40200000", "boot_start"),
        _ => ("0x100000", "pvh_start"),
    };
    for argument in [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,--defsym=image_base={base},--entry={entry}");
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{here}/link.ld");
}
