//! What a command line says: names, keys and JSON.

use continuum_bus::Subjects;
use continuum_schema::{Key, Name, Payload};
use serde_json::value::RawValue;

use super::split;

/// No refusal is longer, in bytes: it quotes 64 characters at most, each escaped in ten bytes at most.
const REFUSAL_MAX: usize = 800;

/// The first line is a name, the second a key, the rest the JSON of an argument or a file.
///
/// What is accepted is kept as it is, can be stored and can be printed: a name is one token of a subject, a key is text
/// without a NUL, and JSON is embedded into the documents of `--format json` as it stands.
pub fn cli_json(data: &[u8]) {
    let (name_text, rest) = split(data, b"\n");
    let (key_text, json_text) = split(rest, b"\n");
    if let Ok(text) = str::from_utf8(name_text) {
        name(text);
    }
    if let Ok(text) = str::from_utf8(key_text) {
        key(text);
    }
    json(json_text);
}

fn name(text: &str) {
    let name = match text.parse::<Name>() {
        Ok(name) => name,
        Err(error) => {
            return assert!(
                error.to_string().len() < REFUSAL_MAX,
                "a refusal stays short"
            );
        }
    };
    assert_eq!(name.as_str(), text);
    let queue = Subjects::new(&name).queue(&name);
    assert_eq!(queue, format!("continuum.{text}.queue.{text}"));
    assert_eq!(queue.split('.').count(), 4);
    let written = Payload::encode(&name).expect("a name is text");
    assert_eq!(written.decode::<Name>(), Ok(name));
}

fn key(text: &str) {
    let key = match text.parse::<Key>() {
        Ok(key) => key,
        Err(error) => {
            return assert!(
                error.to_string().len() < REFUSAL_MAX,
                "a refusal stays short"
            );
        }
    };
    assert_eq!(key.as_str(), text);
    assert!(!text.contains('\0'));
    let written = Payload::encode(&key).expect("a key is text");
    assert_eq!(written.decode::<Key>(), Ok(key));
}

fn json(text: &[u8]) {
    let payload = match Payload::from_json(text) {
        Ok(payload) => payload,
        Err(error) => {
            return assert!(
                error.to_string().len() < REFUSAL_MAX,
                "a refusal stays short"
            );
        }
    };
    assert_eq!(payload.body(), text);
    let text = str::from_utf8(text).expect("JSON is UTF-8");
    let raw = RawValue::from_string(text.to_owned()).expect("a document can embed it");
    assert_eq!(raw.get().trim(), text.trim());
}
