//! The harness of the integration tests: real servers, shared by all tests of a process; a world a test, which is an
//! instance of its own on them; and the checker that looks at every world when its test is done.

mod bouncer;
mod checker;
mod clock;
pub mod cluster;
mod http;
mod ledger;
mod look;
mod observe;
mod process;
mod programs;
mod proxy;
mod replica;
mod servers;
mod tamper;
mod world;

pub use bouncer::Bouncer;
pub use checker::check;
pub use clock::FakeClock;
pub use http::{Answer, ask};
pub use ledger::{Seen, carried_out, carry_out, compare};
pub use look::{Held, Waits};
pub use observe::{metric, until};
pub use process::{Left, ProcessSettings, WorkerProcess, serve};
pub use proxy::{Cut, Proxy};
pub use replica::{PostgresNode, port_of, postgres_on_a_port};
pub use servers::{Servers, servers};
pub use world::{PATIENCE, World, until_ready};
