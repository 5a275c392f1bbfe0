//! Signals: the one thing that NATS holds alone, until the transaction that stores it has committed.

use std::time::Duration;

use bytes::Bytes;
use continuum_schema::{Key, Name, TextError};
use uuid::Uuid;

use crate::config::SignalSettings;
use crate::envelope::{CONTENT_TYPE, ContentType, HeaderError, Headers, MESSAGE_ID, Message};
use crate::error::SignalError;
use crate::jetstream::{JetStreamAcker, JetStreamSignals};
use crate::memory::{MemoryAcker, MemorySignals};
use crate::subject::{Subject, SubjectError, Subjects};

/// Span within which the broker itself knows a delivery id again. The lasting memory is in Postgres.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// The durable consumer that all workers of an instance share.
pub(crate) const CONSUMER: &str = "ingest";

/// The signals of one instance: publish them, or ingest them. Cheap to clone.
#[derive(Clone)]
pub struct SignalStream {
    pub(crate) kind: StreamKind,
    pub(crate) subjects: Subjects,
    pub(crate) settings: SignalSettings,
}

#[derive(Clone)]
pub(crate) enum StreamKind {
    Nats(JetStreamSignals),
    Memory(MemorySignals),
}

/// A stored publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishAck {
    /// The broker had this delivery id already and stored nothing new.
    pub duplicate: bool,
}

/// One signal, not yet settled. Commit it, then [`ack`](SignalDelivery::ack); dropped unsettled, it comes again.
#[derive(Debug)]
pub struct SignalDelivery {
    /// The subject as it was sent.
    pub subject: String,
    /// Whom the signal is for and what it is called, or why it can't be taken. A signal that can't be taken belongs
    /// into the rejected signals, and is then [`term`](SignalDelivery::term)inated.
    pub parsed: Result<(Uuid, Name), SignalFault>,
    /// The format of the payload.
    pub content_type: ContentType,
    /// The content.
    pub payload: Bytes,
    /// By which a repeat is known: `Nats-Msg-Id`, else `<stream>:<sequence>:<timestamp in nanoseconds>`.
    pub delivery_id: Key,
    /// The headers as they travel; empty if there are none.
    pub header_bytes: Bytes,
    /// How often the broker has delivered it, this time included; at least 1.
    pub deliveries: u64,
    acker: Acker,
}

/// Why a signal can't be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignalFault {
    /// The subject names no run or no signal.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The `Nats-Msg-Id` can't be a key.
    #[error(transparent)]
    DeliveryId(#[from] TextError),
    /// The headers can't be read. Such a message breaks the NATS client of whoever it is delivered to, so it was
    /// fetched another way.
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

#[derive(Debug)]
pub(crate) enum Acker {
    Nats(JetStreamAcker),
    Memory(MemoryAcker),
}

/// Where a stored message stands; with the stream's name it identifies the message for ever.
pub(crate) struct Place<'a> {
    pub(crate) stream: &'a str,
    pub(crate) sequence: u64,
    pub(crate) nanos: i128,
    pub(crate) deliveries: u64,
}

/// What a signal becomes on its way out.
pub(crate) struct Outgoing {
    pub(crate) subject: String,
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
}

impl SignalStream {
    /// Makes the stream and its consumer, or verifies those that are there. A consumer that differs is brought into
    /// line where the server can do that in place.
    ///
    /// # Errors
    /// [`SignalError::StreamDiffers`] and [`SignalError::ConsumerDiffers`] name what an operator must change.
    pub async fn ensure(&self) -> Result<(), SignalError> {
        match &self.kind {
            StreamKind::Nats(signals) => {
                Box::pin(signals.ensure(&self.subjects, &self.settings)).await
            }
            StreamKind::Memory(signals) => signals.ensure(&self.subjects, &self.settings),
        }
    }

