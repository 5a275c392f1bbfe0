//! All integration tests: one binary, one Postgres, one NATS.

mod authoring;
mod basics;
mod tidy;
