//! An order, from the card to the parcel: the workflow that the README quotes, the demo kills and the tests torment. And
//! beside it a resident, the state of which the fleet holds one.
//!
//! | module | holds |
//! | --- | --- |
//! | [`order`] | what goes in and what comes out |
//! | [`flow`] | the workflow |
//! | [`activities`] | its side effects: charge, ship, refund |
//! | [`ledger`] | the outside world, which counts what was really done |
//! | [`faults`] | switches that make things go wrong |
//! | [`also_bought`] | the graph of who bought what, held by one worker, asked by all |

pub mod activities;
pub mod also_bought;
pub mod faults;
pub mod flow;
pub mod ledger;
pub mod order;

use continuum_worker::prelude::*;

pub use activities::{charge_card, refund, ship};
pub use faults::{Faults, Point, When};
pub use flow::order_flow;
pub use ledger::{Deed, Entry, Ledger, Totals};
pub use order::{Order, Outcome, Refund, Review};

/// The orders example as a worker runs it, set up by the environment variables that [`Ledger::from_env`] and
/// [`Faults::from_env`] name.
///
/// # Errors
/// If one of the variables can't be read.
pub fn registry() -> anyhow::Result<Registry> {
    Ok(registry_with(Ledger::from_env(), Faults::from_env()?))
}

/// The orders example with this ledger and with faults that meet every order.
#[must_use]
pub fn registry_with(ledger: Ledger, faults: Faults) -> Registry {
    registry![order_flow, charge_card, ship, refund]
        .state(ledger)
        .state(faults)
}
