//! Nothing to do: Cargo.toml says what the build dependency is for, which cargo only takes with a build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
