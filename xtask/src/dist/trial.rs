//! The forms of a release are tried, each in a root directory that has only its own files and, for
//! the Debian package, the libraries that it names.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dist::stage::{Stage, failed, read, sha256};
use crate::steps::{Failure, Step, program};

/// The text that goes into a volume, and has to come out of it.
const TEXT: &str = "what was put into the volume\n";

/// Unpacks the tarball `archive`, whose one folder is `name`, in `stage` and uses it.
pub fn tarball(stage: &Stage, archive: &Path, name: &str, version: &str) -> Result<(), Failure> {
    unpack(archive, stage.root())?;
    use_it(stage, &format!("/{name}/bin/atoll"), version)?;
    manual(&stage.root().join(name).join("share/man/man1"))?;
    on_this_machine(stage, &stage.root().join(name).join("bin/atoll"))
}

/// Unpacks the Debian package, adds the libraries of the packages that it depends on, and uses it.
pub fn debian(stage: &Stage, package: &Path, version: &str) -> Result<(), Failure> {
    program("dpkg-deb").arg("--extract").arg(package).arg(stage.root()).run()?;
    let depends = program("dpkg-deb").arg("--field").arg(package).arg("Depends").output()?;
    for depended in depends.split(',').filter_map(|each| each.split_whitespace().next()) {
        libraries(depended, stage)?;
    }
    for folder in ["lib", "lib64"] {
        let link = stage.root().join(folder);
        std::os::unix::fs::symlink(format!("usr/{folder}"), &link)
            .map_err(|error| failed(&link, &error))?;
    }
    use_it(stage, "/usr/bin/atoll", version)?;
    manual(&stage.root().join("usr/share/man/man1"))
}

/// Follows the image `archive` from its index to its layer, and uses what is there.
pub fn image(stage: &Stage, archive: &Path, version: &str) -> Result<(), Failure> {
    let image = Stage::new(&stage.root().with_extension("image"))?;
    unpack(archive, image.root())?;
    let index = json(&image.root().join("index.json"))?;
    let manifest = json(&blob(&image, &index["manifests"][0])?)?;
    let configuration = json(&blob(&image, &manifest["config"])?)?;
    let layer = &manifest["layers"][0];
    if configuration["rootfs"]["diff_ids"][0] != layer["digest"] {
        return Err(Failure(
            "the image's configuration has another layer than its manifest".into(),
        ));
    }
    unpack(&blob(&image, layer)?, stage.root())?;
    let program = configuration["config"]["Entrypoint"][0].as_str().unwrap_or_default();
    use_it(stage, program, version)
}

/// The path of the blob that `descriptor` is of, which has the size and the digest that it says.
fn blob(image: &Stage, descriptor: &Value) -> Result<PathBuf, Failure> {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    let digest = digest.ok_or_else(|| Failure(format!("no digest in {descriptor}")))?;
    let path = image.root().join("blobs/sha256").join(digest);
    if sha256(&path)? != digest || descriptor["size"] != read(&path)?.len() {
        return Err(Failure(format!("{} is not what {descriptor} says", path.display())));
    }
    Ok(path)
}

fn json(path: &Path) -> Result<Value, Failure> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| Failure(format!("{}: {error}", path.display())))
}

fn unpack(archive: &Path, to: &Path) -> Result<(), Failure> {
    program("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(to).run()
}

/// Copies the shared libraries of the Debian package `package` as this machine has them.
fn libraries(package: &str, stage: &Stage) -> Result<(), Failure> {
    for path in program("dpkg-query").args(["--listfiles", package]).output()?.lines() {
        let name = path.rsplit('/').next().unwrap_or_default();
        if !name.contains(".so") || !Path::new(path).is_file() {
            continue;
        }
        // Packages name some by the links /lib and /lib64.
        let path = path.strip_prefix("/usr").unwrap_or(path);
        stage.put(&format!("usr{path}"), &read(&Path::new("/usr").join(&path[1..]))?, 0o755)?;
    }
    Ok(())
}

/// Takes a user's first steps with the program at `path` of `stage`.
fn use_it(stage: &Stage, path: &str, version: &str) -> Result<(), Failure> {
    let atoll = |arguments: &[&str]| inside(stage)?.arg(path).args(arguments).output();
    expect(&atoll(&["--version"])?, &format!("atoll {version}\n"))?;
    if !atoll(&["--help"])?.contains("mkfs") {
        return Err(Failure(format!("{path} --help does not name mkfs")));
    }
    stage.put("in", TEXT.as_bytes(), 0o644)?;
    atoll(&["mkfs", "--size", "64M", "/a.vol"])?;
    atoll(&["cp", "/in", "/a.vol:/out"])?;
    expect(&atoll(&["cat", "/a.vol:/out"])?, TEXT)?;
    atoll(&["fsck", "/a.vol"])?;
    Ok(())
}

/// Runs programs of this machine on the volume that [`use_it`] has made, where it has FUSE.
fn on_this_machine(stage: &Stage, path: &Path) -> Result<(), Failure> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("`atoll run` is not tried: there is no /dev/fuse");
        return Ok(());
    }
    let volume = format!("{}:/vol", stage.root().join("a.vol").display());
    let run = |command: &str| {
        let atoll = program(&path.display().to_string()).args(["run", "-v", &volume, "--"]);
        atoll.args(["sh", "-c", command]).output()
    };
    expect(&run("cp /vol/out /vol/new && cat /vol/new /vol/new")?, &format!("{TEXT}{TEXT}"))?;
    Ok(())
}

/// A program in the root directory that `stage` is, with an argument to come for which one.
fn inside(stage: &Stage) -> Result<Step, Failure> {
    let superuser = program("id").arg("-u").output()?.trim() == "0";
    let step = if superuser {
        program("chroot")
    } else {
        program("unshare").args(["--map-root-user", "chroot"])
    };
    Ok(step.arg(stage.root()))
}

/// There is a page for the program and for each of its commands, which gzip(1) and the eye can
/// read.
fn manual(folder: &Path) -> Result<(), Failure> {
    for page in ["atoll.1.gz", "atoll-mkfs.1.gz", "atoll-serve.1.gz"] {
        let path = folder.join(page);
        if !fs::exists(&path).unwrap_or(false) {
            return Err(Failure(format!("{} is missing", path.display())));
        }
        let text = program("gzip").args(["--decompress", "--stdout"]).arg(&path).output()?;
        if !text.contains(".SH SYNOPSIS") {
            return Err(Failure(format!("{} is no manual page", path.display())));
        }
    }
    Ok(())
}

fn expect(found: &str, expected: &str) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(Failure(format!("expected {expected:?}, found {found:?}")))
}
