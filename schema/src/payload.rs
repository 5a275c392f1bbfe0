//! Opaque user data: one format byte, then the encoded value.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// How deep a value may be nested. Each level is a stack frame or several of its decoder: a signal of a thousand bytes
/// that opens an array with each of them could end the process. The number is the limit of the decoder of JSON.
const DEPTH_MAX: usize = 127;

/// How the bytes of a [`Payload`] are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MessagePack with named fields; what Continuum writes itself.
    MessagePack = 1,
    /// JSON text as it arrived from outside. It is never transcoded: MessagePack is not human-readable to serde and
    /// JSON is, so a `Uuid` or a map with integer keys would not decode after a blind conversion.
    Json = 2,
}

/// A value on its way through the journal: a format byte (see [`Format`]) followed by the encoded bytes. The byte
/// leaves room for codecs (compression, encryption) in front of the data.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Payload(#[serde(with = "serde_bytes")] Vec<u8>);

/// Why a value can't be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The value has no encoding.
    #[error("the value can't be encoded: {0}")]
    Encode(String),
    /// The bytes don't hold a value of the wanted type.
    #[error("the payload doesn't decode as {wanted}: {reason}")]
    Decode {
        /// The Rust type that was wanted.
        wanted: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// The format byte is not one this build knows.
    #[error("the payload has the unknown format {0}; it was written by a newer build or damaged")]
    Format(u8),
    /// There is not even a format byte.
    #[error("the payload is empty")]
    Empty,
    /// The value is nested deeper than any value may be.
    #[error("the value is nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
}

impl Payload {
    /// Encodes `value` as MessagePack.
    ///
    /// # Errors
    /// [`PayloadError::Encode`] if the type refuses to be serialized, [`PayloadError::TooDeep`] if nobody could decode
    /// what was written.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, PayloadError> {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(Format::MessagePack as u8);
        rmp_serde::encode::write_named(&mut bytes, value)
            .map_err(|e| PayloadError::Encode(e.to_string()))?;
        // Each level takes a byte at least.
        if bytes.len() > DEPTH_MAX
            && let Err(PayloadError::TooDeep) = decode_message_pack::<IgnoredAny>(&bytes[1..])
        {
            return Err(PayloadError::TooDeep);
        }
        Ok(Self(bytes))
    }

    /// Takes JSON text as it is, after checking that it is JSON that can be decoded.
    ///
    /// # Errors
    /// [`PayloadError::Decode`] with the position of the fault, or [`PayloadError::TooDeep`].
    pub fn from_json(text: &[u8]) -> Result<Self, PayloadError> {
        let broken = |reason: String| PayloadError::Decode {
            wanted: "JSON",
            reason,
        };
        // serde_json skips the content of strings that nobody reads, broken UTF-8 included.
        let utf8 = std::str::from_utf8(text).map_err(|e| broken(e.to_string()))?;
        serde_json::from_str::<IgnoredAny>(utf8).map_err(|e| broken(e.to_string()))?;
        // What it skips it skips without recursion, and therefore without a limit.
        if json_depth(text) > DEPTH_MAX {
            return Err(PayloadError::TooDeep);
        }
        Ok(Self::tagged(Format::Json, text))
    }

    /// Takes MessagePack bytes as they are, after checking that they hold exactly one value.
    ///
    /// # Errors
    /// [`PayloadError::Decode`] if they don't, [`PayloadError::TooDeep`] if nobody could decode it.
    pub fn from_message_pack(bytes: &[u8]) -> Result<Self, PayloadError> {
        decode_message_pack::<IgnoredAny>(bytes).map_err(|error| match error {
            PayloadError::Decode { reason, .. } => PayloadError::Decode {
                wanted: "MessagePack",
                reason,
            },
            other => other,
        })?;
        Ok(Self::tagged(Format::MessagePack, bytes))
    }

    /// Takes bytes that already carry their format byte, as read from Postgres.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The payload of the unit value.
    #[must_use]
    pub fn unit() -> Self {
        Self(vec![Format::MessagePack as u8, 0xc0])
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// [`PayloadError`] if the bytes are damaged, of another type, nested too deep, or of an unknown format.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        match self.format()? {
            Format::MessagePack => decode_message_pack(self.body()),
            Format::Json => serde_json::from_slice(self.body()).map_err(|e| decode_error::<T>(&e)),
        }
    }

    /// The format byte, checked.
    ///
    /// # Errors
    /// [`PayloadError::Empty`] or [`PayloadError::Format`].
    pub fn format(&self) -> Result<Format, PayloadError> {
        match self.0.first() {
            Some(1) => Ok(Format::MessagePack),
            Some(2) => Ok(Format::Json),
            Some(other) => Err(PayloadError::Format(*other)),
            None => Err(PayloadError::Empty),
        }
    }

    /// The encoded value without its format byte.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.0.get(1..).unwrap_or_default()
    }

    /// All bytes, the format byte first.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// All bytes, the format byte first.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is not even a format byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn tagged(format: Format, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(body.len() + 1);
        bytes.push(format as u8);
        bytes.extend_from_slice(body);
        Self(bytes)
    }
}

