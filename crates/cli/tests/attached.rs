//! Commands and programs that are the guests of a virtio-fs device: ours, and the C virtiofsd's.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use atoll_vm::Virtiofsd;
use common::serving::Served;
use common::{atoll, fails, folder, ok, volume};

/// Uses the file system at `socket` by each command that takes one, and by programs.
fn use_all(socket: &Path) {
    let dir = folder();
    let place = format!("vhost-user:{}", socket.display());
    let at = |path: &str| format!("{place}:{path}");
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(dir.path().join("tree/large"), &data).unwrap();
    std::fs::write(dir.path().join("tree/small"), b"some words\n").unwrap();

    ok(atoll().args(["cp", "-r"]).arg(dir.path().join("tree")).arg(at("/")));
    assert_eq!(ok(atoll().args(["cat", &at("/tree/small")])), "some words\n");
    assert_eq!(ok(atoll().args(["ls", &at("/tree")])), "large\nsmall\n");
    ok(atoll().args(["cp", &at("/tree/large")]).arg(dir.path().join("back")));
    assert!(std::fs::read(dir.path().join("back")).unwrap() == data, "what was copied there");
    fails(atoll().args(["cat", &at("/tree/nothing")]), 1);

    let script = "set -e; cd /vol; echo one >made; echo two >>made; mkdir d; mv made d/moved; \
                  cp tree/large d/copy; cmp tree/large d/copy; rm d/copy; cat d/moved; ls d";
    let said = ok(atoll().args(["run", "-v", &place, "--", "sh", "-c", script]));
    assert_eq!(said, "one\ntwo\nmoved\n");
    assert_eq!(ok(atoll().args(["cat", &at("/d/moved")])), "one\ntwo\n");
}

#[test]
fn of_a_volume_that_is_served() {
    let served = Served::start(&["a.vol", "--vhost-user", "g,tag=v"]);
    use_all(&served.path().join("g"));
    // Another client finds what they made.
    assert_eq!(ok(&mut served.run("s/a:/vol", "cat /vol/d/moved")), "one\ntwo\n");
    served.stop();
}

/// The same with a device that tells of changes: what the guest has kept is never old, also while
/// it calls nothing.
#[test]
fn of_a_volume_whose_device_tells_of_changes() {
    let served = Served::start(&["a.vol", "--vhost-user", "g,tag=v,cache=told"]);
    use_all(&served.path().join("g"));
    let mut guest = served.shell(&format!("vhost-user:{}", served.path().join("g").display()));
    assert_eq!(guest.does("cat /vol/d/moved"), "one two");
    for round in 0..20 {
        // The shell waits for its input meanwhile, and nobody calls.
        let there_and_back = "mv /vol/d/moved /vol/d/other; mv /vol/d/other /vol/d/moved";
        let change =
            format!("echo {round} >>/vol/d/moved; {there_and_back}; echo {round} >/vol/n{round}");
        ok(&mut served.run("s/a:/vol", &change));
        assert_eq!(guest.does("tail -n 1 /vol/d/moved"), round.to_string());
        assert_eq!(guest.does(&format!("cat /vol/n{round}")), round.to_string());
        assert_eq!(guest.does(&format!("echo x{round} >>/vol/d/moved; echo")), "");
        let tail = ok(&mut served.run("s/a:/vol", "tail -n 1 /vol/d/moved"));
        assert_eq!(tail, format!("x{round}\n"));
    }
    guest.end();
    served.stop();
}

/// How many ranges of files guests have been shown, when the server has ended.
fn shown(served: Served) -> u64 {
    let folder = served.stop();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let lines = log.lines().filter_map(|line| line.split_once("ranges of files were shown: "));
    lines.map(|(_, count)| count.trim().parse::<u64>().expect("a number")).sum()
}

