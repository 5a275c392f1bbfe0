//! The checker of the invariants I1 to I8, which looks at every world when its test is done.

use std::collections::HashSet;

use continuum_schema::run::{self, Filter};
use continuum_schema::{Database, Event, invariant, journal};

/// How long a due run may be without an owner, in seconds.
const DUE_MAX: f64 = 20.0;

/// Checks that every invariant holds.
///
/// # Panics
/// If one does not, with all that is broken.
pub async fn check(database: &Database) {
    let violations = invariant::violations(database, DUE_MAX)
        .await
        .expect("Postgres answers");
    assert!(
        violations.is_empty(),
        "invariants are broken: {violations:#?}"
    );
    let mut filter = Filter::default();
    loop {
        let page = run::list(database, &filter, 500)
            .await
            .expect("Postgres answers");
        let Some(last) = page.last() else { return };
        filter.before = Some(last.run_id);
        for run in &page {
            // A damaged history is what some tests are about.
            if run
                .blocked
                .as_ref()
                .is_none_or(|(reason, _)| reason != "corrupt")
            {
                check_history(database, run.run_id).await;
            }
        }
    }
}

/// I3 and I4: nothing is completed that was not asked for, and nothing twice.
async fn check_history(database: &Database, run_id: uuid::Uuid) {
    let history = journal::history(database, run_id, 0, 1_000_000)
        .await
        .expect("Postgres answers");
    let mut scheduled = HashSet::new();
    let mut completed = HashSet::new();
    let mut deliveries = HashSet::new();
    for row in history {
        let event = row
            .decode()
            .unwrap_or_else(|e| panic!("run {run_id}, seq {}: {e}", row.seq));
        match event {
            Event::ActivityScheduled(activity) => {
                assert!(
                    scheduled.insert(activity.effect),
                    "run {run_id}: effect {} twice",
                    activity.effect
                );
            }
            Event::ActivityCompleted { effect, .. } => {
                assert!(
                    scheduled.contains(&effect),
                    "run {run_id}: effect {effect} was never scheduled"
                );
                assert!(
                    completed.insert(effect),
                    "run {run_id}: effect {effect} ended twice"
                );
            }
            Event::StepCompleted { effect, .. } | Event::TimerFired { effect } => {
                assert!(
                    completed.insert(effect),
                    "run {run_id}: effect {effect} ended twice"
                );
            }
            Event::SignalReceived {
                effect,
                name,
                delivery_id,
                ..
            } => {
                assert!(
                    completed.insert(effect),
                    "run {run_id}: effect {effect} ended twice"
                );
                if let Some(id) = delivery_id {
                    assert!(
                        deliveries.insert((name, id)),
                        "run {run_id}: a signal was consumed twice"
                    );
                }
            }
            _ => {}
        }
    }
}
