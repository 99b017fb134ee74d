//! Numbers that C states too: both languages take them from one C header.

/// The header of what a program's descriptor and the server's socket carry.
pub const HEADER: &str = include_str!("abi.h");

/// Sixteen random bytes that the server tells a program of a file which it has open. A client that
/// shows them may have the memory of the mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapToken(pub [u8; 16]);

/// The number of `#define NAME NUMBER` in the text of a C header. For constants: a name that is not
/// there ends the build.
///
/// # Panics
/// If `name` is not defined as a number.
pub const fn number(header: &str, name: &str) -> i64 {
    let mut text = header.as_bytes();
    while let Some((_, rest)) = text.split_first() {
        if let Some(line) = after(text, b"\n#define ")
            && let Some(line) = after(line, name.as_bytes())
            && let Some(value) = after(line, b" ")
        {
            return match after(value, b"-") {
                Some(value) => -parse(value),
                None => parse(value),
            };
        }
        text = rest;
    }
    panic!("the header does not define it");
}

/// The rest of `text` after `prefix`, if `text` begins with it.
const fn after<'t>(text: &'t [u8], prefix: &[u8]) -> Option<&'t [u8]> {
    let Some((head, rest)) = text.split_at_checked(prefix.len()) else { return None };
    let mut i = 0;
    while i < prefix.len() {
        if head[i] != prefix[i] {
            return None;
        }
        i += 1;
    }
    Some(rest)
}

/// The number that a line ends with.
const fn parse(text: &[u8]) -> i64 {
    let (base, mut digits) = match after(text, b"0x") {
        Some(digits) => (16, digits),
        None => (10, text),
    };
    let mut value = 0;
    let mut any = false;
    while let Some((&c, rest)) = digits.split_first()
        && c != b'\n'
    {
        let Some(digit) = (c as char).to_digit(base) else { panic!("it is no number") };
        value = value * base as i64 + digit as i64;
        any = true;
        digits = rest;
    }
    assert!(any, "it is no number");
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "/* A */\n#define A_B 0xF5\n#define A -4096\n#define AB 12\n#define C x\n";

    #[test]
    fn numbers() {
        assert_eq!(number(TEXT, "A"), -4096);
        assert_eq!(number(TEXT, "AB"), 12);
        assert_eq!(number(TEXT, "A_B"), 0xf5);
    }

    #[test]
    #[should_panic = "does not define"]
    fn no_such_name() {
        number(TEXT, "B");
    }

    #[test]
    #[should_panic = "no number"]
    fn no_number() {
        number(TEXT, "C");
    }
}
