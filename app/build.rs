//! Lists the files of the chat page, so that the program holds them and serves nothing else.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    let page = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("src/serve/page");
    println!("cargo:rerun-if-changed={}", page.display());
    let mut names: Vec<String> = fs::read_dir(&page)
        .unwrap_or_else(|e| panic!("{}: {e}", page.display()))
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| page.join(name).is_file())
        .collect();
    names.sort();
    let mut table = String::from("&[\n");
    for name in &names {
        let path = page.join(name).display().to_string();
        let _ = writeln!(table, "    ({name:?}, include_bytes!({path:?})),");
    }
    table.push(']');
    let out = Path::new(&env::var("OUT_DIR").expect("set by cargo")).join("page.rs");
    fs::write(&out, table).unwrap_or_else(|e| panic!("{}: {e}", out.display()));
}
