#!/bin/bash
# Installs what Atoll needs on a Debian machine and is missing: `setup.sh run` to build and use it,
# `setup.sh test` to test and measure it too. Asks nothing, and does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# The linker for Rust, FUSE for mounts, user namespaces for `atoll run`.
packages=(gcc libc6-dev fuse3 util-linux)
case "${1:-test}" in
run) ;;
test)
    # The programs that tests run on a volume, the libraries that C tests are linked with, and what
    # reads the C sources.
    packages+=(cppcheck git make tar dpkg gzip binutils bsdutils procps python3 pkg-config sqlite3 libsqlite3-dev libgdbm-dev postmark nginx wrk)
    # Benchmarks, suites, languages and tools that are tried on volumes, each as it is.
    packages+=(dbench fio fuse2fs stress-ng rsync perl musl-tools liburing-dev liblmdb-dev)
    # Virtual machines: the emulator, the stock virtiofsd, the tools of guests, and what unpacks
    # their kernel.
    packages+=(qemu-system-x86 qemu-system-common busybox-static xz-utils)
    # File systems and disks of guests.
    packages+=(xfsprogs btrfs-progs dmsetup)
    ;;
*)
    echo "usage: $0 run|test" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "$0: not a Debian machine; install what provides: ${missing[*]}" >&2
        exit 1
    fi
    root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "$0: these packages are missing, run as root: apt-get install ${missing[*]}" >&2
            exit 1
        fi
        root=(sudo)
    fi
    echo "installing ${missing[*]}" >&2
    "${root[@]}" apt-get update -q
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

if ! command -v cargo >/dev/null; then
    # rustup's own place, before the shell has read its profile.
    if [ -x "${HOME:-}/.cargo/bin/cargo" ]; then
        echo "$0: Rust is installed but not on PATH; run: . \"\$HOME/.cargo/env\"" >&2
    else
        echo "$0: Rust is missing; install it as https://rustup.rs says" >&2
    fi
    exit 1
fi

# Packages of other releases come from where this machine has its own.
site=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
    'Label: Debian' 2>/dev/null | head -n 1 || true)
