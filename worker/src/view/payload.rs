//! Payloads as people and programs read them.
//!
//! JSON stays the text that it was. MessagePack is written as JSON where JSON can say the same, integers with all their
//! 64 bits; what JSON has no word for (binary data, odd map keys, NaN) is written in a notation of its own, and the value
//! is then marked as inexact.

use std::fmt::Write as _;

use continuum_schema::{Format, Payload};
use rmpv::Value;
use serde::Serialize;
use serde_json::value::RawValue;

/// How deep a value may be nested to be shown as such; the same limit as that of JSON here.
const DEPTH_MAX: usize = 128;

/// A payload in a JSON document: `{"format": …, "value": …}` where JSON can hold the value, else
/// `{"format": …, "text": …, "hex": …}`.
#[derive(Debug, Serialize)]
pub(crate) struct PayloadView {
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl PayloadView {
    pub(crate) fn new(payload: &Payload) -> Self {
        let format = match payload.format() {
            Ok(Format::Json) => "json",
            Ok(Format::MessagePack) => "messagepack",
            Err(_) => "unknown",
        };
        let Rendered { text, exact } = render(payload);
        let value = exact
            .then(|| RawValue::from_string(text.clone()).ok())
            .flatten();
        let inexact = value.is_none();
        Self {
            format,
            value,
            text: inexact.then_some(text),
            hex: inexact.then(|| hex(payload.body())),
        }
    }
}

/// The whole payload, safe for a terminal.
pub(crate) fn full(payload: &Payload) -> String {
    escape_controls(&render(payload).text, true)
}

/// The payload on one line of at most `chars_max` characters.
pub(crate) fn short(payload: &Payload, chars_max: usize) -> String {
    one_line(&render(payload).text, chars_max)
}

/// The payload up to `chars_max` characters, with a note where something was left out.
pub(crate) fn cut(payload: &Payload, chars_max: usize) -> String {
    let text = full(payload);
    match text.char_indices().nth(chars_max) {
        None => text,
        Some((end, _)) => format!(
            "{}… ({} bytes in all; `--format json` shows everything)",
            &text[..end],
            payload.body().len()
        ),
    }
}

/// Any text on one line of at most `chars_max` characters, safe for a terminal.
pub(crate) fn one_line(text: &str, chars_max: usize) -> String {
    let spaced = text.replace(['\n', '\r', '\t'], " ");
    let safe = escape_controls(spaced.trim(), false);
    match safe.char_indices().nth(chars_max) {
        None => safe,
        Some((end, _)) => format!("{}…", &safe[..end]),
    }
}

/// Escapes what could steer a terminal, or turn the direction of writing around, as JSON would.
pub(crate) fn escape_controls(text: &str, keep_lines: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let kept = keep_lines && matches!(c, '\n' | '\t');
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if (c.is_control() || turns) && !kept {
            push(&mut safe, format_args!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
    }
    safe
}

struct Rendered {
    text: String,
    /// Whether the text is JSON that says the same as the payload.
    exact: bool,
}

fn render(payload: &Payload) -> Rendered {
    let body = payload.body();
    match payload.format() {
        Ok(Format::Json) => match std::str::from_utf8(body) {
            Ok(text) => Rendered {
                text: text.to_owned(),
                exact: true,
            },
            Err(error) => damaged(&error, body),
        },
        Ok(Format::MessagePack) => {
            let mut rest = body;
            match rmpv::decode::read_value_with_max_depth(&mut rest, DEPTH_MAX) {
                Ok(value) if rest.is_empty() => {
                    let mut rendered = Rendered {
                        text: String::new(),
                        exact: true,
                    };
                    rendered.value(&value);
                    rendered
                }
                Ok(_) => damaged(&format_args!("{} bytes follow the value", rest.len()), body),
                Err(error) => damaged(&error, body),
            }
        }
        Err(error) => damaged(&error, body),
    }
}

fn damaged(reason: &dyn std::fmt::Display, body: &[u8]) -> Rendered {
    Rendered {
        text: format!("damaged ({reason}): x'{}'", hex(body)),
        exact: false,
    }
}

impl Rendered {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Nil => self.text.push_str("null"),
            Value::Boolean(flag) => push(&mut self.text, format_args!("{flag}")),
            Value::Integer(number) => push(&mut self.text, format_args!("{number}")),
            Value::F32(number) => self.float(f64::from(*number)),
            Value::F64(number) => self.float(*number),
            Value::String(text) => match text.as_str() {
                Some(text) => self.string(text),
                None => self.bytes("invalid text ", text.as_bytes()),
            },
            Value::Binary(bytes) => self.bytes("", bytes),
            Value::Ext(kind, bytes) => self.bytes(&format!("ext {kind} "), bytes),
            Value::Array(items) => self.list('[', items, ']', |this, item| this.value(item)),
            Value::Map(entries) => self.list('{', entries, '}', |this, (key, value)| {
                // JSON has keys of text only.
                this.exact &= key.as_str().is_some();
                this.value(key);
                this.text.push(':');
                this.value(value);
            }),
        }
    }

