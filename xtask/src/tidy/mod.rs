//! The project's rules about itself, checked.
//!
//! Read in this order: [`tree`] the files that the rules look at; [`layers`] which crate may know
//! which; [`sources`] the rules for every source file; [`words`] those for the words in any file;
//! [`documents`] links, licences and the list of dependencies; [`circles`] files that need each
//! other; [`callers`] functions that nothing calls.

mod callers;
mod circles;
mod documents;
mod layers;
mod sources;
mod tree;
mod words;

use std::fmt;

use crate::steps::Failure;
use tree::Tree;

/// A rule broken: where, and what to do.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    /// The file, relative to the root of the repository.
    file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    line: usize,
    /// The fault, and how to mend it.
    message: String,
}

impl Problem {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Problem { file: file.into(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

/// Checks all rules on this checkout.
pub fn run() -> Result<(), Failure> {
    let root = crate::root();
    let tree = Tree::read(&root)
        .map_err(|error| Failure(format!("reading {}: {error}", root.display())))?;
    let packages = layers::packages()?;

    let mut problems = layers::check(&packages, &tree);
    problems.extend(circles::check(&tree));
    problems.extend(callers::check(&tree));
    problems.extend(sources::check(&tree));
    problems.extend(words::check(&tree));
    problems.extend(documents::check(&tree, &packages));
    problems.sort();
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure(format!("{count} rules broken"))),
    }
}
