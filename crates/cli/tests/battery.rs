//! Languages and tools that no one has changed for Atoll: each does a small real job at each place
//! where programs have files, and what came of it is checked there.
#![allow(missing_docs)]

mod common;

use std::process::Command;

use common::everywhere::{Everywhere, Place};
use common::{need, ok};

/// Compiles `c/battery/SOURCE.c` with `compiler` into the host's folder, as `program`.
fn compiled(source: &str, compiler: &str, package: &str, arguments: &[&str]) -> Everywhere {
    need(compiler, package);
    let everywhere = Everywhere::new();
    let from = format!("{}/tests/c/battery/{source}.c", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]);
    command.arg(everywhere.host().join("program")).arg(from).args(arguments);
    ok(&mut command);
    everywhere
}

/// One line of what it prints is `expected`.
fn program(source: &str, compiler: &str, package: &str, arguments: &[&str], expected: &str) {
    compiled(source, compiler, package, arguments).all("\"$HOST/program\"", expected);
}

#[test]
fn static_with_musl() {
    program("files", "musl-gcc", "musl-tools", &["-static"], "files");
}

#[test]
fn address_sanitizer() {
    program("files", "gcc", "gcc", &["-fsanitize=address,undefined", "-g"], "files");
}

#[test]
fn a_program_that_sealed_itself() {
    program("sealed", "gcc", "gcc", &[], "sealed");
}

#[test]
fn lmdb_with_processes() {
    program("lmdb", "gcc", "liblmdb-dev", &["-llmdb"], "lmdb");
}

#[test]
fn io_uring() {
    let everywhere = compiled("ring", "gcc", "liburing-dev", &["-luring"]);
    for &place in Place::all() {
        match everywhere.script(place, "\"$HOST/program\"").trim_end() {
            "no ring" => println!("skipped: this kernel has no io_uring for programs"),
            said => assert_eq!(said, "ring", "{place:?}"),
        }
    }
    everywhere.end();
}

