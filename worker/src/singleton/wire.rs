//! What travels between those who ask a resident and the one that holds it.
//!
//! Two forms of a request share the subjects. What begins with a format byte is a [`Payload`] and comes from a
//! [`Client`](crate::Client); its answer is an [`Answer`], encoded the same way. Anything else is JSON, from a program in
//! any language, and so is its answer: `{"token": …, "result": …}` or `{"token": …, "error": {"code": …, "message": …}}`.
//! An empty request on the subject of the name asks who holds it.

use continuum_schema::{Format, Payload, PayloadError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The form of a request, in which its answer goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Of our own clients.
    Packed,
    /// Of anybody.
    Json,
}

/// What a holder answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The token of the one who answers.
    pub(crate) token: i64,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// To the question who holds it: I do.
    Here,
    /// The resident's own answer.
    Done(Payload),
    /// It is not built yet, or is about to end. Nothing was served.
    NotReady,
    /// The request does not decode as what the resident takes.
    Invalid(String),
    /// The resident's code failed.
    Failed(String),
    /// The answer is too large to travel.
    TooLarge(String),
}

/// A request as it is read.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// Who holds it?
    Who(Form),
    /// A request for the resident's own code.
    Ask(Form, Payload),
}

/// The question who holds a resident, as our own clients put it.
pub(crate) fn who() -> Vec<u8> {
    // A format byte with nothing behind it is no value.
    vec![Format::MessagePack as u8]
}

/// Reads a request.
pub(crate) fn read(body: &[u8]) -> Result<Request, (Form, PayloadError)> {
    match body {
        [] => Ok(Request::Who(Form::Json)),
        [1] => Ok(Request::Who(Form::Packed)),
        [1 | 2, ..] => Ok(Request::Ask(
            Form::Packed,
            Payload::from_bytes(body.to_vec()),
        )),
        text => match Payload::from_json(text) {
            Ok(payload) => Ok(Request::Ask(Form::Json, payload)),
            Err(error) => Err((Form::Json, error)),
        },
    }
}

impl Answer {
    /// The bytes that travel.
    pub(crate) fn write(&self, form: Form) -> Result<Vec<u8>, PayloadError> {
        match form {
            Form::Packed => Payload::encode(self).map(Payload::into_bytes),
            Form::Json => {
                serde_json::to_vec(&self.view()).map_err(|e| PayloadError::Encode(e.to_string()))
            }
        }
    }

    /// Reads what [`Answer::write`] wrote for our own clients.
    pub(crate) fn read(body: &[u8]) -> Result<Self, PayloadError> {
        Payload::from_bytes(body.to_vec()).decode()
    }

    fn view(&self) -> View<'_> {
        let error = |code, message: &str| {
            Some(Fault {
                code,
                message: message.to_owned(),
            })
        };
        let (result, error) = match &self.outcome {
            Outcome::Here => (None, None),
            // It was asked in JSON, so it is answered in JSON.
            Outcome::Done(payload) => (serde_json::from_slice(payload.body()).ok(), None),
            Outcome::NotReady => (
                None,
                error("not_ready", "the resident is not ready; ask again"),
            ),
            Outcome::Invalid(message) => (None, error("invalid", message)),
            Outcome::Failed(message) => (None, error("failed", message)),
            Outcome::TooLarge(message) => (None, error("too_large", message)),
        };
        View {
            token: self.token,
            result,
            error,
        }
    }
}

#[derive(Serialize)]
struct View<'a> {
    token: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Fault>,
}

#[derive(Serialize)]
struct Fault {
    code: &'static str,
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_first_byte() {
        assert_eq!(read(b""), Ok(Request::Who(Form::Json)));
        assert_eq!(read(&who()), Ok(Request::Who(Form::Packed)));
        let packed = Payload::encode(&7).unwrap();
        assert_eq!(
            read(packed.as_bytes()),
            Ok(Request::Ask(Form::Packed, packed.clone()))
        );
        let json = Payload::from_json(b" 7").unwrap();
        assert_eq!(read(b" 7"), Ok(Request::Ask(Form::Json, json)));
        assert!(matches!(read(b"seven"), Err((Form::Json, _))));
    }

    #[test]
    fn answers_come_back_whole_and_json_keeps_every_digit() {
        let answer = Answer {
            token: i64::MAX,
            outcome: Outcome::Done(Payload::from_json(b"18446744073709551615").unwrap()),
        };
        let packed = answer.write(Form::Packed).unwrap();
        assert_eq!(Answer::read(&packed), Ok(answer.clone()));
        let json = String::from_utf8(answer.write(Form::Json).unwrap()).unwrap();
        assert_eq!(
            json,
            r#"{"token":9223372036854775807,"result":18446744073709551615}"#
        );
    }

    #[test]
    fn a_fault_is_told_by_its_code() {
        let answer = Answer {
            token: 3,
            outcome: Outcome::NotReady,
        };
        let json = String::from_utf8(answer.write(Form::Json).unwrap()).unwrap();
        assert!(json.contains(r#""code":"not_ready""#), "{json}");
    }
}
