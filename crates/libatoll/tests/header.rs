//! The header declares what the library defines, with the same arguments and results.

mod common;

use std::collections::BTreeMap;

/// What C calls a type of the definitions.
fn c_type(rust: &str) -> String {
    let plain = |name: &str| -> String {
        match name {
            "c_char" => "char",
            "c_void" => "void",
            "c_int" => "int",
            "c_uint" => "unsigned int",
            "c_long" => "long",
            "Dir" => "ATOLL_DIR",
            "AtollOptions" => "struct atoll_options",
            "iovec" => "struct iovec",
            "libc::dirent" => "struct dirent",
            "libc::stat" => "struct stat",
            "libc::statvfs" => "struct statvfs",
            "libc::timespec" => "struct timespec",
            "libc::timeval" => "struct timeval",
            "usize" => "size_t",
            "size_t" | "ssize_t" | "off_t" | "mode_t" | "dev_t" | "uid_t" | "gid_t" => name,
            other => panic!("what is the type {other} in C?"),
        }
        .to_owned()
    };
    if let Some(to) = rust.strip_prefix("*const ") {
        format!("const {} *", plain(to))
    } else if let Some(to) = rust.strip_prefix("*mut ") {
        format!("{} *", plain(to))
    } else {
        plain(rust)
    }
}

/// The C type of each function that the sources define.
fn defined() -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    let sources = std::fs::read_dir(common::folder().join("src/c")).expect("the sources");
    for source in sources {
        let path = source.expect("a source").path();
        let text = std::fs::read_to_string(path).expect("a source is text");
        let exported = text.split("#[unsafe(no_mangle)]").skip(1);
        for function in exported {
            let start = function.find("extern \"C\" fn ").expect("exported for C") + 14;
            let declared = &function[start..function.find('{').expect("a body")];
            let (name, rest) = declared.split_once('(').expect("arguments");
            let (arguments, result) = rest.rsplit_once(')').expect("arguments end");
            let arguments: Vec<String> = arguments
                .split(',')
                .map(str::trim)
                .filter(|a| !a.is_empty())
                .map(|a| c_type(a.split_once(':').expect("a typed argument").1.trim()))
                .collect();
            let result = match result.trim().strip_prefix("->") {
                Some(result) => c_type(result.trim()),
                None => "void".into(),
            };
            // These take their last argument only sometimes, which C says with an ellipsis.
            let mut arguments = arguments;
            if matches!(name, "atoll_open" | "atoll_openat" | "atoll_fcntl") {
                *arguments.last_mut().expect("arguments") = "...".into();
            }
            let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
            functions.insert(name.to_owned(), format!("{result} (*)({arguments})"));
        }
    }
    functions
}

#[test]
fn declares_what_is_defined() {
    let functions = defined();
    assert!(functions.len() > 80, "only {} functions found", functions.len());
    let mut program = String::from("#define _GNU_SOURCE\n#include \"atoll.h\"\n");
    for (name, kind) in &functions {
        program += &format!(
            "_Static_assert(__builtin_types_compatible_p(__typeof__(&{name}), {kind}), \"{name}\");\n"
        );
    }
    program += "const void *all[] = {";
    functions.keys().for_each(|name| program += &format!("(void *){name}, "));
    program += "};\nint main(void) { return 0; }\n";
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let source = temporary.path().join("signatures.c");
    std::fs::write(&source, program).expect("room");
    let arguments = [vec![source.display().to_string()], common::linked_dynamically()].concat();
    let program = temporary.path().join("signatures");
    common::compile(&[], &program, &[&["-Wno-pedantic"], &common::strs(&arguments)[..]].concat());

    let header = std::fs::read_to_string(common::folder().join("include/atoll.h")).expect("text");
    let declared = header.split("atoll_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        (rest[end..].starts_with('(')).then(|| format!("atoll_{}", &rest[..end]))
    });
    for name in declared {
        assert!(functions.contains_key(&name), "{name} is declared and not defined");
    }
}

#[test]
fn is_a_header_of_cpp_too() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let source = temporary.path().join("header.cc");
    let program = "#include \"atoll.h\"\nint main() { return 0 * (atoll_open == nullptr); }\n";
    std::fs::write(&source, program).expect("room");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-fsyntax-only", "-Wall", "-x", "c++", "-I"]).arg(common::folder().join("include"));
    // The C++ compiler is a package of its own; the C compiler alone says so.
    let output = cc.arg(&source).output().expect("cc is missing: install the package gcc");
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("cc1plus") {
        return;
    }
    assert!(output.status.success(), "{errors}");
}
