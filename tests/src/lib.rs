//! The harness of the integration tests: real servers, shared by all tests of a process; a world a test, which is an
//! instance of its own on them; and the checker that looks at every world when its test is done.

mod checker;
mod servers;
mod world;

pub use checker::check;
pub use servers::{Servers, servers};
pub use world::{PATIENCE, World, until_ready};
