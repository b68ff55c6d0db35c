//! Makes the C header and the Lua cdef of src/ffi, so that neither can drift from the code. Both are committed; a file
//! is written only when it changes, so that a build in a read-only tree passes, and a stale one shows as a change.

use cbindgen::{Builder, Config, Language};
use std::path::Path;
use std::{env, fs};

/// In the order of the header.
const SOURCES: [&str; 5] =
    ["src/ffi/words.rs", "src/ffi/config.rs", "src/ffi/lock.rs", "src/ffi/op.rs", "src/ffi/bell.rs"];
const HEADER: &str = "include/buflock.h";
const CDEF: &str = "bindings/lua/lib/resty/buflock/cdef.lua";

const PREFACE: &str = "\
/* buflock.h - locks that end by themselves, shared by threads, processes and languages.
 *
 * Made from src/ffi; do not edit.
 *
 * Results   Calls return int: 0 done, > 0 an expected answer, < 0 a failure; see buflock_status. Outputs come last and
 *           are written only as said. Only a result < 0 sets buflock_last_error.
 * Handles   Made by _new, freed once by _free; _free takes NULL and does no network I/O.
 * Strings   Keys are bytes with a length (any, also 0) and may hold NULs. Other strings end in NUL.
 * NULL      Where it is not allowed: BUFLOCK_ARGUMENT, and the text names the parameter.
 * Time      In ms.
 * Threads   A buflock_t may be used by many threads at once, a buflock_config or a buflock_op by one at a time.
 * Fork      A handle made before fork works on both sides. A token is plain text and belongs to whoever has it; an op
 *           belongs to the process that made it. A child's exit releases nothing.
 * Signals   EINTR is retried against the same deadline; only buflock_op_run hands signals back.
 * Effects   No thread but the bell's, no handler, environment read (but SSL_CERT_FILE and SSL_CERT_DIR by rediss: without
 *           ca_file) or output at load or in a call; errno is kept; fds are CLOEXEC. A bug inside is BUFLOCK_PANIC, never an unwinding host.
 */";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rerun-if-changed=src/ffi");
    println!("cargo::rerun-if-changed={HEADER}");
    println!("cargo::rerun-if-changed={CDEF}");
    // A library whose code may still run must not be unmapped.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    if let Err(error) = generate() {
        println!("cargo::warning=the header was not made anew: {error}"); // rustc says better what is wrong
    }
}

fn generate() -> Result<(), String> {
    let config = Config::from_file("cbindgen.toml")?;
    let version = env::var("CARGO_PKG_VERSION").map_err(|error| error.to_string())?;
    let mut header = config.clone();
    header.header = Some(PREFACE.to_owned());
    header.after_includes = Some(version_macros(&version));
    // What Rust calls the safety section is to a C programmer just what must hold.
    write_if_changed(HEADER, &bindings(header)?.replace("//\n// # Safety\n", ""))?;
    let mut cdef = config;
    (cdef.language, cdef.cpp_compat, cdef.documentation) = (Language::C, false, false);
    write_if_changed(CDEF, &lua(&bindings(cdef)?))
}

fn bindings(config: Config) -> Result<String, String> {
    let builder = SOURCES.iter().fold(Builder::new().with_config(config), Builder::with_src);
    let mut text = Vec::new();
    builder.generate().map_err(|error| error.to_string())?.write(&mut text);
    String::from_utf8(text).map_err(|error| error.to_string())
}

fn version_macros(version: &str) -> String {
    let mut macros = format!("\n#define BUFLOCK_VERSION \"{version}\"");
    for (name, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(version.split(['.', '-'])) {
        macros += &format!("\n#define BUFLOCK_VERSION_{name} {number}");
    }
    macros
}

/// The declarations for LuaJIT: no preprocessor there, so constants become C constants.
fn lua(declarations: &str) -> String {
    let mut cdef = String::new();
    for line in declarations.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("#define"), Some(name), Some(value)) => cdef += &format!("static const uint32_t {name} = {value};\n"),
            (Some(word), ..) if word.starts_with('#') => {}
            (None, ..) if cdef.ends_with("\n\n") || cdef.is_empty() => {}
            _ => cdef += &format!("{line}\n"),
        }
    }
    let cdef = cdef.trim_end();
    format!("-- Made from src/ffi; do not edit.\nrequire(\"ffi\").cdef([[\n{cdef}\n]])\n")
}

fn write_if_changed(path: &str, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let folder = Path::new(path).parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).and_then(|()| fs::write(path, text)).map_err(|error| format!("{path}: {error}"))
}
