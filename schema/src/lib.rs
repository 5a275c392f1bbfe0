//! What Continuum keeps in Postgres, and the only SQL in the tree.

pub mod event;
mod name;
mod payload;

pub use event::{EffectId, Event, Seq};
pub use name::{KEY_BYTES_MAX, Key, NAME_BYTES_MAX, Name, TextError};
pub use payload::{Format, Payload, PayloadError};
