//! All integration tests: one binary, one Postgres, one NATS.

mod api;
mod authoring;
mod bad_input;
mod basics;
mod bus_contract;
mod cli;
mod clock;
mod commit_points;
mod crash;
mod docs;
mod drain;
mod failover;
mod faults;
mod fuzz;
mod http;
mod interleavings;
mod migrations;
mod model;
mod pooler;
mod publisher;
mod reconciler;
mod recovery;
mod residents;
mod sharing;
mod signals;
mod tidy;
