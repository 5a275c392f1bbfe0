//! Names that travel through SQL rows, NATS subjects and command lines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// The name of a workflow, activity, step, signal, queue, namespace or instance: 1 to 128 characters of
/// `A-Z a-z 0-9 _ -`.
///
/// The alphabet is small on purpose: a name is one token of a NATS subject, part of a claim key and a word in a
/// shell, and in none of them may it need escaping. Free text (idempotency keys, delivery ids) is a [`Key`].
///
/// ```
/// use continuum_schema::Name;
/// assert!(Name::new("fraud_review").is_ok());
/// assert!(Name::new("fraud.review").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Why a text is not a [`Name`] or a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Nothing was given.
    #[error("{what} is empty")]
    Empty {
        /// Which text, for example `signal name`.
        what: &'static str,
    },
    /// It is too long.
    #[error("{what} has {bytes} bytes; the limit is {max}")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// It holds a character outside the alphabet.
    #[error("{what} {text:?} holds {found:?}; allowed are A-Z a-z 0-9 _ -")]
    Alphabet {
        /// Which text.
        what: &'static str,
        /// The text, cut to 64 characters.
        text: String,
        /// The first character that is not allowed.
        found: char,
    },
    /// It holds a NUL, which Postgres cannot store in text.
    #[error("{what} holds a NUL character, which can't be stored")]
    Nul {
        /// Which text.
        what: &'static str,
    },
}

impl Name {
    /// Checks `text` and takes it as a name.
    ///
    /// # Errors
    /// [`TextError`] names the rule that `text` breaks.
    pub fn new(text: impl Into<String>) -> Result<Self, TextError> {
        Self::of("name", text)
    }

    /// Like [`Name::new`], with `what` (for example `queue`) in the error.
    ///
    /// # Errors
    /// [`TextError`] names the rule that `text` breaks.
    pub fn of(what: &'static str, text: impl Into<String>) -> Result<Self, TextError> {
        let text = text.into();
        check_length(what, &text, NAME_BYTES_MAX)?;
        match text
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && *c != '_' && *c != '-')
        {
            None => Ok(Self(text)),
            Some(found) => Err(TextError::Alphabet {
                what,
                text: text.chars().take(64).collect(),
                found,
            }),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// A text chosen by a user to name one thing once: an idempotency key, a delivery id. Any characters but NUL, 1 to
/// 512 bytes, compared byte by byte (so `Order-1` and `order-1` differ, and so do NFC and NFD forms).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// Checks `text` and takes it as a key.
    ///
    /// # Errors
    /// [`TextError`] names the rule that `text` breaks.
    pub fn new(text: impl Into<String>) -> Result<Self, TextError> {
        Self::of("key", text)
    }

    /// Like [`Key::new`], with `what` (for example `delivery id`) in the error.
    ///
    /// # Errors
    /// [`TextError`] names the rule that `text` breaks.
    pub fn of(what: &'static str, text: impl Into<String>) -> Result<Self, TextError> {
        let text = text.into();
        check_length(what, &text, KEY_BYTES_MAX)?;
        if text.contains('\0') {
            return Err(TextError::Nul { what });
        }
        Ok(Self(text))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Self, TextError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Key {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(text)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

fn check_length(what: &'static str, text: &str, max: usize) -> Result<(), TextError> {
    if text.is_empty() {
        return Err(TextError::Empty { what });
    }
    if text.len() > max {
        return Err(TextError::TooLong {
            what,
            bytes: text.len(),
            max,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_never_leave_its_subject_token() {
        for hostile in [
            "a.b", "a b", "*", ">", "a\0", "é", "$JS", "a/b", "\"x\"", "",
        ] {
            assert!(Name::new(hostile).is_err(), "{hostile:?}");
        }
        assert!(Name::new("x".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(Name::new("x".repeat(NAME_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn keys_are_compared_byte_by_byte() {
        assert_ne!(Key::new("Order-1").unwrap(), Key::new("order-1").unwrap());
        assert_ne!(Key::new("é").unwrap(), Key::new("e\u{301}").unwrap());
        assert!(Key::new("a\0b").is_err());
    }
}
