//! Disks and file systems of a test's own: loop devices, and what is mounted on them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs a program, which succeeds; what it prints, without the line's end.
pub fn run(program: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments.iter().map(|argument| argument.as_ref())).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// A file as a disk.
pub struct Loop {
    pub path: PathBuf,
    attached: bool,
}

impl Loop {
    pub fn attach(file: &Path) -> Result<Loop, String> {
        let path = run("losetup", &[&"-f", &"--show", &file])?.into();
        Ok(Loop { path, attached: true })
    }

    pub fn detach(mut self) {
        self.attached = false;
        run("losetup", &[&"-d", &self.path]).unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.attached {
            let _ = run("losetup", &[&"-d", &self.path]);
        }
    }
}

/// Something mounted. It is unmounted at the end, from the last to the first.
pub struct Mounted(pub PathBuf);

impl Mounted {
    pub fn new(
        arguments: &[&dyn AsRef<std::ffi::OsStr>],
        target: &Path,
    ) -> Result<Mounted, String> {
        std::fs::create_dir_all(target).unwrap();
        let mut all = arguments.to_vec();
        all.push(&target);
        run("mount", &all)?;
        Ok(Mounted(target.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.0]);
    }
}

/// A mount namespace for this thread and the programs that it starts, so that nothing that it
/// mounts stays. Errs where that is not allowed.
pub fn own_namespace() -> Result<(), String> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .map_err(|error| format!("unshare: {error}"))?;
    run("mount", &[&"--make-rprivate", &"/"]).map(drop)
}

/// One test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test`, or says why it cannot run here.
///
/// One at a time: a program that another thread starts has all descriptors until it runs, locked
/// ones among them.
pub fn with_disks(test: impl FnOnce(&Path) -> Result<(), String> + Send) {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    // A thread of its own: the namespace is that thread's.
    let outcome = std::thread::scope(|scope| {
        let run = || {
            own_namespace()?;
            Loop::attach(&disk(folder.path(), "try", 1))?;
            test(folder.path())
        };
        scope.spawn(run).join()
    });
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => eprintln!("not tested: {reason}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A sparse file of so many mebibytes.
pub fn disk(folder: &Path, name: &str, mebibytes: u64) -> PathBuf {
    let path = folder.join(name);
    std::fs::File::create(&path).unwrap().set_len(mebibytes << 20).unwrap();
    path
}
