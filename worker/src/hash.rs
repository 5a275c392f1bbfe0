//! Folding the hashes of helpers into a workflow's, while the author's program is compiled.
//!
//! A macro sees only its own function, so the hashes of the helpers that a workflow names are known only when
//! constants are evaluated; hence a SHA-256 that is a `const fn`.

/// The scheme's prefix and 32 hexadecimal digits.
const LENGTH: usize = 35;

/// The hash of a workflow together with the helpers that it uses.
#[derive(Clone, Copy)]
pub struct Folded([u8; LENGTH]);

impl Folded {
    /// Folds the hashes of `helpers` into `own`, in their order.
    #[must_use]
    pub const fn new(own: &str, helpers: &[&str]) -> Self {
        let mut hash = Sha256::new().update(own.as_bytes());
        let mut at = 0;
        while at < helpers.len() {
            hash = hash.update(b"\n").update(helpers[at].as_bytes());
            at += 1;
        }
        let digest = hash.finish();
        let mut text = *b"n1:00000000000000000000000000000000";
        let mut at = 0;
        while at < LENGTH - 3 {
            let byte = digest[at / 2];
            let digit = if at % 2 == 0 { byte >> 4 } else { byte & 15 };
            text[at + 3] = b"0123456789abcdef"[digit as usize];
            at += 1;
        }
        Self(text)
    }

    /// The hash as text.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text,
            Err(_) => panic!("hexadecimal digits are ASCII"),
        }
    }
}

/// SHA-256 as FIPS 180-4 defines it. Slow; its inputs are some hundred bytes and it runs in the compiler only.
struct Sha256 {
    state: [u32; 8],
    block: [u8; 64],
    length: usize,
}

impl Sha256 {
    const fn new() -> Self {
        Self {
            state: [
                0x6a09_e667,
                0xbb67_ae85,
                0x3c6e_f372,
                0xa54f_f53a,
                0x510e_527f,
                0x9b05_688c,
                0x1f83_d9ab,
                0x5be0_cd19,
            ],
            block: [0; 64],
            length: 0,
        }
    }

    const fn update(mut self, bytes: &[u8]) -> Self {
        let mut at = 0;
        while at < bytes.len() {
            self = self.push(bytes[at]);
            at += 1;
        }
        self
    }

    const fn push(mut self, byte: u8) -> Self {
        self.block[self.length % 64] = byte;
        self.length += 1;
        if self.length.is_multiple_of(64) {
            self.state = compress(self.state, &self.block);
        }
        self
    }

    const fn finish(mut self) -> [u8; 32] {
        let bits = (self.length as u64 * 8).to_be_bytes();
        self = self.push(0x80);
        while self.length % 64 != 56 {
            self = self.push(0);
        }
        self = self.update(&bits);
        let mut digest = [0; 32];
        let mut at = 0;
        while at < 32 {
            digest[at] = self.state[at / 4].to_be_bytes()[at % 4];
            at += 1;
        }
        digest
    }
}

const fn compress(state: [u32; 8], block: &[u8; 64]) -> [u32; 8] {
    let words = schedule(block);
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
    let mut round = 0;
    while round < 64 {
        let choice = (e & f) ^ (!e & g);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        let first = h
            .wrapping_add(e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25))
            .wrapping_add(choice)
            .wrapping_add(ROUNDS[round])
            .wrapping_add(words[round]);
        let second =
            (a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22)).wrapping_add(majority);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(second));
        round += 1;
    }
    let worked = [a, b, c, d, e, f, g, h];
    let mut next = state;
    let mut at = 0;
    while at < 8 {
        next[at] = next[at].wrapping_add(worked[at]);
        at += 1;
    }
    next
}

const fn schedule(block: &[u8; 64]) -> [u32; 64] {
    let mut words = [0_u32; 64];
    let mut at = 0;
    while at < 64 {
        words[at] = if at < 16 {
            u32::from_be_bytes([
                block[at * 4],
                block[at * 4 + 1],
                block[at * 4 + 2],
                block[at * 4 + 3],
            ])
        } else {
            let (early, late) = (words[at - 15], words[at - 2]);
            let early = early.rotate_right(7) ^ early.rotate_right(18) ^ (early >> 3);
            let late = late.rotate_right(17) ^ late.rotate_right(19) ^ (late >> 10);
            words[at - 16]
                .wrapping_add(early)
                .wrapping_add(words[at - 7])
                .wrapping_add(late)
        };
        at += 1;
    }
    words
}

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
#[rustfmt::skip]
const ROUNDS: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

#[cfg(test)]
mod tests {
    use sha2::Digest as _;

    use super::*;

    #[test]
    fn the_constant_sha_256_is_the_real_one_at_every_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            let expected: [u8; 32] = sha2::Sha256::digest(&bytes[..length]).into();
            assert_eq!(Sha256::new().update(&bytes[..length]).finish(), expected);
        }
    }

    #[test]
    fn a_fold_depends_on_every_helper_and_keeps_the_scheme() {
        const ALONE: Folded = Folded::new("n1:a", &[]);
        const BOTH: Folded = Folded::new("n1:a", &["n1:b", "n1:c"]);
        assert_eq!(BOTH.as_str().len(), LENGTH);
        assert!(BOTH.as_str().starts_with("n1:"));
        let swapped = Folded::new("n1:a", &["n1:c", "n1:b"]);
        let all = [ALONE.as_str(), BOTH.as_str(), swapped.as_str()];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    }
}
