//! Has the image linked where it is loaded.

fn main() {
    println!("cargo::rerun-if-changed=image.ld");
    // Elsewhere only the library is built.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "none") {
        let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where it is");
        println!("cargo::rustc-link-arg-bins=--no-pie");
        println!("cargo::rustc-link-arg-bins=-T{folder}/image.ld");
        println!("cargo::rustc-link-arg-bins=--no-eh-frame-hdr");
    }
}
