//! Payloads, which users and foreign programs write.

use std::collections::BTreeMap;
use std::fmt::Debug;

use continuum_schema::{Format, Payload};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// A type such as authors write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) id: String,
    pub(super) lines: Vec<(String, u32)>,
    pub(super) paid: Option<Paid>,
    pub(super) notes: BTreeMap<String, i64>,
}

/// How an [`Order`] was paid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Paid {
    Cash,
    Card { last4: String },
    Transfer(u64),
}

/// The bytes are taken as JSON, as MessagePack, and as a stored payload.
///
/// JSON and MessagePack at the door: what a value can be decoded from is accepted, and is kept byte for byte. A payload
/// that decodes as a type survives being written and read again as that type.
pub fn payload(data: &[u8]) {
    json(data);
    message_pack(data);
    stored(&Payload::from_bytes(data.to_vec()));
}

fn json(text: &[u8]) {
    let readable = serde_json::from_slice::<serde_json::Value>(text).is_ok();
    let Ok(payload) = Payload::from_json(text) else {
        assert!(!readable, "JSON is refused that serde_json reads");
        return;
    };
    accepted(&payload, Format::Json, text);
}

fn message_pack(bytes: &[u8]) {
    let tagged = [&[Format::MessagePack as u8], bytes].concat();
    let readable = Payload::from_bytes(tagged).decode::<serde_json::Value>();
    let Ok(payload) = Payload::from_message_pack(bytes) else {
        assert!(readable.is_err(), "MessagePack is refused that decodes");
        return;
    };
    accepted(&payload, Format::MessagePack, bytes);
}

fn accepted(payload: &Payload, format: Format, body: &[u8]) {
    assert_eq!(payload.format(), Ok(format));
    assert_eq!(payload.body(), body);
    assert_eq!(payload.len(), body.len() + 1);
    payload
        .decode::<IgnoredAny>()
        .expect("what is accepted holds one value");
    stored(payload);
}

/// Decodes as whatever an author may have asked for.
fn stored(payload: &Payload) {
    assert!(!format!("{payload:?}").is_empty());
    assert_eq!(payload.is_empty(), payload.as_bytes().is_empty());
    if payload.format().is_err() {
        assert!(payload.decode::<IgnoredAny>().is_err());
    }
    survives::<serde_json::Value>(payload);
    survives::<Order>(payload);
    survives::<String>(payload);
    survives::<u64>(payload);
    survives::<i64>(payload);
    survives::<u128>(payload);
    survives::<bool>(payload);
    survives::<char>(payload);
    survives::<Option<Vec<u8>>>(payload);
    survives::<BTreeMap<u16, String>>(payload);
    survives::<uuid::Uuid>(payload);
    survives::<Payload>(payload);
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(payload: &Payload) {
    let Ok(value) = payload.decode::<T>() else {
        return;
    };
    let written = Payload::encode(&value).expect("what was decoded can be encoded");
    let read: T = written.decode().expect("what was encoded can be decoded");
    assert_eq!(read, value);
}
