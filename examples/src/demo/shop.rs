//! The world around the workers: customers who place orders and a fraud department that reviews them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use continuum_examples::{Deed, Entry, Order, Review, order_flow};
use continuum_worker::bus::ContentType;
use continuum_worker::schema::Name;
use continuum_worker::{IntoSignal as _, Workflow as _};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{Instant, interval, sleep};
use uuid::Uuid;

use super::stage::Stage;

/// The orders come in over so long.
const RUSH: Duration = Duration::from_secs(3);

/// How many orders may be on their way to the database at once.
const PLACED_AT_ONCE: usize = 64;

/// The fraud department refuses every so many-th order.
const REFUSED_EVERY: u32 = 5;

/// How long the fraud department thinks about an order.
const REVIEW_TIME: Duration = Duration::from_secs(1);

/// How often the fraud department looks for cards that were charged.
const REVIEW_INTERVAL: Duration = Duration::from_millis(50);

/// How often a review is sent before the department gives up.
const SENT_MAX: u32 = 20;

const CUSTOMERS: [&str; 5] = ["Ada", "Barbara", "Edsger", "Grace", "Leslie"];

/// The orders of one demo.
pub(super) struct Shop<'a> {
    stage: &'a Stage,
    orders: u32,
    runs: Mutex<Vec<Uuid>>,
}

impl<'a> Shop<'a> {
    pub(super) fn new(stage: &'a Stage, orders: u32) -> Self {
        Self {
            stage,
            orders,
            runs: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn orders(&self) -> usize {
        self.orders as usize
    }

    /// The runs of the orders that were placed so far.
    pub(super) fn runs(&self) -> Vec<Uuid> {
        self.with_runs(|runs| runs.clone())
    }

    pub(super) fn placed(&self) -> usize {
        self.with_runs(|runs| runs.len())
    }

    /// Places all orders.
    pub(super) async fn sell(&self) -> anyhow::Result<()> {
        let clock = stream::unfold(interval(RUSH / self.orders), |mut clock| async {
            clock.tick().await;
            Some(((), clock))
        });
        stream::iter(1..=self.orders)
            .zip(clock)
            .map(|(number, ())| self.place(order(number)))
            .buffer_unordered(PLACED_AT_ONCE)
            .try_collect()
            .await
    }

    async fn place(&self, order: Order) -> anyhow::Result<()> {
        let key = order.id.clone();
        let run = self.stage.client.start(order_flow, order).key(key).await?;
        self.with_runs(|runs| runs.push(run.run_id()));
        Ok(())
    }

    /// Reviews every order, some time after its card was charged.
    pub(super) async fn review(&self) -> anyhow::Result<()> {
        let mut clock = interval(REVIEW_INTERVAL);
        let mut desk: VecDeque<(Instant, Entry)> = VecDeque::new();
        let (mut seen, mut reviewed) = (0, 0);
        while reviewed < self.orders() {
            let now = clock.tick().await;
            let entries = self.stage.ledger.entries_after(seen)?;
            seen += entries.len();
            let charged = entries
                .into_iter()
                .filter(|entry| entry.deed == Deed::Charge);
            desk.extend(charged.map(|entry| (now + REVIEW_TIME, entry)));
            while let Some((_, entry)) = desk.pop_front_if(|(due, _)| *due <= now) {
                self.send_review(&entry).await?;
                reviewed += 1;
            }
        }
        Ok(())
    }

    /// Publishes to NATS and waits until the server has stored it. A review that is sent again counts once, because it
    /// carries the same delivery id.
    async fn send_review(&self, entry: &Entry) -> anyhow::Result<()> {
        let name = Name::new(order_flow::fraud_review.into_signal().as_str())?;
        let json = serde_json::to_vec(&review(&entry.order))?;
        let delivery_id = format!("review-of-{}", entry.order);
        let mut sent = 0;
        loop {
            let published = self
                .stage
                .signals
                .publish(
                    entry.run_id,
                    &name,
                    json.clone().into(),
                    &ContentType::Json,
                    Some(&delivery_id),
                )
                .await;
            sent += 1;
            match published {
                Ok(_) => return Ok(()),
                Err(error) if sent == SENT_MAX => {
                    return Err(error).context("a review could not be sent");
                }
                Err(_) => sleep(REVIEW_INTERVAL * sent).await,
            }
        }
    }

    fn with_runs<T>(&self, work: impl FnOnce(&mut Vec<Uuid>) -> T) -> T {
        work(&mut self.runs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The name under which the runs of the shop are found.
pub(super) fn workflow() -> &'static str {
    order_flow::NAME
}

fn order(number: u32) -> Order {
    let customer = CUSTOMERS[number as usize % CUSTOMERS.len()];
    let cents = 500 + u64::from(number) * 137 % 20_000;
    Order::new(format!("order-{number}"), customer, cents)
}

fn review(order: &str) -> Review {
    let number = order.rsplit('-').next().and_then(|n| n.parse::<u32>().ok());
    Review {
        approved: number.is_none_or(|number| number % REFUSED_EVERY != 0),
        reviewer: "the fraud department".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_makes_sense_and_every_fifth_is_refused() {
        let orders: Vec<Order> = (1..=300).map(order).collect();
        assert!(orders.iter().all(|order| order.validate().is_ok()));
        let refused = orders.iter().filter(|order| !review(&order.id).approved);
        assert_eq!(refused.count(), 60);
    }
}