/// Reads and writes by the window of the device at `place`, of which `there` is a folder for what
/// is made: what is read again and again, and written in place.
fn use_window(place: &str) {
    let script = "set -e; cd /vol
        head -c 8388608 /dev/urandom >/tmp/own.$$; cp /tmp/own.$$ large
        # Past the kernel's page cache, which asks for much at a time.
        for round in 1 2 3 4; do dd if=large bs=4k iflag=direct 2>/dev/null | cmp - /tmp/own.$$; done
        for round in 1 2 3 4; do
            dd if=/dev/urandom of=/tmp/part.$$ bs=256k count=12 2>/dev/null
            dd if=/tmp/part.$$ of=large bs=256k seek=$round conv=notrunc oflag=direct 2>/dev/null
            dd if=/tmp/part.$$ of=/tmp/own.$$ bs=256k seek=$round conv=notrunc 2>/dev/null
            cat large | cmp - /tmp/own.$$
        done
        echo more >>large; echo more >>/tmp/own.$$; cmp large /tmp/own.$$
        truncate -s 5000000 large; truncate -s 5000000 /tmp/own.$$; cmp large /tmp/own.$$
        sync large; cksum <large; cksum </tmp/own.$$; rm /tmp/own.$$ /tmp/part.$$";
    let said = ok(atoll().args(["run", "-v", place, "--", "sh", "-c", script]));
    let sums: Vec<&str> = said.lines().collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{said}");
}

#[test]
fn of_a_volume_with_a_window() {
    // By a length that holds for a second, and by one that is kept until it is told.
    for cache in ["cache=1", "cache=told"] {
        let option = format!("g,tag=v,dax=16M,{cache}");
        let served = Served::start(&["a.vol", "--vhost-user", &option]);
        let socket = served.path().join("g");
        use_all(&socket);
        use_window(&format!("vhost-user:{}", socket.display()));
        assert_eq!(ok(&mut served.run("s/a:/vol", "wc -c </vol/large")).trim(), "5000000");
        assert!(shown(served) > 4, "nothing went by the window: {cache}");
    }
}

#[test]
fn of_a_directory_with_a_window() {
    for dax in ["dax=16M,cache=1", "dax=16M,copies,cache=1"] {
        let dir = folder();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        // The volumes that tests of servers look at.
        for name in ["a.vol", "b.vol"] {
            volume(dir.path(), name, "32M");
        }
        let option = format!("g,tag=d,{dax}");
        let served = Served::again(dir, &["d", "--vhost-user", &option]);
        let socket = served.path().join("g");
        use_all(&socket);
        use_window(&format!("vhost-user:{}", socket.display()));
        let found = std::fs::metadata(served.path().join("d/large")).unwrap().len();
        assert_eq!(found, 5_000_000);
        assert!(shown(served) > 4, "nothing went by the window: {dax}");
    }
}

/// The stock servers, each of which ends with its guest.
#[test]
fn of_a_directory_that_a_virtiofsd_has() {
    let dir = folder();
    let of_each = |arguments: &[&str], expected: &str| {
        Virtiofsd::each(dir.path(), |name, server| {
            std::fs::write(dir.path().join("there"), b"before\n").unwrap();
            let place = format!("vhost-user:{}", server.socket().display());
            let arguments: Vec<String> =
                arguments.iter().map(|a| a.replace("{}", &place)).collect();
            assert_eq!(ok(atoll().args(arguments)), expected, "{name}");
        });
    };
    of_each(&["cat", "{}:/there"], "before\n");
    // The first write is one in which the server takes the file's capabilities away.
    let script = "set -e; cd /vol; rm -rf * ; echo one >made; echo two >>made; cat made
        head -c 3000000 /dev/urandom >large; cp large copy; cmp large copy; chmod 640 copy
        mkdir d; mv copy d/moved; ln d/moved other; stat -c '%a %s %h' other; rm other; ls . d";
    let said = "one\ntwo\n640 3000000 2\n.:\nd\nlarge\nmade\n\nd:\nmoved\n";
    of_each(&["run", "-v", "{}", "--", "sh", "-c", script], said);
    assert_eq!(std::fs::read(dir.path().join("made")).unwrap(), b"one\ntwo\n");
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    assert!(read("large") == read("d/moved"), "what was copied there");
}