    /// Up to `max` signals. Waits up to `wait` for the first, then takes only what is there already, so `max` is no
    /// reason to wait. An empty answer means that `wait` passed, or that the consumer vanished while waiting: ask again.
    ///
    /// A consumer or stream that vanished is made again. If the future is dropped while it waits, a signal that was
    /// on its way comes again after the acknowledgement wait.
    ///
    /// # Errors
    /// [`SignalError::Disconnected`] if there is no link or it breaks; otherwise as [`SignalStream::ensure`].
    pub async fn next_batch(
        &self,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<SignalDelivery>, SignalError> {
        let max = max.max(1);
        match &self.kind {
            StreamKind::Nats(signals) => {
                signals
                    .next_batch(&self.subjects, &self.settings, max, wait)
                    .await
            }
            StreamKind::Memory(signals) => {
                signals
                    .next_batch(&self.subjects, &self.settings, max, wait)
                    .await
            }
        }
    }

    /// Publishes a signal and waits until the broker has stored it. Without `delivery_id` a repeat is another signal.
    ///
    /// # Errors
    /// [`SignalError`]; nothing was sent if it is `TooLarge`, `DeliveryId` or `NoStream`.
    pub async fn publish(
        &self,
        run: Uuid,
        name: &Name,
        payload: Bytes,
        content_type: &ContentType,
        delivery_id: Option<&str>,
    ) -> Result<PublishAck, SignalError> {
        let headers = headers_for(content_type, delivery_id)?;
        let outgoing = Outgoing {
            subject: self.subjects.signal(run, name),
            headers,
            payload,
        };
        self.check_size(&outgoing)?;
        match &self.kind {
            StreamKind::Nats(signals) => signals.publish(outgoing).await,
            StreamKind::Memory(signals) => signals.publish(&outgoing),
        }
    }

    fn check_size(&self, outgoing: &Outgoing) -> Result<(), SignalError> {
        let bytes = Message::wire_len(&outgoing.headers, &outgoing.payload);
        let server = match &self.kind {
            StreamKind::Nats(signals) => signals.max_payload(),
            StreamKind::Memory(_) => usize::MAX,
        };
        let limit = self.settings.max_message_bytes.min(server);
        if bytes > limit {
            return Err(SignalError::TooLarge { bytes, limit });
        }
        Ok(())
    }
}

fn headers_for(
    content_type: &ContentType,
    delivery_id: Option<&str>,
) -> Result<Headers, SignalError> {
    let mut headers = Headers::new();
    headers
        .add(CONTENT_TYPE, content_type.as_str())
        .map_err(|error| SignalError::Refused {
            code: 0,
            description: error.to_string(),
        })?;
    if let Some(id) = delivery_id {
        let bad = |error: &dyn std::fmt::Display| SignalError::DeliveryId(error.to_string());
        Key::of("delivery id", id).map_err(|error| bad(&error))?;
        // A value is trimmed on its way, and a trimmed id would be another one.
        if id.trim() != id {
            return Err(bad(&"it begins or ends with white space"));
        }
        headers.add(MESSAGE_ID, id).map_err(|error| bad(&error))?;
    }
    Ok(headers)
}

impl SignalDelivery {
    pub(crate) fn new(
        subjects: &Subjects,
        message: Message,
        place: &Place<'_>,
        acker: Acker,
    ) -> Self {
        let id = message.headers.get(MESSAGE_ID);
        let sent_id = id.map(|id| Key::of("delivery id", id)).transpose();
        let parsed = parse(subjects, &message.subject);
        let (delivery_id, parsed) = match sent_id {
            Ok(Some(id)) => (id, parsed),
            Ok(None) => (place.key(), parsed),
            Err(error) => (place.key(), Err(error.into())),
        };
        Self {
            content_type: ContentType::parse(message.headers.get(CONTENT_TYPE)),
            header_bytes: message.headers.to_wire(),
            subject: message.subject,
            payload: message.payload,
            deliveries: place.deliveries,
            parsed,
            delivery_id,
            acker,
        }
    }

    /// A message whose headers the client can't read.
    pub(crate) fn malformed(
        subject: String,
        (header_bytes, payload): (Bytes, Bytes),
        fault: SignalFault,
        place: &Place<'_>,
        acker: Acker,
    ) -> Self {
        Self {
            subject,
            parsed: Err(fault),
            content_type: ContentType::Unknown(String::new()),
            payload,
            delivery_id: place.key(),
            header_bytes,
            deliveries: place.deliveries,
            acker,
        }
    }

    /// Settles the signal: it is stored, don't bring it again. Call it after the commit. A lost acknowledgement
    /// brings the signal again, and the key in Postgres knows it.
    ///
    /// # Errors
    /// [`SignalError::Disconnected`] if there is no link.
    pub async fn ack(&self) -> Result<(), SignalError> {
        match &self.acker {
            Acker::Nats(acker) => acker.ack().await,
            Acker::Memory(acker) => acker.ack(),
        }
    }

    /// Gives the signal back: bring it again after `delay`.
    ///
    /// # Errors
    /// [`SignalError::Disconnected`] if there is no link.
    pub async fn nak(&self, delay: Duration) -> Result<(), SignalError> {
        match &self.acker {
            Acker::Nats(acker) => acker.nak(delay).await,
            Acker::Memory(acker) => acker.nak(delay),
        }
    }

    /// Settles a signal that can't be taken, after its rejection was committed: never bring it again.
    ///
    /// # Errors
    /// [`SignalError::Disconnected`] if there is no link.
    pub async fn term(&self) -> Result<(), SignalError> {
        match &self.acker {
            Acker::Nats(acker) => acker.term().await,
            Acker::Memory(acker) => acker.ack(),
        }
    }
}

impl Place<'_> {
    /// A stream that was deleted and made again counts from 1 again; the timestamp tells the two apart.
    fn key(&self) -> Key {
        let text = format!("{}:{}:{}", self.stream, self.sequence, self.nanos);
        Key::new(text).expect("a stream name of at most 146 bytes and two numbers make a key")
    }
}

fn parse(subjects: &Subjects, subject: &str) -> Result<(Uuid, Name), SignalFault> {
    match subjects.parse(subject)? {
        Subject::Signal { run, name } => Ok((run, name)),
        _ => Err(SubjectError::Unknown.into()),
    }
}
