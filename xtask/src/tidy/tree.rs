//! The text files of the repository.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Folders of generated files, wherever they stand.
const MADE: [&str; 4] = [".git", "target", "corpus", "artifacts"];

/// The text files of a checkout: path relative to its root, content.
#[derive(Default)]
pub struct Tree(BTreeMap<String, String>);

impl Tree {
    /// Reads all files below `root` that are UTF-8 text.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if MADE.contains(&name.as_str()) || name.ends_with(".vol") {
                continue;
            } else if kind.is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file()
                && let Ok(text) = String::from_utf8(std::fs::read(entry.path())?)
            {
                self.0.insert(path, text);
            }
        }
        Ok(())
    }

    /// A tree of the given files.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree(files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
    }

    /// The content of `path`.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Whether `path` is a file or a folder with files.
    pub fn exists(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.0.contains_key(path)
            || self.0.range(folder.clone()..).next().is_some_and(|(p, _)| p.starts_with(&folder))
    }

    /// All files, in order of their paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The files whose names end with `suffix`.
    pub fn with_suffix(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(suffix))
    }
}

/// A file of Rust without its comments and tests; every line stays in its place.
pub fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}
