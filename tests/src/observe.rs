//! Waiting for what a test claims. A condition is looked at until it holds; a pause is never a proof.

use std::time::Duration;

use continuum_schema::run::{self, Run, RunState};
use continuum_schema::{Event, journal};
use continuum_worker::Worker;
use uuid::Uuid;

use crate::{PATIENCE, World};

const PAUSE: Duration = Duration::from_millis(20);

/// Looks until there is something to see, and gives it.
///
/// # Panics
/// If there is nothing within the patience of a test; the message says that `what` was waited for.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain for this: {what}"),
    }
}

impl World {
    /// The run as people see it, once it is in `state`.
    ///
    /// # Panics
    /// If it does not get there within the patience of a test.
    pub async fn until_state(&self, run_id: Uuid, state: RunState) -> Run {
        let look = || async {
            let run = run::get(&self.database, run_id)
                .await
                .expect("the run exists");
            (run.state == state).then_some(run)
        };
        until(&format!("run {run_id} is {}", state.name()), look).await
    }

    /// The run as people see it, once it is blocked for `reason`.
    ///
    /// # Panics
    /// If it does not get there within the patience of a test.
    pub async fn until_blocked(&self, run_id: Uuid, reason: &str) -> Run {
        let run = self.until_state(run_id, RunState::Blocked).await;
        let found = run.blocked.as_ref().map(|(word, _)| word.as_str());
        assert_eq!(found, Some(reason), "{:?}", run.blocked);
        run
    }

    /// How many runs there are.
    ///
    /// # Panics
    /// If Postgres does not answer.
    pub async fn runs(&self) -> i64 {
        let counts = run::count(&self.database, None)
            .await
            .expect("Postgres answers");
        counts.iter().map(|(_, count)| count).sum()
    }

    /// The run's whole history.
    ///
    /// # Panics
    /// If an event can't be read.
    pub async fn history(&self, run_id: Uuid) -> Vec<Event> {
        let rows = journal::history(&self.database, run_id, 0, 1_000_000).await;
        let rows = rows.expect("Postgres answers");
        rows.iter()
            .map(|row| row.decode().expect("a sound event"))
            .collect()
    }

    /// The run's history, once it holds an event of this name; see [`Event::name`].
    ///
    /// # Panics
    /// If there is none within the patience of a test.
    pub async fn until_event(&self, run_id: Uuid, name: &str) -> Vec<Event> {
        let look = || async {
            let history = self.history(run_id).await;
            history
                .iter()
                .any(|event| event.name() == name)
                .then_some(history)
        };
        until(&format!("run {run_id} has an event {name}"), look).await
    }
}

/// The value of one of a worker's metrics, by its name and labels.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn metric(worker: &Worker, name: &str) -> f64 {
    let text = worker.metrics();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no metric {name} in:\n{text}"))
        .parse()
        .expect("a number")
}
