//! All integration tests: one binary, one Postgres, one NATS.

mod api;
mod authoring;
mod bad_input;
mod basics;
mod bus_contract;
mod cli;
mod crash;
mod docs;
mod faults;
mod interleavings;
mod migrations;
mod model;
mod recovery;
mod signals;
mod tidy;
