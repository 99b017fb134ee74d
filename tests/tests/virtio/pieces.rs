//! Where the data of requests lies.

use super::*;

/// Data lies in pieces of the guest's memory, of any size and in any order, as its kernel has pages
/// to give: each byte comes from its place and goes to it, whatever way the memory is reached.
#[test]
fn data_in_many_pieces() {
    const TABLE: u64 = PLACE + 0x1000;
    const PAGES: u64 = MEMORY + (43 << 20);
    let served = Served::new(Options::default());
    for (sealed, seed) in [(true, 1), (false, 2), (true, 3), (false, 4), (true, 5)] {
        let mut rng = Rng::new(seed);
        let mut guest = served.begin("guest", Setup { sealed, ..Setup::default() });
        let (ino, handle) = create(&mut guest, &format!("f{seed}"));
        let mut wanted = vec![0; 3 << 20];
        for round in 0..40u64 {
            let len = 1 + rng.number() % if round % 4 == 0 { 1 << 20 } else { 20_000 };
            let offset = rng.number() % (2 << 20);
            // Some pieces are a page, some are what is left of one, some are empty.
            let mut pieces = Vec::new();
            let (mut left, mut page) = (len, 0);
            while left > 0 && pieces.len() < 250 {
                let here = match pieces.len() {
                    249 => left,
                    _ if rng.chance(30) => rng.number() % (left.min(4096) + 1),
                    _ => left.min(4096),
                };
                pieces.push((PAGES + page, here as u32));
                (left, page) = (left - here, page + here.next_multiple_of(4096).max(4096));
            }
            for at in (1..pieces.len()).rev() {
                pieces.swap(at, (rng.number() % (at as u64 + 1)) as usize);
            }
            let ask = |guest: &mut Guest, opcode, room: bool| {
                let head = [handle.to_le_bytes(), offset.to_le_bytes()].concat();
                let words = [len as u32, 0].map(u32::to_le_bytes).concat();
                let body = [&head[..], &words, &[0; 16]].concat();
                let mut message = request(opcode, 2 * round + 2, ino, &body);
                let sent = message.len() as u32;
                let whole = if room { sent } else { sent + len as u32 };
                message[..4].copy_from_slice(&whole.to_le_bytes());
                guest.write(PLACE, &message);
                let flags = if room { WRITE } else { 0 };
                let data = pieces.iter().map(|&(addr, len)| (addr, len, flags));
                let mut chain = vec![(PLACE, sent, 0)];
                if room {
                    chain.push((PLACE + 0x800, 16, WRITE));
                    chain.extend(data);
                } else {
                    chain.extend(data);
                    chain.push((PLACE + 0x800, 24, WRITE));
                }
                for (index, &(addr, len, flags)) in chain.iter().enumerate() {
                    let more = if index + 1 < chain.len() { NEXT } else { 0 };
                    let next = index as u16 + 1;
                    guest.describe(TABLE, index as u16, (addr, len, flags | more, next));
                }
                let table = (TABLE, 16 * chain.len() as u32, INDIRECT, 0);
                guest.describe(guest.table(1), 60, table);
                guest.offer(1, 60);
                let (head, len) = guest.used(1).expect("an answer");
                assert_eq!(head, 60);
                let mut answer = [0; 24];
                guest.read(PLACE + 0x800, &mut answer);
                assert_eq!(answer[4..8], [0; 4], "round {round}");
                (len, u32::from_le_bytes(answer[16..20].try_into().unwrap()))
            };
            let data = pattern(seed << 32 | round, len as usize);
            let mut rest = &data[..];
            for &(addr, len) in &pieces {
                let (part, others) = rest.split_at(len as usize);
                guest.write(addr, part);
                rest = others;
            }
            assert_eq!(ask(&mut guest, FUSE_WRITE, false), (24, len as u32));
            wanted[offset as usize..][..len as usize].copy_from_slice(&data);
            guest.write(PAGES, &vec![0; page as usize]);
            assert_eq!(ask(&mut guest, FUSE_READ, true).0, 16 + len as u32);
            let mut found = Vec::new();
            for &(addr, len) in &pieces {
                let mut part = vec![0; len as usize];
                guest.read(addr, &mut part);
                found.extend(part);
            }
            assert!(found == data, "seed {seed}, round {round}");
        }
        let size = read(&mut guest, (ino, handle), 0, 1 << 20).len();
        assert_eq!(size, 1 << 20);
        for at in [0, 1 << 20] {
            let found = read(&mut guest, (ino, handle), at, 1 << 20);
            assert!(found == wanted[at as usize..][..found.len()], "seed {seed} at {at}");
        }
        // One place for all of a read: what comes last stays.
        let head = [handle.to_le_bytes(), 0u64.to_le_bytes()].concat();
        let words = [8192, 0].map(u32::to_le_bytes).concat();
        let message = request(FUSE_READ, 999, ino, &[&head[..], &words, &[0; 16]].concat());
        guest.write(PLACE, &message);
        guest.describe(TABLE, 0, (PLACE, message.len() as u32, NEXT, 1));
        guest.describe(TABLE, 1, (PLACE + 0x800, 16, WRITE | NEXT, 2));
        guest.describe(TABLE, 2, (PAGES, 4096, WRITE | NEXT, 3));
        guest.describe(TABLE, 3, (PAGES, 4096, WRITE, 0));
        guest.describe(guest.table(1), 60, (TABLE, 64, INDIRECT, 0));
        guest.offer(1, 60);
        assert_eq!(guest.used(1), Some((60, 16 + 8192)));
        let mut found = vec![0; 4096];
        guest.read(PAGES, &mut found);
        assert!(found == wanted[4096..8192]);
    }
}
