//! What Continuum keeps in Postgres: the types of its rows, and the only SQL in the tree.
//!
//! Postgres decides. Each function here is one round trip and one statement, kept in `queries/<noun>/<verb>.sql`; the
//! statements that write the hot tables call the functions of `migrations/`. Nothing here knows of NATS, of workflow
//! code, or of what a worker has in memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`journal`] | appends, many runs a round trip; histories |
//! | [`lease`] | who may append: claim, release, block, sweep |
//! | [`mailbox`] | signals, activity results, cancel requests that wait for a chain |
//! | [`activity`] | open activities, attempts, results |
//! | [`session`] | the lives of worker processes |
//! | [`resident`] | who holds what the fleet has one of |
//! | [`stray`] | mail and timers that should have woken their run |
//! | [`run`] | starting runs and reading what became of them |
//! | [`migration`], [`partition`] | the shape of the database |
//! | [`event`], [`Payload`], [`Name`], [`Key`] | the words that all layers share |

pub mod activity;
#[doc(hidden)]
pub mod bench;
pub mod clock;
mod database;
mod error;
pub mod event;
mod fault;
#[doc(hidden)]
pub mod floor;
pub mod id;
pub mod invariant;
pub mod journal;
pub mod lease;
pub mod mailbox;
pub mod migration;
mod name;
pub mod partition;
mod payload;
mod pooler;
pub mod resident;
pub mod run;
pub mod session;
pub mod stray;
mod tx;

pub use database::{Connections, Database, DatabaseConfig};
pub use error::{Error, VersionError};
pub use event::{EffectId, Event, Seq};
pub use lease::Lease;
pub use name::{KEY_BYTES_MAX, Key, NAME_BYTES_MAX, Name, TextError};
pub use payload::{Format, Payload, PayloadError};
pub use pooler::Pooler;
