//! The Debian package.

use std::collections::BTreeSet;
use std::path::Path;

use crate::dist::contents::{Layout, install};
use crate::dist::stage::{Stage, gzip, read};
use crate::steps::{Failure, program};

/// The packages that have the shared libraries which the program may need.
const LIBRARIES: [(&str, &str); 4] = [
    ("ld-linux-x86-64.so.2", "libc6"),
    ("libc.so.6", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
    ("libm.so.6", "libc6"),
];

/// Makes the package `to` of the program `binary` and the bare image in `stage`.
pub fn make(
    stage: &Stage,
    [binary, bare]: [&Path; 2],
    licences: &str,
    version: &str,
    time: u64,
    to: &Path,
) -> Result<(), Failure> {
    let layout =
        Layout { prefix: "usr", installed: "/usr", zsh: "share/zsh/vendor-completions/_atoll" };
    install(stage, binary, bare, &layout)?;
    let documents = "usr/share/doc/atoll";
    let text = |name: &str| read(&crate::root().join(name));
    let mut copyright = HEADER.as_bytes().to_vec();
    copyright.extend(text("LICENSE-MIT")?);
    copyright.push(b'\n');
    copyright.extend(text("LICENSE-APACHE")?);
    copyright.push(b'\n');
    copyright.extend(licences.as_bytes());
    stage.put(&format!("{documents}/copyright"), &copyright, 0o644)?;
    let changelog = format!("{documents}/changelog");
    stage.put(&changelog, &text("CHANGELOG.md")?, 0o644)?;
    gzip(&stage.root().join(changelog))?;

    let depends = depends(binary)?;
    // Of the files alone: the size of folders depends on the file system of the machine that
    // builds.
    let sizes =
        program("find").arg(stage.root()).args(["-type", "f", "-printf", "%s\n"]).output()?;
    let bytes: u64 = sizes.lines().filter_map(|size| size.parse::<u64>().ok()).sum();
    let size = bytes.div_ceil(1024).to_string();
    stage.put("DEBIAN/control", control(version, &size, &depends).as_bytes(), 0o644)?;
    let sums = "cd \"$0\" && find usr -type f | LC_ALL=C sort | xargs -d '\\n' md5sum";
    let sums = program("sh").args(["-c", sums]).arg(stage.root()).output()?;
    stage.put("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;

    // More threads would cut the data into other pieces.
    program("dpkg-deb")
        .env("SOURCE_DATE_EPOCH", &time.to_string())
        .args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"])
        .arg(stage.root())
        .arg(to)
        .run()
}

const HEADER: &str = "\
Atoll: files for isolated programs. Copyright 2026 The Atoll authors.

Licensed under either of the Apache License 2.0 or MIT, at your option. Both follow, and after them
what others have written that is in the program.

";

/// The file `control`. Debian writes a pre-release with a tilde.
fn control(version: &str, kibibytes: &str, depends: &str) -> String {
    let version = version.replacen('-', "~", 1);
    let maintainer = match (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
        (Ok(name), Ok(address)) => format!("{name} <{address}>"),
        _ => "The Atoll authors".into(),
    };
    format!(
        "\
Package: atoll
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Depends: {depends}
Recommends: fuse3
Suggests: qemu-system-x86
Section: utils
Priority: optional
Description: files for isolated programs, in one file or device
 A volume is a file system in a file, a block device or memory. What has
 returned to a program is in the volume whatever process ends, and after
 fsync it survives power loss. The command atoll makes, checks, mounts and
 serves volumes, and runs unmodified programs on them.
"
    )
}

/// The packages that `binary` needs, the C library in the oldest version that has all that it
/// calls.
fn depends(binary: &Path) -> Result<String, Failure> {
    let dynamic = program("readelf").arg("--dynamic").arg(binary).output()?;
    packages(&dynamic, &read(binary)?)
}

fn packages(dynamic: &str, binary: &[u8]) -> Result<String, Failure> {
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let needed = needed.filter_map(|line| line.split(['[', ']']).nth(1));
    let mut packages = BTreeSet::new();
    for library in needed {
        let Some((_, package)) = LIBRARIES.iter().find(|(name, _)| *name == library) else {
            return Err(Failure(format!("no package is known that has {library}")));
        };
        packages.insert(*package);
    }
    let Some((major, minor)) = newest(binary) else {
        return Err(Failure("the program names no version of the C library".into()));
    };
    let with_version = |package: &str| match package {
        "libc6" => format!("libc6 (>= {major}.{minor})"),
        _ => package.into(),
    };
    Ok(packages.into_iter().map(with_version).collect::<Vec<_>>().join(", "))
}

/// The newest version of the C library that the bytes of a program name.
fn newest(binary: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_2.";
    let versions = binary.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
    let minor = versions.filter_map(|(at, _)| {
        let digits = binary[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        String::from_utf8(digits.copied().collect()).ok()?.parse::<u32>().ok()
    });
    Some((2, minor.max()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: &str = " 0x1 (NEEDED) Shared library: [libgcc_s.so.1]\n\
                           0x1 (NEEDED) Shared library: [libc.so.6]\n 0xe (SONAME) [libx.so]\n";

    #[test]
    fn what_it_depends_on() {
        let binary = b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0";
        assert_eq!(packages(NEEDED, binary).unwrap(), "libc6 (>= 2.34), libgcc-s1");
        packages(NEEDED, b"").unwrap_err();
        packages("(NEEDED) Shared library: [libz.so.1]", binary).unwrap_err();
    }

    #[test]
    fn a_version_before_a_version_sorts_before_it() {
        assert!(control("0.2.0-rc.1", "1", "libc6").contains("\nVersion: 0.2.0~rc.1\n"));
        assert!(control("0.2.0", "1", "libc6").contains("\nVersion: 0.2.0\n"));
    }
}
