//! The header declares what the library defines, with the same arguments and results; and C's
//! structures and numbers are those that Rust takes them for.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::{offset_of, size_of};

use atoll::c::mounting::{self, AtollOptions};
use atoll_vfs::{Errno, FallocateMode, RenameFlags, XattrFlags};

/// The C name of a type of the definitions.
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
        // Each exported function, by itself or among `calls!`.
        for function in text.split("fn ").filter(|text| text.starts_with("atoll_")) {
            let declared = &function[..function.find(['{', '=']).expect("a body")];
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

/// Asserts in C where the fields of a structure lie, how long they are, and that these are all.
macro_rules! assert_fields {
    ($program:ident, $c:literal is $structure:ty: $($field:ident)*) => {
        fn size<S, F>(_: fn(&S) -> &F) -> usize {
            size_of::<F>()
        }
        let mut sum = 0;
        $(
            let length = size(|structure: &$structure| &structure.$field);
            let (at, field) = (offset_of!($structure, $field), stringify!($field));
            assert_c(&mut $program, &format!("offsetof({}, {field}) == {at}", $c));
            assert_c(&mut $program, &format!("sizeof((({} *)0)->{field}) == {length}", $c));
            sum += length;
        )*
        assert_eq!(sum, size_of::<$structure>(), "{}: these are not all fields", $c);
        assert_c(&mut $program, &format!("sizeof({}) == {sum}", $c));
    };
}

fn assert_c(program: &mut String, condition: &str) {
    writeln!(program, "_Static_assert({condition}, \"{condition}\");").expect("room");
}

#[test]
fn structures_and_numbers_are_the_same() {
    let mut program = String::from("#define _GNU_SOURCE\n#include \"atoll.h\"\n");
    program += "#include <errno.h>\n#include <linux/falloc.h>\n#include <stdio.h>\n";
    program += "#include <sys/xattr.h>\n";
    assert_fields!(program, "struct atoll_options" is AtollOptions:
        size flags first_descriptor volume_bytes cache_bytes uid gid);
    for (c, size) in [
        ("struct dirent", size_of::<libc::dirent>()),
        ("struct stat", size_of::<libc::stat>()),
        ("struct statvfs", size_of::<libc::statvfs>()),
        ("struct timespec", size_of::<libc::timespec>()),
        ("struct timeval", size_of::<libc::timeval>()),
        ("struct iovec", size_of::<libc::iovec>()),
        ("off_t", size_of::<libc::off_t>()),
        ("mode_t", size_of::<libc::mode_t>()),
        ("dev_t", size_of::<libc::dev_t>()),
    ] {
        assert_c(&mut program, &format!("sizeof({c}) == {size}"));
    }
    macro_rules! named {
        ($flags:ty, $prefix:literal) => {
            for (name, flag) in <$flags>::all().iter_names() {
                assert_c(&mut program, &format!("{}{name} == {}", $prefix, flag.bits()));
            }
        };
    }
    named!(FallocateMode, "FALLOC_FL_");
    named!(RenameFlags, "RENAME_");
    named!(XattrFlags, "XATTR_");
    for (name, bits) in [
        ("RDONLY", mounting::ATOLL_RDONLY),
        ("PREAD", mounting::ATOLL_PREAD),
        ("RAM", mounting::ATOLL_RAM),
        ("FORCE", mounting::ATOLL_FORCE),
        ("SEALABLE", mounting::ATOLL_SEALABLE),
        ("RELATIME", mounting::ATOLL_RELATIME),
    ] {
        assert_c(&mut program, &format!("ATOLL_{name} == {bits}"));
    }
    for error in (1..4096).filter_map(Errno::from_raw) {
        assert_c(&mut program, &format!("{} == {}", error.name(), error.raw()));
    }
    program += "int main(void) { return 0; }\n";
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let source = temporary.path().join("numbers.c");
    std::fs::write(&source, program).expect("room");
    let to = temporary.path().join("numbers");
    common::compile(&[], &to, &[&source.display().to_string()]);
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