/// How deep arrays and objects are nested in JSON text that is known to be sound.
fn json_depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    deepest
}

/// Skips the rest of a JSON string, its closing quote included.
fn skip_string<'a>(bytes: &mut impl Iterator<Item = &'a u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

/// `rmp_serde::from_slice` accepts trailing bytes; a payload with a tail is damaged and is refused here.
fn decode_message_pack<T: DeserializeOwned>(body: &[u8]) -> Result<T, PayloadError> {
    let mut rest = body;
    let mut decoder = rmp_serde::Deserializer::new(&mut rest);
    // The decoder refuses the level that brings its counter to zero.
    decoder.set_max_depth(DEPTH_MAX + 1);
    let value = T::deserialize(&mut decoder).map_err(|e| match e {
        rmp_serde::decode::Error::DepthLimitExceeded => PayloadError::TooDeep,
        other => decode_error::<T>(&other),
    })?;
    if rest.is_empty() {
        return Ok(value);
    }
    Err(decode_error::<T>(&format!(
        "{} bytes follow the value",
        rest.len()
    )))
}

fn decode_error<T>(reason: &dyn fmt::Display) -> PayloadError {
    PayloadError::Decode {
        wanted: std::any::type_name::<T>(),
        reason: reason.to_string(),
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format() {
            Ok(Format::Json) => write!(f, "Json({})", String::from_utf8_lossy(self.body())),
            Ok(Format::MessagePack) => write!(f, "MessagePack({} bytes)", self.body().len()),
            Err(e) => write!(f, "Damaged({e})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn integers_keep_64_bits_in_both_formats() {
        for n in [0_u64, (1 << 53) + 1, u64::MAX] {
            let packed = Payload::encode(&n).unwrap();
            let json = Payload::from_json(n.to_string().as_bytes()).unwrap();
            assert_eq!(packed.decode::<u64>().unwrap(), n);
            assert_eq!(json.decode::<u64>().unwrap(), n);
        }
        assert_eq!(
            Payload::encode(&i64::MIN).unwrap().decode::<i64>().unwrap(),
            i64::MIN
        );
    }

    #[test]
    fn json_is_decoded_by_type_and_never_transcoded() {
        let json = Payload::from_json(br#"{"7":"seven"}"#).unwrap();
        let map: BTreeMap<u8, String> = json.decode().unwrap();
        assert_eq!(map[&7], "seven");
        let id = Payload::from_json(br#""0190b3c2-0000-7000-8000-000000000000""#).unwrap();
        assert!(id.decode::<uuid::Uuid>().is_ok());
    }

    #[test]
    fn a_value_nested_too_deep_is_refused_in_both_formats() {
        let packed = |count| [vec![0x91; count], vec![0xc0]].concat();
        let json = |count| [vec![b'['; count], vec![b']'; count]].concat();
        let value =
            |count| (0..count).fold(serde_json::json!(7), |inner, _| serde_json::json!([inner]));
        let deepest = [
            Payload::from_message_pack(&packed(DEPTH_MAX)),
            Payload::from_json(&json(DEPTH_MAX)),
            Payload::encode(&value(DEPTH_MAX)),
        ];
        for payload in deepest {
            assert!(payload.unwrap().decode::<serde_json::Value>().is_ok());
        }
        assert_eq!(
            Payload::encode(&value(DEPTH_MAX + 1)),
            Err(PayloadError::TooDeep)
        );
        for count in [DEPTH_MAX + 1, 1_000, 1_000_000] {
            assert_eq!(
                Payload::from_message_pack(&packed(count)),
                Err(PayloadError::TooDeep)
            );
            assert_eq!(Payload::from_json(&json(count)), Err(PayloadError::TooDeep));
        }
    }

    #[test]
    fn brackets_in_text_nest_nothing() {
        let text = format!(r#"{{"a\"{0}\\":["{0}",{{}}],"b":[[]]}}"#, "[".repeat(1_000));
        assert_eq!(json_depth(text.as_bytes()), 3);
        assert!(Payload::from_json(text.as_bytes()).is_ok());
    }

    #[test]
    fn trailing_bytes_unknown_formats_and_broken_json_are_refused() {
        let mut bytes = Payload::encode(&1_u8).unwrap().into_bytes();
        bytes.push(0);
        assert!(Payload::from_bytes(bytes).decode::<u8>().is_err());
        assert_eq!(
            Payload::from_bytes(vec![9, 1]).decode::<u8>(),
            Err(PayloadError::Format(9))
        );
        assert_eq!(
            Payload::from_bytes(vec![]).decode::<u8>(),
            Err(PayloadError::Empty)
        );
        assert!(Payload::from_json(b"{\"a\":").is_err());
        assert!(Payload::from_json(b"\"\xff\"").is_err());
    }
}
