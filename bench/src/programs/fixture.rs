//! What the programs work on: a repository, an archive of its files, a project in C. All of it is
//! the same in every run.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::record::Broken;
use crate::workloads::Random;

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    files: u64,
    sources: u64,
    rows: u64,
    processes: u64,
    seconds: u64,
    mib: u64,
}

impl Extent {
    /// What is measured.
    pub const WHOLE: Extent =
        Extent { files: 3549, sources: 104, rows: 300_000, processes: 200, seconds: 5, mib: 128 };
    /// What shows that everything works.
    pub const SMALL: Extent =
        Extent { files: 40, sources: 3, rows: 1000, processes: 3, seconds: 2, mib: 1 };

    /// What scripts find in their environment. No setting of this machine's is to count.
    pub fn environment(self) -> [(&'static str, String); 11] {
        let text = |number: u64| number.to_string();
        [
            ("ROWS", text(self.rows)),
            ("PROCESSES", text(self.processes)),
            ("LONG", text(self.seconds)),
            ("MIB", text(self.mib)),
            ("LC_ALL", "C".into()),
            ("GIT_CONFIG_NOSYSTEM", "1".into()),
            ("GIT_CONFIG_GLOBAL", "/dev/null".into()),
            // Nothing of git's is to go on in the background.
            ("GIT_CONFIG_COUNT", "1".into()),
            ("GIT_CONFIG_KEY_0", "gc.auto".into()),
            ("GIT_CONFIG_VALUE_0", "0".into()),
            ("MAKEFLAGS", String::new()),
        ]
    }
}

/// A folder with all of it, removed when the value goes.
pub struct Fixture {
    folder: TempDir,
    /// How much there is.
    pub extent: Extent,
}

/// Makes the repository `origin` and the archive `tree.tar` of its files.
const PACK: &str = r#"
git init -q -b main origin
git -C origin add .
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
git -C origin -c user.name=a -c user.email=a@b commit -q -m all
tar -cf tree.tar --exclude=.git -C origin .
"#;

impl Fixture {
    /// Makes it on the disk.
    pub fn make(disk: &Path, extent: Extent) -> Result<Fixture, Broken> {
        let folder = tempfile::Builder::new().prefix("atoll-bench-").tempdir_in(disk)?;
        let (origin, project) = (folder.path().join("origin"), folder.path().join("project"));
        let mut random = Random(0x6174_6f6c_6c00_0001);
        for number in 0..extent.files {
            // About a dozen files in each of some hundred folders, as small crates have.
            let of = origin.join(format!("crate{:03}", number / 12)).join("src");
            std::fs::create_dir_all(&of)?;
            std::fs::write(of.join(format!("file{number}.rs")), source_of(number, &mut random))?;
        }
        std::fs::create_dir(&project)?;
        for number in 0..extent.sources {
            std::fs::write(project.join(format!("part{number}.c")), part(number))?;
        }
        std::fs::write(project.join("main.c"), main_of(extent.sources))?;
        std::fs::write(project.join("Makefile"), MAKEFILE)?;
        let mut pack = Command::new("bash");
        pack.args(["-euc", PACK]).current_dir(folder.path()).envs(extent.environment());
        let output = pack.output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Broken(format!("the repository cannot be made: {said}")));
        }
        Ok(Fixture { folder, extent })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A file of the repository: most are of a few KiB, some of a hundred.
fn source_of(number: u64, random: &mut Random) -> String {
    let large = random.next().is_multiple_of(40);
    let lines = 10 + random.next() % if large { 3000 } else { 250 };
    let function = |line| {
        let (a, b) = (random.next(), random.next() % 1000);
        format!("fn f{line}_{number}() -> u64 {{ {a:#x} + {b} }}\n")
    };
    (0..lines).map(function).collect()
}

const MAKEFILE: &str = "\
CFLAGS = -O1 -w
program: $(patsubst %.c,%.o,$(wildcard *.c))
\tgcc -o $@ $^
";

/// How many functions a C file has.
const FUNCTIONS: u64 = 40;

/// A C file of the project, with a function `part{number}`.
fn part(number: u64) -> String {
    let function = |function| {
        let factor = number * FUNCTIONS + function + 3;
        format!(
            "static unsigned f{function}(unsigned n) {{ unsigned s = n; char t[64];\n\
             for (unsigned i = 0; i < n % 17; i++) {{ s = s * {factor}u + i; if (s & 1) s ^= n; }}\n\
             snprintf(t, sizeof t, \"%u\", s); return s + (unsigned)strlen(t); }}\n"
        )
    };
    let functions: String = (0..FUNCTIONS).map(function).collect();
    let calls: String = (0..FUNCTIONS).map(|function| format!("n = f{function}(n);\n")).collect();
    format!(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n{functions}\
         unsigned part{number}(unsigned n) {{\n{calls}return n; }}\n"
    )
}

/// The project's program: prints what its parts make of a number.
fn main_of(parts: u64) -> String {
    let part = |part| format!("unsigned part{part}(unsigned);\n");
    let call = |part| format!("n = part{part}(n);\n");
    let declared: String = (0..parts).map(part).collect();
    let called: String = (0..parts).map(call).collect();
    format!(
        "#include <stdio.h>\n{declared}int main(void) {{ unsigned n = 1;\n{called}\
         printf(\"%u\\n\", n); }}\n"
    )
}
