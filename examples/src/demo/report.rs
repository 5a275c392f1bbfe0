//! What became of the orders, by the word of the database and of the ledger.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use continuum_examples::{Outcome, Totals};
use continuum_worker::schema::run::Run;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use uuid::Uuid;

use super::stage::Stage;
use super::watch::Killed;

/// How many runs are read at once.
const READ_AT_ONCE: usize = 8;

/// The closing account of a demo.
#[derive(Debug, Default)]
pub(super) struct Report {
    started: usize,
    completed: usize,
    rejected: usize,
    totals: Totals,
    /// Requests to the outside world that came again and were recognised by their key.
    repeats: usize,
    /// Who was killed.
    killed: Option<String>,
    /// The runs that the killed worker held, and those of them that have ended since.
    orphaned: usize,
    recovered: usize,
    /// How long each ended order took, ascending.
    latencies: Vec<Duration>,
    elapsed: Duration,
}

impl Report {
    /// Reads what became of `runs`.
    pub(super) async fn gather(
        stage: &Stage,
        runs: Vec<Uuid>,
        killed: Option<Killed>,
        elapsed: Duration,
    ) -> anyhow::Result<Self> {
        let started = runs.len();
        let runs: Vec<Run> = stream::iter(runs)
            .map(|run_id| stage.client.get(run_id))
            .buffer_unordered(READ_AT_ONCE)
            .try_collect()
            .await?;
        let mut report = Self {
            started,
            totals: Totals::of(&stage.ledger.entries()?),
            repeats: stage.ledger.repeats()?,
            elapsed,
            ..Self::default()
        };
        report.add_runs(&runs);
        if let Some(killed) = killed {
            report.add_killed(killed, &runs);
        }
        Ok(report)
    }

    fn add_runs(&mut self, runs: &[Run]) {
        for run in runs {
            let result = run.result.as_ref();
            match result.and_then(|result| result.decode().ok()) {
                Some(Outcome::Shipped { .. }) => self.completed += 1,
                Some(Outcome::Rejected { .. }) => self.rejected += 1,
                None => {}
            }
        }
        self.latencies = runs.iter().filter_map(latency).collect();
        self.latencies.sort_unstable();
    }

    fn add_killed(&mut self, killed: Killed, runs: &[Run]) {
        self.orphaned = killed.runs.len();
        let ended = runs.iter().filter(|run| run.ended_at.is_some());
        self.recovered = ended
            .filter(|run| killed.runs.contains(&run.run_id))
            .count();
        self.killed = Some(killed.worker);
    }

    fn lost(&self) -> usize {
        self.started - self.completed - self.rejected
    }

    /// Whether every order came to its end and everything was done exactly once.
    pub(super) fn is_clean(&self) -> bool {
        self.lost() == 0 && self.totals.doubled == 0 && self.is_consistent()
    }

    /// Whether the ledger tells the same story as the database.
    fn is_consistent(&self) -> bool {
        let Totals {
            charges,
            shipments,
            refunds,
            ..
        } = self.totals;
        (charges, shipments, refunds) == (self.started, self.completed, self.rejected)
    }

    /// The account for people.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        for (what, figure) in self.rows() {
            table.add_row([what, figure]);
        }
        if let Some(figures) = table.column_mut(1) {
            figures.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn rows(&self) -> Vec<(String, String)> {
        let totals = self.totals;
        let count = |what: &str, count: usize| (what.to_owned(), count.to_string());
        let mut rows = vec![
            count("orders placed", self.started),
            count("  shipped", self.completed),
            count("  rejected", self.rejected),
            count("  lost", self.lost()),
            count("cards charged", totals.charges),
            count("parcels handed over", totals.shipments),
            count("charges given back", totals.refunds),
            count("orders for which something was done twice", totals.doubled),
            count("requests that came again and were recognised", self.repeats),
        ];
        if let Some(worker) = &self.killed {
            let what = format!("orders taken over from {worker} after its death");
            rows.push((what, format!("{} of {}", self.recovered, self.orphaned)));
        }
        for (what, share) in [("half of the orders", 50), ("99 of 100 orders", 99)] {
            if let Some(latency) = percentile(&self.latencies, share) {
                rows.push((format!("{what} took at most"), seconds(latency) + " s"));
            }
        }
        rows
    }

    /// The account for programs: the last line of the demo.
    pub(super) fn line(&self) -> String {
        format!(
            "demo: started={} completed={} rejected={} lost={} double_charged={} killed_workers={} elapsed_s={}",
            self.started,
            self.completed,
            self.rejected,
            self.lost(),
            self.totals.doubled,
            usize::from(self.killed.is_some()),
            seconds(self.elapsed)
        )
    }
}

fn latency(run: &Run) -> Option<Duration> {
    // Both times are the database's; a step of its clock may have put the end before the start.
    Duration::try_from(run.ended_at? - run.created_at).ok()
}

/// The value that `share` of 100 don't exceed.
fn percentile(ascending: &[Duration], share: usize) -> Option<Duration> {
    let rank = (ascending.len() * share).div_ceil(100);
    ascending.get(rank.checked_sub(1)?).copied()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            started: 300,
            completed: 240,
            rejected: 60,
            totals: Totals {
                charges: 300,
                shipments: 240,
                refunds: 60,
                doubled: 0,
            },
            killed: Some("worker-2".into()),
            elapsed: Duration::from_millis(7_449),
            ..Report::default()
        }
    }

    #[test]
    fn the_last_line_has_its_fixed_form() {
        let expected = "demo: started=300 completed=240 rejected=60 lost=0 double_charged=0 killed_workers=1 \
                        elapsed_s=7.4";
        assert_eq!(report().line(), expected);
        assert!(report().is_clean());
    }

    #[test]
    fn an_order_without_an_outcome_is_lost() {
        let report = Report {
            completed: 239,
            ..report()
        };
        assert!(report.line().contains("lost=1"));
        assert!(!report.is_clean());
    }

    #[test]
    fn a_ledger_that_contradicts_the_database_is_not_clean() {
        let mut report = report();
        report.totals.refunds = 59;
        assert!(!report.is_clean());
        report.totals.refunds = 60;
        report.totals.doubled = 1;
        assert!(!report.is_clean());
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let latencies: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&latencies, 50), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&latencies, 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&[], 99), None);
    }
}
