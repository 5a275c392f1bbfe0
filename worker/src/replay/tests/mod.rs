//! Replay, tested as an ordinary function: no runtime, no clock, no database.

mod cancel;
mod drift;
mod effects;
mod foreign;
mod joins;
mod property;
mod sim;