    fn list<T>(
        &mut self,
        open: char,
        items: &[T],
        close: char,
        mut each: impl FnMut(&mut Self, &T),
    ) {
        self.text.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            each(self, item);
        }
        self.text.push(close);
    }

    fn float(&mut self, number: f64) {
        if !number.is_finite() {
            self.exact = false;
        }
        match serde_json::to_string(&number) {
            Ok(text) if number.is_finite() => self.text.push_str(&text),
            _ => push(&mut self.text, format_args!("{number}")),
        }
    }

    fn string(&mut self, text: &str) {
        let quoted = serde_json::Value::from(text).to_string();
        self.text.push_str(&quoted);
    }

    fn bytes(&mut self, what: &str, bytes: &[u8]) {
        self.exact = false;
        push(&mut self.text, format_args!("{what}x'{}'", hex(bytes)));
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            push(&mut text, format_args!("{byte:02x}"));
            text
        })
}

fn push(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part)
        .expect("a String takes whatever is written to it");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn view(payload: &Payload) -> String {
        serde_json::to_string(&PayloadView::new(payload)).unwrap()
    }

    fn packed(value: &Value) -> Payload {
        let mut bytes = vec![Format::MessagePack as u8];
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        Payload::from_bytes(bytes)
    }

    #[test]
    fn integers_keep_64_bits_and_floats_their_digits() {
        for (value, expected) in [
            (Value::from(u64::MAX), "18446744073709551615"),
            (Value::from(i64::MIN), "-9223372036854775808"),
            (Value::F64(0.1), "0.1"),
            (Value::F64(1.0), "1.0"),
        ] {
            let payload = packed(&value);
            assert_eq!(full(&payload), expected);
            assert_eq!(
                view(&payload),
                format!(r#"{{"format":"messagepack","value":{expected}}}"#)
            );
        }
    }

    #[test]
    fn json_stays_the_text_that_it_was() {
        let text = r#"{"b": 123456789012345678901234567890, "a" : 1.10}"#;
        let payload = Payload::from_json(text.as_bytes()).unwrap();
        assert_eq!(full(&payload), text);
        assert_eq!(
            view(&payload),
            format!(r#"{{"format":"json","value":{text}}}"#)
        );
    }

    #[test]
    fn what_json_cannot_say_is_told_as_text_and_bytes() {
        let odd_key = packed(&Value::Map(vec![(Value::from(7), Value::from("seven"))]));
        assert_eq!(full(&odd_key), r#"{7:"seven"}"#);
        assert!(
            view(&odd_key).contains(r#""hex":"8107a5736576656e""#),
            "{}",
            view(&odd_key)
        );
        assert_eq!(full(&packed(&Value::Binary(vec![0, 255]))), "x'00ff'");
        assert_eq!(full(&packed(&Value::F64(f64::NAN))), "NaN");
        assert_eq!(full(&packed(&Value::Ext(5, vec![1]))), "ext 5 x'01'");
        assert!(!view(&packed(&Value::F64(f64::INFINITY))).contains("value"));
    }

    #[test]
    fn damage_and_unknown_formats_are_shown_and_not_hidden() {
        assert!(
            full(&Payload::from_bytes(vec![9, 1]))
                .starts_with("damaged (the payload has the unknown format 9")
        );
        assert!(full(&Payload::from_bytes(vec![])).contains("empty"));
        assert!(full(&Payload::from_bytes(vec![1, 0xc0, 0xc0])).contains("1 bytes follow"));
        assert!(full(&Payload::from_bytes(vec![1, 0x91])).starts_with("damaged"));
        let deep = [vec![1], vec![0x91; 100_000]].concat();
        assert!(full(&Payload::from_bytes(deep)).starts_with("damaged"));
    }

    #[test]
    fn a_struct_reads_like_json_in_the_order_of_its_fields() {
        #[derive(serde::Serialize)]
        struct Order {
            sku: &'static str,
            counts: BTreeMap<String, u8>,
        }
        let order = Order {
            sku: "a\"b",
            counts: BTreeMap::from([("x".into(), 1)]),
        };
        let payload = Payload::encode(&order).unwrap();
        assert_eq!(full(&payload), r#"{"sku":"a\"b","counts":{"x":1}}"#);
        assert!(view(&payload).contains("\"value\""));
    }

    #[test]
    fn no_text_of_a_user_steers_the_terminal() {
        let payload = Payload::encode("\u{9b}31m\u{202e}x\u{7f}").unwrap();
        assert_eq!(full(&payload), r#""\u009b31m\u202ex\u007f""#);
        assert_eq!(one_line("a\nb\u{1b}[0m", 80), "a b\\u001b[0m");
    }

    #[test]
    fn long_values_are_cut_with_a_note() {
        let payload = Payload::encode(&"é".repeat(100)).unwrap();
        assert_eq!(short(&payload, 3), "\"éé…");
        assert!(
            cut(&payload, 10).ends_with("(202 bytes in all; `--format json` shows everything)")
        );
        assert_eq!(cut(&Payload::unit(), 10), "null");
    }
}
