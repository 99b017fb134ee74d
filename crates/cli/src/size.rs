//! Sizes as people write them: `64M`, `1.5G`, `4096`; and as volumes have them, in blocks.

use atoll_block::BLOCK_SIZE;

/// The suffixes and the power of two that each stands for.
const SUFFIXES: [(char, u32); 6] =
    [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

/// Reads a number of bytes, with an optional suffix K, M, G, T, P or E (powers of 1,024; `KiB` and
/// `KB` are the same) and an optional fraction.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "`{text}` is no size: write a number of bytes, or one with a suffix as in 64M, 1.5G or 2T"
        )
    };
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let (number, shift) = SUFFIXES
        .iter()
        .find_map(|&(suffix, shift)| Some((number.strip_suffix(suffix)?, shift)))
        .unwrap_or((number, 0));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return Err(wrong());
    }
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| wrong())? };
    let unit = 1u128 << shift;
    let bytes = whole
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_add(part * unit / 10u128.pow(fraction.len() as u32)))
        .ok_or_else(wrong)?;
    u64::try_from(bytes).map_err(|_| format!("`{text}` is too large"))
}

/// The whole blocks in so many bytes.
pub fn to_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_SIZE as u64
}

/// The bytes of so many blocks.
pub fn of_blocks(blocks: u64) -> u64 {
    blocks * BLOCK_SIZE as u64
}

/// `bytes` for people: three digits and a unit.
pub fn show(bytes: u64) -> String {
    let Some(&(suffix, shift)) = SUFFIXES.iter().rev().find(|&&(_, shift)| bytes >> shift > 0)
    else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let decimals = if value.fract() == 0.0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {suffix}iB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1024),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("1.5G", 3 << 29),
            ("2TB", 2 << 40),
            ("15E", 15 << 60),
            (" 1 ".trim(), 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "M",
            "1..5G",
            "-1",
            "1X",
            "16E",
            "99999999999999999999999999999999999999999",
            ".5G",
            "1e3",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (1 << 30, "1 GiB"),
            (123_456_789, "118 MiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
