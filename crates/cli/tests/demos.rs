//! Ordinary programs, unmodified, on real input, with their files on a volume.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{folder, fsck, need, ok, script_ok};

/// The sources of this project: a tree of files that is always there.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn git_clones_and_checks() {
    need("git", "git");
    let dir = folder();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];
        ok(Command::new("git").current_dir(dir.path().join("origin")).args(identity).args(args))
    };
    std::fs::create_dir(dir.path().join("origin")).unwrap();
    git(&["init", "-q", "-b", "main"]);
    // A history of all sources, and of changes to them.
    let tree = sources();
    let list = "git ls-files -z --cached --others --exclude-standard 2>/dev/null || find . -path ./target -prune -o -type f ! -name '*.vol' -print0";
    let mut copy = Command::new("bash");
    copy.current_dir(&tree).arg("-c");
    copy.arg(format!(
        "({list}) | xargs -0 cp --parents -t {}",
        dir.path().join("origin").display()
    ));
    ok(&mut copy);
    git(&["add", "--all"]);
    git(&["commit", "-q", "-m", "all"]);
    for i in 0..30 {
        std::fs::write(dir.path().join("origin/changing"), "line\n".repeat(i * 100)).unwrap();
        git(&["add", "--all"]);
        git(&["commit", "-q", "-m", &format!("change {i}")]);
    }
    let head = git(&["rev-parse", "HEAD"]);
    let printed = script_ok(
        dir.path(),
        "export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=T GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=t@example.org
         cd /vol; git clone -q --no-local \"$OLDPWD/origin\" clone; cd clone
         git fsck --full --strict >&2; git rev-parse HEAD; git status --porcelain
         git checkout -q -b branch HEAD~10; git mv README.md Z 2>/dev/null || git mv Cargo.toml Z; git commit -q -m moved
         git rebase -q main; git repack -q -a -d; git gc -q --prune=now; git fsck --full --strict >&2
         git log --oneline | wc -l; git diff --stat HEAD~1 | tail -1; git worktree add -q ../tree main; git -C ../tree status --porcelain",
    );
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some(head.trim()), "{printed}");
    assert_eq!(lines.next(), Some("32"), "{printed}");
    assert!(lines.next().is_some_and(|line| line.contains("1 file changed")), "{printed}");
    assert_eq!(lines.next(), None);
    fsck(&dir.path().join("atoll.vol"));
}

#[test]
fn tar_brings_all_back() {
    need("tar", "tar");
    let dir = folder();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    // Sources, and what else a tree may have.
    let mut make = Command::new("bash");
    make.current_dir(dir.path().join("tree")).args(["-euc"]).arg(format!(
        "tar -C {} -c --exclude=target --exclude=.git --exclude='*.vol' . | tar -x
         mkdir -p deep/$(printf 'd/%.0s' $(seq 50)); ln -s ../x link; ln Cargo.toml second
         head -c 3000001 /dev/urandom > random; truncate -s 20M sparse; echo end >> sparse; : > empty
         mkfifo fifo; chmod 4711 second; chmod 700 deep; touch -d '1999-12-31 23:59:59.123456789' link Cargo.lock
         for i in $(seq 1500); do echo $i > file-$i; done",
        sources().display()
    ));
    ok(&mut make);
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum; find . -printf '%p %y %m %s %T@ %l %n\\n' | grep -v '^\\. d\\| d ' | sort | sha256sum; find . | sort | sha256sum";
    let outside = ok(Command::new("bash").current_dir(dir.path().join("tree")).args(["-c", sums]));
    // In as an archive, and out of it; then archived there, and out of that here.
    let inside = script_ok(
        dir.path(),
        &format!(
            "tar --format=pax -cSf /vol/in.tar -C tree .; mkdir /vol/tree; cd /vol/tree; tar -xSpf ../in.tar; {sums}
             tar --format=pax -cSf ../out.tar .; cp ../out.tar \"$OLDPWD\"/out.tar; cmp ../out.tar \"$OLDPWD\"/out.tar
             test $(du -k sparse | cut -f1) -lt 100; rm ../in.tar"
        ),
    );
    assert_eq!(inside, outside);
    std::fs::create_dir(dir.path().join("back")).unwrap();
    ok(Command::new("tar").current_dir(dir.path().join("back")).args(["-xSpf", "../out.tar"]));
    let back = ok(Command::new("bash").current_dir(dir.path().join("back")).args(["-c", sums]));
    assert_eq!(back, outside);
    fsck(&dir.path().join("atoll.vol"));
}

