//! Standard base64, as the server's management interface writes bytes into JSON. Reading only.

/// The bytes; `None` if `text` is not padded base64 of the standard alphabet.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let body = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - body.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(body.len() * 3 / 4);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for letter in body.bytes() {
        bits = (bits << 6) | u32::from(value(letter)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).expect("masked to eight bits"));
        }
    }
    Some(bytes)
}

fn value(letter: u8) -> Option<u8> {
    match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn the_vectors_of_rfc_4648_decode() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode("//79"), Some(vec![0xff, 0xfe, 0xfd]));
        for bad in ["Zg", "Zg=", "Z===", "Zm9v!", "Zm_v"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
