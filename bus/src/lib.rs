//! What Continuum sends over NATS, and the only NATS in the tree.
//!
//! # What the bus promises
//!
//! - **It never decides anything.** A hint carries ids only and is untrusted. Losing every hint costs delay.
//! - **It never stalls its caller.** Connecting returns at once, hints are dropped rather than queued without
//!   bound, and everything that waits has a limit.
//! - **It says when it may have missed something.** [`BusStatus::generation`] rises at each connection, once all
//!   subscriptions are in force again, and whenever a subscription overflowed.
//! - **After a [`Bus::barrier`] earlier subscriptions are in force**, so "subscribe, barrier, read the row" misses
//!   nothing.
//! - **A published signal that was acknowledged is delivered until it is settled**: at least once, in any order,
//!   with a delivery id by which a repeat is known. Settle it after the commit.
//! - **A signal that nobody can read is still delivered**, as a fault to be recorded, and stops nobody else.
//! - **No text of a user leaves its token of a subject**, and nothing is answered outside an inbox.
//!
//! # What it does not promise
//!
//! - That a hint arrives, arrives once, or arrives in order.
//! - That a request which timed out was not served.
//! - Order between signals of different publishers, or after a redelivery. Number them if it matters.
//! - That an acknowledged signal survives a power loss before it is ingested, unless the stream has three replicas
//!   or the server runs with `sync_interval: always`.
//!
//! # Contents
//!
//! [`Subjects`] names everything. [`Bus`] is the link, over NATS ([`BusConfig`]) or in memory ([`MemoryBus`]).
//! [`SignalStream`] holds what must not be lost. [`Service`] shows the process to `nats service ls`.

mod base64;
mod bus;
mod config;
mod connection;
mod consumer;
#[doc(hidden)]
pub mod contract;
mod credentials;
mod envelope;
mod error;
mod jetstream;
mod memory;
mod publisher;
mod service;
mod signal;
mod status;
mod subject;
#[cfg(test)]
mod tests;

pub use bus::Bus;
pub use config::{BusConfig, SignalSettings, TlsConfig};
pub use connection::NatsBus;
pub use consumer::Subscription;
pub use envelope::{CONTENT_TYPE, ContentType, HeaderError, Headers, MESSAGE_ID, Message};
pub use error::{
    BarrierError, ConfigError, RequestError, RespondError, SignalError, SubscribeError,
};
pub use memory::{Chaos, MemoryBus};
pub use service::{API_GROUP, Endpoint, Service, ServiceInfo};
pub use signal::{DUPLICATE_WINDOW, PublishAck, SignalDelivery, SignalFault, SignalStream};
pub use status::{BusState, BusStatus, DisconnectReason};
pub use subject::{Subject, SubjectError, Subjects};