site=${site:-http://deb.debian.org/debian/}

# Has apt-get, with the file FOLDER/apt.conf as APT_CONFIG, know the releases that are named, and
# nothing of what is installed here.
know_releases() {
    local apt=$1 name
    shift
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    for name in "$@"; do
        echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $name main"
    done >"$apt/sources.list"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt";
Dir::Cache::archives "$apt/archives";
Dir::Log "$apt";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Default-Release "${*: -1}";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Debug::NoLocking "1";
END
    APT_CONFIG="$apt/apt.conf" apt-get update -q
}

# Kernels of virtual machines, unpacked in the target folder and not installed: this release's, and
# that of a newer one.
wanted=(fs/fuse fs/9p fs/netfs fs/fscache fs/ext4 fs/jbd2 fs/mbcache.ko fs/xfs fs/btrfs net/9p lib crypto)
wanted+=(drivers/virtio drivers/nvme drivers/nvdimm drivers/block/virtio_blk.ko drivers/block/loop.ko)
wanted+=(drivers/md/dm-mod.ko drivers/md/dm-flakey.ko)

# unpack_linux FOLDER [RELEASE]
unpack_linux() {
    local linux=$1 package patterns
    patterns=("${wanted[@]/#/*/kernel/}")
    # One that was unpacked for less is unpacked again.
    [ "$(cat "$linux/wanted" 2>/dev/null)" != "${wanted[*]}" ] || return 0
    rm -rf "$linux.new"
    mkdir -p "$linux.new/modules" "$linux.new/apt"
    if [ -n "${2:-}" ]; then
        export APT_CONFIG
        APT_CONFIG=$(cd "$linux.new/apt" && pwd)/apt.conf
        know_releases "$(cd "$linux.new/apt" && pwd)" "$2" >"$linux.new/log" 2>&1 ||
            tail -n 5 "$linux.new/log" >&2
    fi
    package=$(apt-cache depends linux-image-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    if [ -z "$package" ]; then
        if [ -n "${2:-}" ]; then
            echo "$0: linux-image-amd64 of $2 cannot be had from $site; tests in virtual machines need it" >&2
        else
            echo "$0: the package linux-image-amd64 is not known; run as root: apt-get update" >&2
        fi
        exit 1
    fi
    echo "unpacking $package into $linux" >&2
    (cd "$linux.new" && apt-get download -q "$package" >/dev/null)
    echo "${wanted[*]}" > "$linux.new/wanted"
    # Which of them are there differs by version, and where they are, and how they are packed.
    dpkg-deb --fsys-tarfile "$linux.new"/*.deb |
        tar -x -C "$linux.new/modules" --wildcards '*/boot/vmlinuz-*' \
            "${patterns[@]/%/*}" 2>"$linux.new/log" || true
    find "$linux.new/modules" -name '*.ko.xz' -exec xz -d {} +
    mv "$linux.new/modules"/boot/vmlinuz-* "$linux.new/vmlinuz" || {
        cat "$linux.new/log" >&2
        exit 1
    }
    rm -rf "$linux.new"/*.deb "$linux.new/apt"
    rm -rf "$linux"
    mv "$linux.new" "$linux"
}
suite=trixie
if [ "${1:-test}" = test ]; then
    unpack_linux "${CARGO_TARGET_DIR:-target}/vm/linux"
    (unpack_linux "${CARGO_TARGET_DIR:-target}/vm/newer-linux" "$suite")
fi

# A QEMU that gives devices a window for files (11.1), unpacked beside the kernels and not
# installed, with its own libraries: a newer release's.
qemu=${CARGO_TARGET_DIR:-target}/vm/qemu
if [ "${1:-test}" = test ] && [ ! -e "$qemu/usr/bin/qemu-system-x86_64" ]; then
    echo "unpacking qemu-system-x86 of $suite-backports into $qemu" >&2
    rm -rf "$qemu.new"
    mkdir -p "$qemu.new/root" "$qemu.new/apt"
    apt=$(cd "$qemu.new/apt" && pwd)
    # Nothing of it counts as installed, so that all that it needs is fetched.
    if ! { know_releases "$apt" "$suite" "$suite-backports" &&
        APT_CONFIG="$apt/apt.conf" apt-get install -q -y --download-only \
            --no-install-recommends qemu-system-x86; } >"$qemu.new/log" 2>&1 ||
        ! ls "$apt"/archives/qemu-system-x86_*.deb >/dev/null 2>&1; then
        tail -n 5 "$qemu.new/log" >&2
        rm -rf "$qemu.new"
        echo "$0: qemu-system-x86 of $suite-backports cannot be had from $site;" \
            "the tests of mapped files in virtual machines need it" >&2
        exit 1
    fi
    for package in "$apt"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x -C "$qemu.new/root" --keep-directory-symlink --no-same-owner \
                --exclude=./usr/share/doc --exclude=./usr/share/locale \
                --exclude=./usr/share/man --exclude=./etc --exclude=./var
    done
    rm -rf "$qemu" "$apt"
    mv "$qemu.new/root" "$qemu"
    rm -rf "$qemu.new"
fi

# The toolchain, components and targets that rust-toolchain.toml names. A Rust that rustup does not
# manage is used as it is.
if command -v rustup >/dev/null; then
    rustup toolchain install >/dev/null 2>&1 || rustup show active-toolchain >/dev/null
fi

# Suites of tests that others wrote, below the target folder, each of a fixed version.
suites=${CARGO_TARGET_DIR:-target}/suites
if [ "${1:-test}" = test ]; then
    for suite in pjdfstest@0.2.2 fsx@0.3.2; do
        grep -qs "^\"${suite/@/ } " "$suites/.crates.toml" && continue
        # Not for speed: what they wait for is the file system.
        cargo install --quiet --locked --debug --root "$suites" --target-dir "$suites/build" "$suite"
    done
    rm -rf "$suites/build"
fi
