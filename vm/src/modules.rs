//! Modules of the guest's kernel: which others each needs, and the order in which they are loaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The modules below `folder`, by their names.
///
/// # Panics
/// If the folder cannot be read.
pub fn all(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the kernel's modules").flatten() {
            let path = entry.path();
            match path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko")) {
                Some(name) => {
                    found.insert(name.replace('-', "_"), path);
                }
                None if path.is_dir() => folders.push(path),
                None => {}
            }
        }
    }
    found
}

/// The modules `wanted` of those in `folder` and all that they need, each after what it needs
/// itself. Names that are no modules are taken to be built into the kernel.
///
/// # Panics
/// If a module cannot be read.
pub fn in_order(folder: &Path, wanted: &[&str]) -> Vec<PathBuf> {
    let all = all(folder);
    let read = |name: &str| all.get(name).map(|path| std::fs::read(path).expect("a module"));
    let names = order(wanted, &|name| read(name).map(|module| needs(&module)));
    names.iter().map(|name| all[name].clone()).collect()
}

/// The names of what is to be loaded, where `needs` gives what a module needs.
fn order(wanted: &[&str], needs: &dyn Fn(&str) -> Option<Vec<String>>) -> Vec<String> {
    fn visit(name: &str, needs: &dyn Fn(&str) -> Option<Vec<String>>, order: &mut Vec<String>) {
        let name = name.replace('-', "_");
        if order.contains(&name) {
            return;
        }
        if let Some(first) = needs(&name) {
            first.iter().for_each(|first| visit(first, needs, order));
            order.push(name);
        }
    }
    let mut order = Vec::new();
    wanted.iter().for_each(|name| visit(name, needs, &mut order));
    order
}

/// The modules that a module says it needs: an entry `depends=A,B` of its section of such strings.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_is_in_it() {
        assert_eq!(
            needs(b"ELF\0license=GPL\0depends=fuse,virtio-ring\0name=x\0"),
            ["fuse", "virtio-ring"]
        );
        assert_eq!(needs(b"ELF\0depends=\0name=x\0"), [""; 0]);
        assert_eq!(needs(b"ELF"), [""; 0]);
    }

    #[test]
    fn each_is_loaded_once_and_after_what_it_needs() {
        let needs = |name: &str| match name {
            "a" => Some(vec!["b-c".into(), "d".into(), "built_in".into()]),
            "b_c" => Some(vec!["d".into()]),
            "d" => Some(vec![]),
            _ => None,
        };
        assert_eq!(order(&["a", "d", "nothing"], &needs), ["d", "b_c", "a"]);
    }
}
