//! The side effects of an order. Each may be asked for several times, since a worker can die after the deed and before
//! its result is stored; the key that every request carries lets the outside world do it once.

use std::sync::Arc;

use anyhow::Context as _;
use continuum_worker::prelude::*;

use crate::faults::When::{After, Before};
use crate::{Deed, Entry, Faults, Ledger, Order, Refund};

/// Charges the customer's card and gives the receipt's number.
#[activity(
    queue = "payments",
    retry(max_attempts = 5, initial = "200ms", max = "10s"),
    timeout = "30s"
)]
pub async fn charge_card(ctx: ActivityContext, order: Order) -> Result<String, ActivityError> {
    perform(&ctx, Deed::Charge, &order).await
}

/// Hands the parcel over and gives its number. The customer has paid, so it never gives up.
#[activity(
    queue = "shipping",
    retry(unlimited, initial = "200ms", max = "10s"),
    timeout = "30s"
)]
pub async fn ship(ctx: ActivityContext, order: Order) -> Result<String, ActivityError> {
    perform(&ctx, Deed::Ship, &order).await
}

/// Gives the money back and gives the refund's number. The customer is owed it, so it never gives up.
#[activity(
    queue = "payments",
    retry(unlimited, initial = "200ms", max = "10s"),
    timeout = "30s"
)]
pub async fn refund(ctx: ActivityContext, owed: Refund) -> Result<String, ActivityError> {
    perform(&ctx, Deed::Refund, &owed.order).await
}

/// Does one thing in the outside world, with whatever faults are switched on, and gives its number there.
async fn perform(
    ctx: &ActivityContext,
    deed: Deed,
    order: &Order,
) -> Result<String, ActivityError> {
    let ledger = ctx.state::<Ledger>();
    let everyone = ctx.try_state::<Faults>().unwrap_or_default();
    let run = ctx.run_id().to_string();
    let faults = [(&order.faults, run.as_str()), (&*everyone, "everyone")];

    for (faults, scope) in faults {
        faults.fail(ctx.attempt())?;
        faults.delay(ctx).await?;
        faults.crash(Before, deed, &ledger, scope)?;
    }
    let entry = post(&ledger, Entry::asked_by(ctx, deed, order)).await?;
    for (faults, scope) in faults {
        faults.crash(After, deed, &ledger, scope)?;
        faults.delay(ctx).await?;
    }
    Ok(entry.number)
}

/// Writing to the disk blocks, so it is kept off the threads that the runs share.
async fn post(ledger: &Arc<Ledger>, entry: Entry) -> anyhow::Result<Entry> {
    let ledger = Arc::clone(ledger);
    let posted = tokio::task::spawn_blocking(move || ledger.post(entry)).await;
    posted
        .context("the ledger panicked")?
        .context("the ledger can't be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(ledger: &Ledger) -> ActivityContext {
        ActivityContext::for_test().with_state(ledger.clone())
    }

    #[tokio::test]
    async fn a_charge_that_is_asked_for_twice_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        let order = Order::new("A-1", "Ada", 1999);
        let first = charge_card(context(&ledger), order.clone()).await.unwrap();
        let second = charge_card(context(&ledger), order).await.unwrap();
        assert_eq!(first, second);
        assert_eq!(ledger.entries().unwrap().len(), 1);
        assert_eq!(ledger.repeats().unwrap(), 1);
    }

    #[tokio::test]
    async fn an_order_is_charged_and_refunded_as_two_deeds() {
        let folder = tempfile::tempdir().unwrap();
        // Two activities of one run have different keys; for_test gives each the same, hence two ledgers.
        let (bank, desk) = (
            Ledger::new(folder.path().join("a")),
            Ledger::new(folder.path().join("b")),
        );
        let order = Order::new("A-1", "Ada", 1999);
        let receipt = charge_card(context(&bank), order.clone()).await.unwrap();
        let owed = Refund { order, receipt };
        refund(context(&desk), owed).await.unwrap();
        assert_eq!(bank.entries().unwrap()[0].deed, Deed::Charge);
        assert_eq!(desk.entries().unwrap()[0].deed, Deed::Refund);
    }

    #[tokio::test]
    async fn a_flaky_order_fails_before_anything_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        let mut order = Order::new("A-1", "Ada", 1999);
        order.faults.flaky = 1;
        let error = ship(context(&ledger), order).await.unwrap_err();
        assert_eq!(error.kind(), "Flaky");
        assert!(error.is_retryable());
        assert!(ledger.entries().unwrap().is_empty());
    }

    #[tokio::test]
    async fn faults_of_everyone_meet_every_order() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        let everyone = Faults {
            flaky: 1,
            ..Faults::default()
        };
        let ctx = context(&ledger).with_state(everyone);
        let failed = ship(ctx, Order::new("A-1", "Ada", 1999)).await;
        assert_eq!(failed.unwrap_err().kind(), "Flaky");
    }
}
