//! One face for both implementations.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::config::{BusConfig, SignalSettings};
use crate::connection::NatsBus;
use crate::consumer::{Kind, Subscription};
use crate::envelope::{Headers, Message};
use crate::error::{BarrierError, ConfigError, RequestError, RespondError, SubscribeError};
use crate::jetstream::JetStreamSignals;
use crate::memory::{MemoryBus, MemorySignals};
use crate::signal::{SignalStream, StreamKind};
use crate::status::{BusStatus, Link};
use crate::subject::Subjects;

/// A link to the other processes of an instance. Cheap to clone; clones share the link.
#[derive(Clone)]
pub enum Bus {
    /// Over NATS.
    Nats(NatsBus),
    /// Inside this process.
    Memory(MemoryBus),
}

impl Bus {
    /// Starts to connect and returns at once, also when no server can be reached: [`status`](Bus::status) tells the
    /// rest. The bus reconnects for ever.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration breaks a rule.
    pub async fn connect(config: BusConfig) -> Result<Self, ConfigError> {
        NatsBus::connect(config).await.map(Self::Nats)
    }

    /// A new hub inside this process.
    #[must_use]
    pub fn memory() -> Self {
        Self::Memory(MemoryBus::new())
    }

    /// What is known of the link, now and at each change.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<BusStatus> {
        self.link().status()
    }

    /// Sends and forgets. Never waits: without a link, or with a full queue, the hint is dropped and counted. So is
    /// one with an ill-formed subject or more bytes than the server takes.
    pub fn hint(&self, subject: &str, payload: Bytes) {
        match self {
            Self::Nats(bus) => bus.hint(subject, payload),
            Self::Memory(bus) => bus.hint(subject, payload),
        }
    }

    /// Hints that were dropped in this process since the bus was made.
    #[must_use]
    pub fn dropped_hints(&self) -> u64 {
        self.link().dropped_hints()
    }

    /// Subscribes to a subject or a filter. Of a queue group, one member gets each message.
    ///
    /// The subscription outlives reconnects. It is in force at the server after the next [`barrier`](Bus::barrier);
    /// what is published before that may be missed.
    ///
    /// # Errors
    /// [`SubscribeError`].
    pub async fn subscribe(
        &self,
        filter: &str,
        group: Option<&str>,
    ) -> Result<Subscription, SubscribeError> {
        let kind = match self {
            Self::Nats(bus) => Kind::Nats(bus.subscribe(filter, group).await?),
            Self::Memory(bus) => Kind::Memory(bus.subscribe(filter, group)?),
        };
        Ok(Subscription(kind))
    }

    /// A round trip to the server: when it ends, every earlier subscription and hint of this bus has reached the
    /// server it is connected to. In a cluster the other servers learn of a subscription a moment later.
    ///
    /// # Errors
    /// [`BarrierError`].
    pub async fn barrier(&self) -> Result<(), BarrierError> {
        match self {
            Self::Nats(bus) => bus.barrier().await,
            Self::Memory(bus) => bus.barrier(),
        }
    }

    /// Asks and waits for one answer.
    ///
    /// # Errors
    /// [`RequestError`]; `NoResponders` comes at once.
    pub async fn request(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        match self {
            Self::Nats(bus) => {
                bus.request(subject, &Headers::new(), payload, timeout)
                    .await
            }
            Self::Memory(bus) => bus.request(subject, payload, timeout).await,
        }
    }

    /// Answers `message`, if its reply subject is an inbox.
    ///
    /// # Errors
    /// [`RespondError`]; `NotAnInbox` is a sign of an attack and worth a log line.
    pub async fn respond(&self, message: &Message, payload: Bytes) -> Result<(), RespondError> {
        self.respond_with(message, &Headers::new(), payload).await
    }

    /// Like [`respond`](Bus::respond), with headers.
    ///
    /// # Errors
    /// As [`respond`](Bus::respond).
    pub async fn respond_with(
        &self,
        message: &Message,
        headers: &Headers,
        payload: Bytes,
    ) -> Result<(), RespondError> {
        match self {
            Self::Nats(bus) => bus.respond(message, headers, payload).await,
            Self::Memory(bus) => bus.respond(message, headers, payload),
        }
    }

    /// The signals of an instance. Nothing is asked of the server before the first use.
    #[must_use]
    pub fn signals(&self, subjects: &Subjects, settings: &SignalSettings) -> SignalStream {
        let kind = match self {
            Self::Nats(bus) => StreamKind::Nats(JetStreamSignals::new(bus.clone(), subjects)),
            Self::Memory(bus) => StreamKind::Memory(MemorySignals::new(bus.clone(), subjects)),
        };
        SignalStream {
            kind,
            subjects: subjects.clone(),
            settings: settings.clone(),
        }
    }

    /// Leaves in order: what was sent before is with the server, subscriptions hand out what they hold and then
    /// end. Takes at most twice the request timeout. The status is `Closed` afterwards, for all clones.
    pub async fn close(&self) {
        match self {
            Self::Nats(bus) => bus.close().await,
            Self::Memory(bus) => bus.close(),
        }
    }

    fn link(&self) -> &Link {
        match self {
            Self::Nats(bus) => &bus.shared.link,
            Self::Memory(bus) => bus.link(),
        }
    }
}
