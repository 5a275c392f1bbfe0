//! Waiting for the ends of runs. However many callers of one client wait, they share round trips: the barriers behind
//! their subscriptions, and the looks at the runs' rows.

use std::sync::Arc;
use std::time::Duration;

use continuum_bus::{Bus, Subjects, Subscription};
use continuum_schema::run::{self, Ending};
use continuum_schema::{Database, Error, Payload};
use uuid::Uuid;

use super::ClientError;
use crate::batch::Batcher;
use crate::retry::{Backoff, jittered};

/// How often a waiter looks by itself, in case the notice of the end was lost.
const POLL: Duration = Duration::from_secs(1);

/// The most runs of one look: each may bring a result of the largest size.
const LOOKS_MAX: usize = 64;

/// The most waiters behind one barrier.
const BARRIERS_MAX: usize = 1_024;

/// What waits for ends, for one client.
#[derive(Clone)]
pub(super) struct Ends {
    bus: Bus,
    subjects: Subjects,
    barriers: Batcher<(), bool>,
    looks: Batcher<Uuid, Option<Ending>>,
}

impl Ends {
    pub(super) fn new(database: &Database, bus: &Bus, subjects: &Subjects) -> Self {
        let (database, barred) = (database.clone(), bus.clone());
        Self {
            bus: bus.clone(),
            subjects: subjects.clone(),
            barriers: Batcher::new(BARRIERS_MAX, move |waiters: Arc<Vec<()>>| {
                let bus = barred.clone();
                async move { Ok(vec![bus.barrier().await.is_ok(); waiters.len()]) }
            }),
            looks: Batcher::new(LOOKS_MAX, move |runs: Arc<Vec<Uuid>>| {
                let database = database.clone();
                async move { run::endings(&database, &runs).await }
            }),
        }
    }

    /// Waits until a run has ended and gives its value. Follows the notices on NATS, and looks by itself at times, in
    /// case one is lost.
    pub(super) async fn wait(&self, run_id: Uuid) -> Result<Payload, ClientError> {
        let mut notices = self.notices(run_id).await;
        let mut backoff = Backoff::new(POLL);
        loop {
            let pause = match self.looks.ask(run_id).await {
                Ok(Some(Ending::Active)) => jittered(POLL),
                Ok(Some(Ending::Completed(value))) => return Ok(value),
                Ok(Some(Ending::Failed(failure))) => {
                    return Err(ClientError::Failed(failure.into()));
                }
                Ok(Some(Ending::Cancelled(reason))) => return Err(ClientError::Cancelled(reason)),
                Ok(None) => return Err(Error::NotFound(run_id.to_string()).into()),
                Err(error) if error.is_transient() => backoff.next(),
                Err(error) => return Err(error.into()),
            };
            if tokio::time::timeout(pause, next(&mut notices)).await == Ok(false) {
                notices = None;
            }
        }
    }

    /// The notices of a run's end, once they are sure to arrive. Subscribe, be sure that it is in force, *then* read:
    /// an end after the read sends its notice to us.
    async fn notices(&self, run_id: Uuid) -> Option<Subscription> {
        let subject = self.subjects.closed(run_id);
        let notices = self.bus.subscribe(&subject, None).await.ok()?;
        matches!(self.barriers.ask(()).await, Ok(true)).then_some(notices)
    }
}

/// Whether there was a notice; `false` when none can come any more.
async fn next(notices: &mut Option<Subscription>) -> bool {
    match notices {
        Some(subscription) => subscription.next().await.is_some(),
        None => std::future::pending().await,
    }
}
