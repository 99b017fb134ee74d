//! The files of a guest: its first file system, which it has in memory.

use std::collections::BTreeSet;
use std::path::Path;

use crate::cpio::Archive;
use crate::{modules, parts};

/// The folders that every guest has.
const FOLDERS: [&str; 6] = ["bin", "dev", "mnt", "modules", "proc", "sys"];

/// The modules and files that a guest is to have.
#[derive(Clone, Default)]
pub struct Image {
    modules: Vec<String>,
    files: Vec<(String, u32, Vec<u8>)>,
}

impl Image {
    /// A shell and its tools, and what mounts by virtio-fs need.
    pub fn new() -> Image {
        Image::default().module("virtio_pci").module("virtiofs")
    }

    /// Adds a module of the kernel, and those that it needs.
    pub fn module(mut self, name: &str) -> Image {
        self.modules.push(name.into());
        self
    }

    /// Adds a program of this machine at /bin, with the libraries that it is linked with.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn program(mut self, path: &Path) -> Image {
        self.files.push((format!("bin/{}", file_name(path)), 0o755, read(path)));
        for library in parts::libraries(path) {
            let place = library.to_str().expect("a path in UTF-8").trim_start_matches('/');
            self.files.push((place.into(), 0o755, read(&library)));
        }
        self
    }

    /// Adds a file.
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Image {
        self.files.push((path.trim_start_matches('/').into(), 0o644, content.into()));
        self
    }

    /// The archive that the kernel unpacks whose modules are in `folder`.
    ///
    /// # Panics
    /// If a part is missing.
    pub fn archive(&self, folder: &Path) -> Vec<u8> {
        let mut tree = Tree::default();
        FOLDERS.iter().for_each(|folder| tree.folder(folder));
        tree.folder("tmp");
        // Before there is anything else, the kernel opens it for the first program.
        tree.archive.device("dev/console", 5, 1);
        tree.file("init", 0o755, include_bytes!("init.sh"));
        tree.copy("bin/busybox", &parts::program("busybox", "busybox-static"));
        let wanted: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        let mut order = String::new();
        for module in modules::in_order(folder, &wanted) {
            let name = file_name(&module);
            order.push_str(&format!("{name}\n"));
            tree.copy(&format!("modules/{name}"), &module);
        }
        tree.file("modules/order", 0o644, order.as_bytes());
        for (path, permissions, content) in &self.files {
            tree.file(path, *permissions, content);
        }
        tree.archive.finish()
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()))
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8")
}

/// An archive that has each path once, and the folders of each.
#[derive(Default)]
struct Tree {
    archive: Archive,
    there: BTreeSet<String>,
}

impl Tree {
    fn folder(&mut self, path: &str) {
        if path.is_empty() || !self.there.insert(path.into()) {
            return;
        }
        self.parent(path);
        self.archive.directory(path);
    }

    fn parent(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        if self.there.insert(path.into()) {
            self.parent(path);
            self.archive.file(path, permissions, content);
        }
    }

    fn copy(&mut self, path: &str, from: &Path) {
        self.file(path, 0o755, &read(from));
    }
}