#[test]
fn make_compiles() {
    need("make", "make");
    need("gcc", "gcc");
    need("ar", "binutils");
    let dir = folder();
    let printed = script_ok(
        dir.path(),
        r#"mkdir -p /vol/project/src; cd /vol/project
        for i in $(seq 40); do printf '#include "all.h"\nint f%d(int x) { return x + %d; }\n' $i $i > src/f$i.c; done
        (echo '#pragma once'; for i in $(seq 40); do echo "int f$i(int);"; done) > src/all.h
        (echo '#include <stdio.h>'; echo '#include "all.h"'; echo 'int main(void) { int x = 0;'
         for i in $(seq 40); do echo "x = f$i(x);"; done; echo 'printf("%d\n", x); return x != 820; }') > src/main.c
        cat > Makefile <<'END'
OBJECTS := $(patsubst src/%.c,build/%.o,$(wildcard src/*.c))
program: build/main.o libf.a
	gcc -g -o $@ $^
libf.a: $(filter-out build/main.o,$(OBJECTS))
	ar rcs $@ $^
build/%.o: src/%.c src/all.h | build
	gcc -g -O1 -c -o $@ $<
build:
	mkdir build
END
        make -s -j4; ./program; make -s -q
        sleep 0.01; touch src/f7.c; make -n | grep -c 'gcc .*-c'; make -s; ./program
        cp program second; strip second; ./second"#,
    );
    assert_eq!(printed, "820\n1\n820\n820\n");
    fsck(&dir.path().join("atoll.vol"));
}

/// Where the `.recover` of the system's sqlite3 does not work (Debian 12 leaves out a virtual
/// table that it needs), compiles one that has it, and returns the folder to find it in.
fn sqlite_that_recovers(dir: &Path) -> Option<PathBuf> {
    let probe = "sqlite3 probe.db 'create table t(a); insert into t values (7)'
         sqlite3 probe.db .recover | sqlite3 probe2.db
         test \"$(sqlite3 probe2.db 'select a from t')\" = 7";
    let mut works = Command::new("bash");
    works.current_dir(dir).args(["-euo", "pipefail", "-c", probe]);
    if works.output().expect("bash").status.success() {
        return None;
    }
    need("gcc", "gcc");
    let metadata = ok(Command::new(env!("CARGO")).current_dir(sources()).args([
        "metadata",
        "--format-version=1",
        "--locked",
    ]));
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let manifest = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|package| package["name"] == "sqlite3-src")
        .and_then(|package| package["manifest_path"].as_str())
        .expect("sqlite3-src, a dependency of these tests, has SQLite's source");
    let source = Path::new(manifest).with_file_name("source");
    let programs = dir.join("programs");
    std::fs::create_dir(&programs).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.current_dir(source).args(["-w", "-O0", "-DSQLITE_ENABLE_DBPAGE_VTAB", "-o"]);
    gcc.arg(programs.join("sqlite3")).args(["shell.c", "sqlite3.c", "-lm", "-ldl", "-lpthread"]);
    ok(&mut gcc);
    Some(programs)
}

#[test]
fn sqlite_in_both_journal_modes() {
    need("sqlite3", "sqlite3");
    let dir = folder();
    let programs = sqlite_that_recovers(dir.path());
    let path = programs
        .map_or(String::new(), |programs| format!("export PATH={}:$PATH; ", programs.display()));
    for mode in ["DELETE", "WAL"] {
        let lower = mode.to_lowercase();
        let text = path.clone() + &r#"
            cd /vol; mkdir MODE; cd MODE
            sqlite3 db 'pragma journal_mode=MODE; create table t(id integer primary key, a text, b blob); create index i on t(a);'
            sqlite3 db "begin; with recursive c(x) as (select 1 union all select x+1 from c where x<5000)
                        insert into t select x, 'row ' || x, randomblob(200) from c; commit; select count(*) from t;"
            # Writers and readers at once, in processes of their own.
            for w in 1 2 3; do
                (for i in $(seq 20); do sqlite3 -cmd '.timeout 60000' db "insert into t(a, b) values ('writer $w', zeroblob($i))"; done) &
            done
            for i in $(seq 10); do sqlite3 -cmd '.timeout 60000' db 'select count(*) >= 5000 from t' | grep -qx 1; done
            wait
            sqlite3 db "select count(*) from t where a like 'writer%'; delete from t where id % 2; update t set a = a || '!' where id < 1000; pragma integrity_check;"
            # A writer that dies in the middle of its transaction leaves what was before.
            before=$(sqlite3 db 'select count(*), sum(length(a)) from t')
            (echo 'begin; pragma cache_spill=1; pragma cache_size=2;'; for i in $(seq 500); do echo "insert into t(a, b) values ('lost', randomblob(3000));"; done; echo '.shell kill -KILL $PPID') | sqlite3 db > /dev/null 2>&1 || true
            test "$(sqlite3 db 'select count(*), sum(length(a)) from t')" = "$before"
            sqlite3 db 'vacuum; pragma integrity_check;'
            sqlite3 db .dump | sha256sum > sum; sqlite3 db .dump | sqlite3 copy; sqlite3 copy .dump | sha256sum | cmp - sum
            # What .recover finds is all there was.
            sqlite3 db 'pragma wal_checkpoint' > /dev/null
            sqlite3 db .recover | sqlite3 recovered
            sqlite3 recovered 'pragma integrity_check'
            test "$(sqlite3 recovered 'select * from t order by id' | sha256sum)" = "$(sqlite3 db 'select * from t order by id' | sha256sum)"
            # Also of a damaged file.
            cp db broken; printf 'damage, damage, damage' | dd of=broken bs=1 seek=8192 conv=notrunc status=none
            sqlite3 broken .recover | sqlite3 rescued
            sqlite3 rescued 'pragma integrity_check; select count(*) > 1000 from t'
        "#.replace("MODE", mode);
        let printed = script_ok(dir.path(), &text);
        assert_eq!(printed, format!("{lower}\n5000\n60\nok\nok\nok\nok\n1\n"));
    }
    fsck(&dir.path().join("atoll.vol"));
}
