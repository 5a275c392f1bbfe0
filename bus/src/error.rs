//! Errors, sorted by what the caller does next.

use std::path::PathBuf;
use std::time::Duration;

/// A rule that a [`BusConfig`](crate::BusConfig) breaks.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No server is named.
    #[error("no NATS server is named")]
    NoServer,
    /// A server address does not parse. The text is given without its credentials.
    #[error("NATS address {address:?} is not valid: {reason}")]
    Address {
        /// The address, without user and password.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More than one way to log in is given, or two addresses carry different credentials.
    #[error("NATS credentials are given twice: {first} and {second}; give one")]
    CredentialsTwice {
        /// The first way.
        first: &'static str,
        /// The second way.
        second: &'static str,
    },
    /// A user without a password, or the reverse.
    #[error("NATS {given} is given without {missing}")]
    Incomplete {
        /// What is there.
        given: &'static str,
        /// What is not.
        missing: &'static str,
    },
    /// A file that is named can't be read.
    #[error("{what} {path:?} can't be read: {source}")]
    File {
        /// What the file is for.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// Why it can't be read.
        source: std::io::Error,
    },
    /// An inbox or reply prefix is not a plain subject outside the reserved ones.
    #[error(
        "inbox prefix {0:?} is not valid: it needs tokens of A-Z a-z 0-9 _ -, and may not begin with `continuum`"
    )]
    InboxPrefix(String),
    /// A number is outside its range.
    #[error("{what} is {value}; allowed are {allowed}")]
    Range {
        /// Which setting.
        what: &'static str,
        /// What was given.
        value: String,
        /// The range, in words.
        allowed: &'static str,
    },
}

/// Why a subscription was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The subject or the group would break the protocol.
    #[error("{0:?} is not a valid subject or queue group")]
    Invalid(String),
    /// The client's queue stayed full.
    #[error("the NATS client did not take the subscription in time")]
    TimedOut,
    /// The bus is closed.
    #[error("the bus is closed")]
    Closed,
}

/// Why a request has no answer.
///
/// After [`RequestError::TimedOut`] and [`RequestError::Disconnected`] the request may still have been served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nobody listens on the subject; nothing was served.
    #[error("nobody answers on {0:?}")]
    NoResponders(String),
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// There is no link, or it broke while waiting.
    #[error("no link to NATS")]
    Disconnected,
    /// The payload is larger than the server takes; nothing was sent.
    #[error("{bytes} bytes are more than the limit of {limit}")]
    TooLarge {
        /// Headers and payload.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The subject would break the protocol.
    #[error("{0:?} is not a valid subject")]
    InvalidSubject(String),
    /// The bus is closed.
    #[error("the bus is closed")]
    Closed,
}

/// Why an answer was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RespondError {
    /// The message asks for no answer.
    #[error("the message has no reply subject")]
    NoReply,
    /// The reply subject lies outside the configured inbox prefix. Answering it could act on the server in the
    /// name of this process, so it is refused.
    #[error("the reply subject {0:?} is not an inbox; no answer is sent")]
    NotAnInbox(String),
    /// The answer is larger than the server takes.
    #[error("{bytes} bytes are more than the limit of {limit}")]
    TooLarge {
        /// Headers and payload.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// There is no link.
    #[error("no link to NATS")]
    Disconnected,
}

/// Why a round trip to the server did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// There is no link, or it broke while waiting.
    #[error("no link to NATS")]
    Disconnected,
    /// The server did not answer in time.
    #[error("the NATS server did not answer in time")]
    TimedOut,
}

/// What went wrong with the signal stream.
///
/// [`SignalError::Disconnected`] and [`SignalError::TimedOut`] pass by themselves: try again. After either of them a
/// publish may still have been stored, so publish again with the same delivery id. The others need somebody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// There is no link, or it broke while waiting.
    #[error("no link to NATS")]
    Disconnected,
    /// The server did not answer in time.
    #[error("the NATS server did not answer in time")]
    TimedOut,
    /// Nobody stores signals: JetStream is off, or no worker has made the stream yet.
    #[error("no signal stream {0:?}: JetStream is off, or no worker has run yet")]
    NoStream(String),
    /// The signal is larger than allowed; nothing was sent.
    #[error("a signal of {bytes} bytes is more than the limit of {limit}")]
    TooLarge {
        /// Headers and payload.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The delivery id can't be a header or a key.
    #[error("the delivery id is not valid: {0}")]
    DeliveryId(String),
    /// The stream exists with settings that break a promise of the bus; each difference is named.
    #[error("stream {stream:?} is not as Continuum needs it: {}", .differences.join("; "))]
    StreamDiffers {
        /// Its name.
        stream: String,
        /// Each setting, with what was found and what is wanted.
        differences: Vec<String>,
    },
    /// The consumer exists with settings that the server can't change in place.
    #[error("consumer {consumer:?} is not as Continuum needs it: {}", .differences.join("; "))]
    ConsumerDiffers {
        /// Its name.
        consumer: String,
        /// Each setting, with what was found and what is wanted.
        differences: Vec<String>,
    },
    /// The server refused, for example because its storage is full.
    #[error("NATS refused: {description} (code {code})")]
    Refused {
        /// The server's error code, 0 if it gave none.
        code: u64,
        /// The server's words.
        description: String,
    },
}