#[test]
fn python() {
    need("python3", "python3");
    let script = r#"python3 - <<'END'
import fcntl, filecmp, json, mmap, os, pathlib, shelve, shutil, tempfile, zipfile
root = pathlib.Path("tree")
for n in range(60):
    at = root / f"d{n % 7}" / f"{n}.json"
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(json.dumps({"n": n, "text": "ä" * n}))
    os.utime(at, ns=(n, 10**18 + n))
shutil.copytree(root, "copy")
shutil.make_archive("all", "zip", root)
zipfile.ZipFile("all.zip").extractall("again")
for other in ("copy", "again"):
    same = filecmp.dircmp(root, other, ignore=[])
    assert not same.left_only and not same.right_only and not same.diff_files, other
    for d in root.iterdir():
        names = [p.name for p in d.iterdir()]
        match, differ, errors = filecmp.cmpfiles(d, f"{other}/{d.name}", names, shallow=False)
        assert sorted(match) == sorted(names), (differ, errors)
assert os.stat("copy/d3/3.json").st_mtime_ns == 10**18 + 3
with shelve.open("shelf") as shelf:
    for n in range(200): shelf[str(n)] = [n] * n
with shelve.open("shelf", "r") as shelf:
    assert all(shelf[str(n)] == [n] * n for n in range(200))
with tempfile.TemporaryFile(dir=".") as f:
    f.write(b"x" * 10000); f.flush()
    with mmap.mmap(f.fileno(), 0) as m:
        m[9999:] = b"y"
        assert m.find(b"y") == 9999
with open("lock", "w") as f:
    fcntl.lockf(f, fcntl.LOCK_EX)
    if os.fork() == 0:
        try: fcntl.lockf(open("lock", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: os._exit(0)
        os._exit(1)
    assert os.wait()[1] == 0
shutil.rmtree("copy"); shutil.rmtree(root)
print(sorted(name for name in os.listdir(".") if not name.startswith("shelf")))
END"#;
    Everywhere::new().all(script, "['again', 'all.zip', 'lock']");
}

#[test]
fn perl() {
    need("perl", "perl");
    let script = r#"perl - <<'END'
use strict; use warnings; use File::Find; use File::Copy; use File::Path qw(make_path remove_tree); use Fcntl qw(:flock);
make_path("a/b/c");
for my $n (1 .. 40) { open(my $f, '>', "a/b/f$n") or die; print $f "line $_ of $n\n" for 1 .. $n; close $f or die; }
copy("a/b/f40", "a/b/c/copy") or die; move("a/b/f1", "a/b/c/moved") or die;
{ local ($^I, @ARGV) = ('.bak', glob 'a/b/f*'); while (<>) { s/line/LINE/; print; } }
my ($lines, $files) = (0, 0);
find(sub { return unless -f; $files++; open(my $f, '<', $_) or die; while (<$f>) { $lines++ if /^LINE/ } }, 'a');
open(my $one, '>>', 'lock') or die; flock($one, LOCK_EX) or die;
open(my $two, '>>', 'lock') or die; die 'locked twice' if flock($two, LOCK_EX | LOCK_NB);
remove_tree('a'); die if -e 'a'; print "$files files, $lines lines\n";
END"#;
    Everywhere::new().all(script, "80 files, 819 lines");
}

#[test]
fn git() {
    need("git", "git");
    let script = r#"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git() { command git -c user.name=a -c user.email=a@b -c gc.auto=0 "$@"; }
git init -q -b main r; cd r
for n in $(seq 120); do mkdir -p "d$((n % 9))"; seq "$n" > "d$((n % 9))/$n"; done
git add .; git commit -qm one
git checkout -qb side; sed -i s/7/seven/ d*/*; git commit -qam two; git mv d1 e1; git commit -qm three
git checkout -q main; echo main > main; git add main; git commit -qm four
git merge -q --no-edit side; git stash list; git worktree add -q ../w side
git gc -q --prune=now; git fsck --strict --no-progress
cd ..; git clone -q --no-hardlinks r clone; git -C clone status --porcelain
diff -r -x .git r clone; git -C clone log --oneline | wc -l; git -C w ls-files | wc -l
rm -rf r/.git/worktrees w"#;
    Everywhere::new().all(script, "5\n120");
}

#[test]
fn a_build() {
    need("make", "make");
    let script = r#"
for n in 1 2 3 4 5 6; do printf '#include "all.h"\nint f%d(int n) { return n * %d + 1; }\n' $n $n > f$n.c; done
printf 'int %s;\n' 'f1(int)' 'f2(int)' 'f3(int)' 'f4(int)' 'f5(int)' 'f6(int)' > all.h
printf '#include <stdio.h>\n#include "all.h"\nint main(void) { printf("%%d\\n", f6(f5(f4(f3(f2(f1(1))))))); }\n' > main.c
printf 'o = $(patsubst %%.c,%%.o,$(wildcard *.c))\np: $o libf.a\n\tgcc -o $@ main.o libf.a\nlibf.a: $(filter f%%,$o)\n\tar rcs $@ $^\n%%.o: %%.c all.h\n\tgcc -O1 -c $<\n' > Makefile
make -s -j3; ./p; make -q p; cp p q; strip q; ./q
touch f3.c; make -s; make -q p; touch all.h; ! make -q p"#;
    Everywhere::new().all(script, "1957\n1957");
}

#[test]
fn tar_and_its_kind() {
    need("tar", "tar");
    let script = r#"
mkdir -p t/d; echo a > t/d/a; ln t/d/a t/hard; ln -s d/a t/soft; mkfifo t/fifo
truncate -s 10M t/sparse; printf x | dd of=t/sparse bs=1 seek=5000000 conv=notrunc status=none
head -c 300000 /dev/zero | tr '\0' z > t/z; chmod 4751 t/z; touch -d '2001-02-03 04:05:06.789' t/d/a
tar --format=posix -cSzf t.tgz t; mkdir u; tar -xSzpf t.tgz -C u; tar -df t.tgz -C u
diff <(cd t && find . -printf '%p %y %m %n %s %T@ %l\n' | grep -v '^\. ' | grep -v ' d ' | sort) \
    <(cd u/t && find . -printf '%p %y %m %n %s %T@ %l\n' | grep -v '^\. ' | grep -v ' d ' | sort)
[ u/t/hard -ef u/t/d/a ]; [ "$(stat -c %b u/t/sparse)" -lt 2000 ]; cmp t/sparse u/t/sparse
cp -a t v; [ v/hard -ef v/d/a ]; chmod u-s v/z; gzip -k v/z; zcat v/z.gz | cmp - t/z; rm -r t u v; ls"#;
    Everywhere::new().all(script, "t.tgz");
}

#[test]
fn rsync() {
    need("rsync", "rsync");
    let script = r#"
mkdir -p from/d; for n in $(seq 50); do seq $((n * 100)) > from/d/$n; done; ln -s d/1 from/l; ln from/d/2 from/h
rsync -aH from/ to/; rsync -aHnic --delete from/ to/
sed -i s/99/ninety/ from/d/4*; rm from/d/3*; seq 20000 >> from/d/2; touch -d 2001-01-01 from/d/1
rsync -aH --delete --inplace --no-whole-file from/ to/; rsync -aHnic --delete from/ to/
rsync -a --link-dest="$PWD/to" from/ next/; [ next/d/1 -ef to/d/1 ]; diff -r from next; ls"#;
    Everywhere::new().all(script, "from\nnext\nto");
}

/// Two processes write while a third reads: each sees whole transactions.
#[test]
fn sqlite_with_processes() {
    need("sqlite3", "sqlite3");
    let script = r#"
sqlite3 db 'PRAGMA journal_mode = WAL; CREATE TABLE t (w, n); CREATE TABLE s (sum)' > mode
write() { for n in $(seq 40); do echo ".timeout 30000
BEGIN IMMEDIATE; INSERT INTO t VALUES ($1, $n); INSERT INTO t VALUES ($1, -$n); COMMIT;"; done | sqlite3 db; }
write 1 & one=$!; write 2 & two=$!
for n in $(seq 10); do sqlite3 -cmd '.timeout 30000' db 'SELECT sum(n) FROM t' >> sums; done
wait $one; wait $two
cat mode; sort -u sums | grep -v '^$' | grep -v '^0$' || true
sqlite3 db 'PRAGMA integrity_check; SELECT w, count(*), sum(abs(n)) FROM t GROUP BY w; PRAGMA wal_checkpoint(TRUNCATE)'
sqlite3 db 'PRAGMA journal_mode = DELETE; SELECT count(*) FROM t'; ls"#;
    let expected = "wal\nok\n1|80|1640\n2|80|1640\n0|0|0\ndelete\n160\ndb\nmode\nsums";
    Everywhere::new().all(script, expected);
}

/// A watcher hears what the programs beside it do, each once and in order.
#[test]
fn a_watcher() {
    need("python3", "python3");
    let script = r#"python3 - <<'END'
import ctypes, os, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK)
NAMES = {0x2: "modify", 0x4: "attrib", 0x8: "close_write", 0x40: "from", 0x80: "to", 0x100: "create", 0x200: "delete"}
os.mkdir("w")
assert libc.inotify_add_watch(fd, b"w", sum(NAMES)) > 0
subprocess.run("echo a > w/f; echo b >> w/f; chmod 600 w/f; mv w/f w/g; rm w/g", shell=True, check=True)
heard, data = [], os.read(fd, 65536)
while data:
    _, mask, _, length = struct.unpack("iIII", data[:16])
    heard.append(NAMES[mask] + " " + data[16:16 + length].rstrip(b"\0").decode())
    data = data[16 + length:]
print(", ".join(heard))
END"#;
    let expected = "create f, modify f, close_write f, modify f, close_write f, attrib f, from f, to g, delete g";
    Everywhere::new().all(script, expected);
}

/// Go makes its calls without a C library. Its package is large, and taken only where it is there.
#[test]
fn go() {
    if !Command::new("go").arg("version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no Go");
        return;
    }
    let everywhere = Everywhere::new();
    let source = everywhere.host().join("main.go");
    std::fs::write(&source, GO).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o", "program", "main.go"]).current_dir(everywhere.host());
    ok(build.env("GOCACHE", everywhere.host().join("cache")).env("CGO_ENABLED", "0"));
    everywhere.all("\"$HOST/program\"", "100 files, 495000 bytes");
}

const GO: &str = r#"package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

func main() {
	var group sync.WaitGroup
	for n := 0; n < 100; n++ {
		group.Add(1)
		go func() {
			defer group.Done()
			name := filepath.Join("d", fmt.Sprint(n%10), fmt.Sprint(n))
			must(os.MkdirAll(filepath.Dir(name), 0o755))
			data := bytes.Repeat([]byte{byte(n)}, n*100)
			must(os.WriteFile(name+".new", data, 0o644))
			must(os.Rename(name+".new", name))
			again, err := os.ReadFile(name)
			must(err)
			if !bytes.Equal(data, again) {
				panic(name)
			}
		}()
	}
	group.Wait()
	files, length := 0, int64(0)
	must(filepath.WalkDir("d", func(_ string, entry fs.DirEntry, err error) error {
		must(err)
		if info, err := entry.Info(); err == nil && entry.Type().IsRegular() {
			files, length = files+1, length+info.Size()
		}
		return nil
	}))
	must(os.RemoveAll("d"))
	fmt.Printf("%d files, %d bytes\n", files, length)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
"#;
