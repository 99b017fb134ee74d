//! A hostile program: what the loader of the bare image takes from its headers lies where programs
//! may, in order and without overlaps, whatever they say.

use atoll_unikernel::elf::{self, END, HEADER};

use crate::Script;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut file = vec![0; HEADER];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[16] = 2 + script.byte() % 2;
    file[18] = 62;
    file[24..32].copy_from_slice(&number(&mut script).to_le_bytes());
    file[32] = HEADER as u8;
    file[54] = 56;
    let count = 1 + script.below(6) as u8;
    file[56] = count;
    for _ in 0..count {
        // Loaded, interpreter, anything.
        let kind = [1, 1, 1, 3, 6, u32::from(script.byte())][script.below(6) as usize];
        file.extend(kind.to_le_bytes());
        file.extend(u32::from(script.byte()).to_le_bytes());
        for _ in 0..6 {
            file.extend(number(&mut script).to_le_bytes());
        }
    }
    // And a few bytes of it are others.
    for _ in 0..script.below(4) {
        let at = script.below(file.len() as u64) as usize;
        file[at] = script.byte();
    }
    let Ok(header) = elf::header(&file) else { return };
    let table = usize::try_from(header.table).ok();
    let table = table.and_then(|at| file.get(at..at.checked_add(header.table_len())?));
    let Ok(program) = header.program(table.unwrap_or_default()) else { return };
    let lowest = if header.movable { 0 } else { elf::START };
    let mut behind = lowest;
    for segment in &program.segments {
        let pages = segment.pages();
        assert!(
            behind <= pages.start && pages.start < pages.end && pages.end <= END,
            "{segment:?}"
        );
        assert!(segment.length <= segment.memory, "{segment:?}");
        assert!(segment.offset.checked_add(segment.length).is_some(), "{segment:?}");
        behind = pages.end;
    }
    let span = program.span();
    assert!(span.contains(&header.entry), "{header:?}");
    assert!(program.table.is_none_or(|at| span.contains(&at)), "{program:?}");
    if let Some(path) = &program.interpreter {
        assert!(path.end - path.start <= elf::INTERPRETER_MAX, "{path:?}");
    }
}

/// A number as headers have them, or near where something ends.
fn number(script: &mut Script<'_>) -> u64 {
    let near = [0, elf::START, elf::START + 0x3000, END, 1 << 63, 0][script.below(6) as usize];
    match script.byte() % 4 {
        0 => near,
        1 => near.wrapping_add(script.below(0x8000)),
        2 => near.wrapping_sub(script.below(0x8000)),
        _ => (script.below(16)) * 0x1000,
    }
}
