//! A credentials file, as `nsc` writes it. It is read again for each connection, so that what expires can be replaced
//! without a restart.

use std::io;
use std::path::Path;

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;

/// A user's token and the key that proves it.
pub(crate) struct Credentials {
    jwt: String,
    key: KeyPair,
}

impl Credentials {
    pub(crate) async fn read(path: &Path) -> io::Result<Self> {
        Self::parse(&tokio::fs::read_to_string(path).await?)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let mut blocks = blocks(text);
        let mut next = |what: &str| {
            let missing = || invalid(format!("it holds no {what}"));
            blocks.next().ok_or_else(missing)
        };
        let (jwt, seed) = (next("user token (JWT)")?, next("user key (seed)")?);
        let key = KeyPair::from_seed(seed).map_err(|e| invalid(format!("its key: {e}")))?;
        Ok(Self {
            jwt: jwt.to_owned(),
            key,
        })
    }

    /// What a server that sent this nonce is answered.
    pub(crate) fn answer(self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        auth.signature = Some(self.key.sign(nonce).map_err(AuthError::new)?);
        auth.jwt = Some(self.jwt);
        Ok(auth)
    }
}

/// The lines between a `---BEGIN …---` and a `---END …---`.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let is_mark = |line: &str, word: &str| line.starts_with("---") && line.contains(word);
    let mut lines = text.lines().map(str::trim);
    std::iter::from_fn(move || {
        lines.by_ref().find(|line| is_mark(line, "BEGIN"))?;
        lines.by_ref().find(|line| !line.is_empty())
    })
    .filter(move |line| !is_mark(line, "END"))
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(jwt: &str, seed: &str) -> String {
        format!(
            "-----BEGIN NATS USER JWT-----\r\n{jwt}\r\n------END NATS USER JWT------\r\n\r\n*** IMPORTANT ***\r\n\
             -----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\r\n"
        )
    }

    #[test]
    fn the_token_and_the_key_are_found_and_sign() {
        let key = KeyPair::new_user();
        let credentials = Credentials::parse(&file("a.b.c", &key.seed().unwrap())).unwrap();
        let auth = credentials.answer(b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some("a.b.c"));
        assert!(key.verify(b"nonce", &auth.signature.unwrap()).is_ok());
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        let reason = |text: &str| Credentials::parse(text).err().unwrap().to_string();
        assert!(reason("").contains("no user token"));
        assert!(reason("-----BEGIN X-----\na.b.c\n-----END X-----").contains("no user key"));
        assert!(reason(&file("a.b.c", "SUNONSENSE")).contains("its key"));
        assert!(reason(&file("", "")).contains("no user token"));
    }
}
