//! What travels: headers, a message, and the format of a signal's payload.

use bytes::Bytes;

/// The header that names the format of a payload.
pub const CONTENT_TYPE: &str = "Content-Type";
/// The header by which the server and Postgres know a signal again.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";

const VERSION_LINE: &str = "NATS/1.0";

/// Headers, in the order they came. Names compare without regard to case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

/// A message as the bus delivers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Where it was sent.
    pub subject: String,
    /// The content.
    pub payload: Bytes,
    /// The headers.
    pub headers: Headers,
    /// Where an answer is awaited. Untrusted: answer with [`Bus::respond`](crate::Bus::respond) only.
    pub reply: Option<String>,
}

/// The format of a signal's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// JSON; also when the header is absent.
    Json,
    /// MessagePack.
    MsgPack,
    /// Something else, as the sender wrote it.
    Unknown(String),
}

/// Why headers can't be sent or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A name is empty or holds a character that a name may not hold.
    #[error("the header name {0:?} is not valid")]
    Name(String),
    /// A value holds a line break.
    #[error("the value of header {0:?} holds a line break")]
    Value(String),
    /// The block does not begin with `NATS/1.0` and an optional status, is not UTF-8, or has a line without a colon.
    #[error("the header block is malformed: {0}")]
    Block(&'static str),
}

impl Headers {
    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header.
    ///
    /// # Errors
    /// [`HeaderError`] if the name or the value would break out of its line.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<(), HeaderError> {
        let (name, value) = (name.into(), value.into());
        let plain = |c: char| c.is_ascii_graphic() && c != ':';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(HeaderError::Name(name));
        }
        if value.contains(['\r', '\n']) {
            return Err(HeaderError::Value(name));
        }
        self.0.push((name, value));
        Ok(())
    }

    /// The first value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(held, _)| held.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All headers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes as they travel; nothing for no headers.
    #[must_use]
    pub fn to_wire(&self) -> Bytes {
        if self.is_empty() {
            return Bytes::new();
        }
        let mut wire = format!("{VERSION_LINE}\r\n");
        for (name, value) in self.iter() {
            wire.extend([name, ": ", value, "\r\n"]);
        }
        wire.push_str("\r\n");
        wire.into()
    }

    /// Reads a block as it travels, by the rules of the NATS client.
    ///
    /// # Errors
    /// [`HeaderError`] if that client could not read it.
    pub fn from_wire(wire: &[u8]) -> Result<Self, HeaderError> {
        let mut headers = Self::new();
        if wire.is_empty() {
            return Ok(headers);
        }
        let text = std::str::from_utf8(wire).map_err(|_| HeaderError::Block("not UTF-8"))?;
        let mut lines = text.lines().peekable();
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix(VERSION_LINE))
            .ok_or(HeaderError::Block("no version line"))?
            .trim();
        if !status.is_empty() && !is_status(status) {
            return Err(HeaderError::Block("the status is not a number"));
        }
        while let Some(line) = lines.next() {
            if line.is_empty() {
                continue;
            }
            let (name, value) = line
                .split_once(':')
                .ok_or(HeaderError::Block("a line without a colon"))?;
            let mut value = value.to_owned();
            while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
                value.push_str(more);
            }
            headers.add(name, value.trim())?;
        }
        Ok(headers)
    }

    pub(crate) fn to_nats(&self) -> async_nats::HeaderMap {
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in self.iter() {
            map.append(name, value);
        }
        map
    }

    pub(crate) fn from_nats(map: &async_nats::HeaderMap) -> Self {
        let mut pairs: Vec<_> = map
            .iter()
            .flat_map(|(name, values)| {
                values
                    .iter()
                    .map(move |value| (name.to_string(), value.to_string()))
            })
            .collect();
        // The client keeps a hash map: sorting gives equal messages equal bytes.
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        Self(pairs)
    }
}

fn is_status(text: &str) -> bool {
    let code = text.split(' ').next().unwrap_or_default();
    code.len() == 3 && !code.starts_with('0') && code.bytes().all(|b| b.is_ascii_digit())
}

impl ContentType {
    /// Reads the header's value. Parameters such as `charset` are passed over.
    #[must_use]
    pub fn parse(value: Option<&str>) -> Self {
        let Some(value) = value else {
            return Self::Json;
        };
        let kind = value.split(';').next().unwrap_or_default().trim();
        let is = |wanted: &str| kind.eq_ignore_ascii_case(wanted);
        if is("application/json") || is("text/json") {
            Self::Json
        } else if is("application/msgpack")
            || is("application/x-msgpack")
            || is("application/vnd.msgpack")
        {
            Self::MsgPack
        } else {
            Self::Unknown(value.to_owned())
        }
    }

    /// The header's value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Json => "application/json",
            Self::MsgPack => "application/msgpack",
            Self::Unknown(text) => text,
        }
    }
}

impl Message {
    pub(crate) fn from_nats(message: async_nats::Message) -> Self {
        Self {
            subject: message.subject.to_string(),
            payload: message.payload,
            headers: message
                .headers
                .as_ref()
                .map(Headers::from_nats)
                .unwrap_or_default(),
            reply: message.reply.map(|reply| reply.to_string()),
        }
    }

    /// Headers and payload, in bytes on the wire: what the server's limit counts.
    pub(crate) fn wire_len(headers: &Headers, payload: &Bytes) -> usize {
        headers.to_wire().len() + payload.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_cannot_break_out_of_its_line() {
        let mut headers = Headers::new();
        for (name, value) in [
            ("A\r\nB", "x"),
            ("A:", "x"),
            ("", "x"),
            ("A", "x\r\nB: y"),
            ("A", "x\ry"),
        ] {
            assert!(headers.add(name, value).is_err(), "{name:?}: {value:?}");
        }
        assert!(headers.is_empty());
    }

    #[test]
    fn headers_survive_the_wire() {
        let mut headers = Headers::new();
        headers.add("Content-Type", "application/json").unwrap();
        headers.add("Trace", "a: b").unwrap();
        assert_eq!(Headers::from_wire(&headers.to_wire()), Ok(headers.clone()));
        assert_eq!(headers.get("content-type"), Some("application/json"));
        assert_eq!(Headers::from_wire(b""), Ok(Headers::new()));
    }

    #[test]
    fn blocks_that_the_client_cannot_read_are_named() {
        for bad in [
            b"NATS/1.0\r\nA: \xff\r\n\r\n".as_slice(),
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\nA: x\ry\r\n\r\n",
            b"NATS/1.0 what\r\n\r\n",
            b"HTTP/1.0\r\n\r\n",
        ] {
            assert!(
                Headers::from_wire(bad).is_err(),
                "{}",
                String::from_utf8_lossy(bad)
            );
        }
        assert!(Headers::from_wire(b"NATS/1.0 404 No Messages\r\n\r\n").is_ok());
    }

    #[test]
    fn content_types_are_read_as_people_write_them() {
        assert_eq!(ContentType::parse(None), ContentType::Json);
        assert_eq!(
            ContentType::parse(Some("Application/JSON; charset=utf-8")),
            ContentType::Json
        );
        assert_eq!(
            ContentType::parse(Some("application/x-msgpack")),
            ContentType::MsgPack
        );
        assert_eq!(
            ContentType::parse(Some("text/xml")),
            ContentType::Unknown("text/xml".into())
        );
    }
}
