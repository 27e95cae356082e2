//! The GPT-2 byte alphabet: byte-level vocabularies spell each byte as one printable character.

use std::sync::LazyLock;

use ahash::AHashMap;

static BYTES: LazyLock<AHashMap<char, u8>> = LazyLock::new(|| {
    // Printable bytes stand for themselves; the others take the characters from U+0100 on, in order.
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    let mut map = AHashMap::new();
    for byte in 0..=255u8 {
        let code = if printable(byte) { u32::from(byte) } else { next };
        next += u32::from(!printable(byte));
        map.insert(char::from_u32(code).unwrap_or('\u{fffd}'), byte);
    }
    map
});

pub fn to_byte(character: char) -> Option<u8> {
    BYTES.get(&character).copied()
}

/// The bytes a token stands for; a token with a character outside the alphabet (an added one) is its own text.
pub fn token_bytes(token: &str) -> Vec<u8> {
    token.chars().map(to_byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}
