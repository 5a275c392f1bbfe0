//! Equality of payloads that were encoded at different times.

use continuum_schema::{Format, Payload};
use rmpv::Value;

/// How deep a value may be nested: as deep as a payload may be to be decoded. Each level is a stack frame or several.
const DEPTH_MAX: usize = 128;

/// Whether two payloads hold the same value, whatever the order in which their maps were written: a `HashMap` is
/// encoded in another order each time.
pub(crate) fn equal(a: &Payload, b: &Payload) -> bool {
    if a == b {
        return true;
    }
    match (a.format(), b.format()) {
        (Ok(Format::MessagePack), Ok(Format::MessagePack)) => {
            let (a, b) = (message_pack(a), message_pack(b));
            a.is_some() && a == b
        }
        (Ok(Format::Json), Ok(Format::Json)) => {
            let (a, b) = (json(a), json(b));
            a.is_some() && a == b
        }
        _ => false,
    }
}

/// A short text of a payload for an error message.
pub(crate) fn preview(payload: &Payload) -> String {
    const CHARACTERS_MAX: usize = 160;
    let text = match payload.format() {
        Ok(Format::Json) => String::from_utf8_lossy(payload.body()).into_owned(),
        Ok(Format::MessagePack) => match read(payload) {
            Some(value) => value.to_string(),
            None => format!("{payload:?}"),
        },
        Err(_) => format!("{payload:?}"),
    };
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The bytes of the value with the entries of every map in the order of their keys' bytes. Bytes, not values, are
/// compared, so that a NaN equals itself.
fn message_pack(payload: &Payload) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(payload.len());
    write_sorted(&read(payload)?, &mut bytes)?;
    Some(bytes)
}

fn read(payload: &Payload) -> Option<Value> {
    let mut rest = payload.body();
    let value = rmpv::decode::read_value_with_max_depth(&mut rest, DEPTH_MAX).ok()?;
    rest.is_empty().then_some(value)
}

fn json(payload: &Payload) -> Option<serde_json::Value> {
    serde_json::from_slice(payload.body()).ok()
}

fn write_sorted(value: &Value, out: &mut Vec<u8>) -> Option<()> {
    match value {
        Value::Array(items) => {
            head(out, 0xdd, items.len())?;
            items.iter().try_for_each(|item| write_sorted(item, out))
        }
        Value::Map(entries) => {
            let mut sorted = entries
                .iter()
                .map(|(key, value)| {
                    let mut bytes = Vec::new();
                    write_sorted(key, &mut bytes)?;
                    Some((bytes, value))
                })
                .collect::<Option<Vec<_>>>()?;
            sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
            head(out, 0xdf, sorted.len())?;
            for (key, value) in sorted {
                out.extend_from_slice(&key);
                write_sorted(value, out)?;
            }
            Some(())
        }
        leaf => rmpv::encode::write_value(out, leaf).ok(),
    }
}

/// The head of an array or a map in its longest form, so that the length alone never makes a difference.
fn head(out: &mut Vec<u8>, mark: u8, len: usize) -> Option<()> {
    out.push(mark);
    out.extend_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    #[test]
    fn maps_in_another_order_are_equal_at_any_depth() {
        let pairs: Vec<(String, u32)> = (0..40).map(|i| (format!("k{i}"), i)).collect();
        let sorted: BTreeMap<_, _> = pairs.iter().cloned().collect();
        let hashed: HashMap<_, _> = pairs.iter().cloned().collect();
        let (a, b) = (
            Payload::encode(&vec![&sorted]).unwrap(),
            Payload::encode(&vec![&hashed]).unwrap(),
        );
        assert_ne!(a, b);
        assert!(equal(&a, &b));
    }

    #[test]
    fn other_values_other_formats_and_damage_are_not_equal() {
        let one = Payload::encode(&1_u8).unwrap();
        assert!(!equal(&one, &Payload::encode(&2_u8).unwrap()));
        assert!(!equal(&one, &Payload::from_json(b"1").unwrap()));
        assert!(!equal(
            &Payload::from_bytes(vec![1, 0xc1]),
            &Payload::from_bytes(vec![1])
        ));
        assert!(equal(
            &Payload::from_json(br#"{"a":1,"b":2}"#).unwrap(),
            &Payload::from_json(br#"{ "b":2, "a":1 }"#).unwrap()
        ));
    }

    #[test]
    fn a_nan_equals_itself_inside_a_reordered_map() {
        let entry = |k: &str, f: f64| (Value::from(k), Value::F64(f));
        let encode = |entries| {
            let mut bytes = vec![1];
            rmpv::encode::write_value(&mut bytes, &Value::Map(entries)).unwrap();
            Payload::from_bytes(bytes)
        };
        let a = encode(vec![entry("a", f64::NAN), entry("b", 1.0)]);
        let b = encode(vec![entry("b", 1.0), entry("a", f64::NAN)]);
        assert!(equal(&a, &b));
    }

    #[test]
    fn a_preview_is_short_and_readable() {
        let payload = Payload::encode(&BTreeMap::from([("cents", 5)])).unwrap();
        assert_eq!(preview(&payload), r#"{"cents": 5}"#);
        let long = Payload::encode(&"é".repeat(1000)).unwrap();
        assert!(preview(&long).chars().count() <= 161);
        assert_eq!(
            preview(&Payload::from_bytes(vec![])),
            "Damaged(the payload is empty)"
        );
    }
}
