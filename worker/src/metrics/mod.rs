//! The metrics of one worker, in the text format of Prometheus.
//!
//! Each worker has a registry of its own, for several workers may live in one process. What is counted is counted where
//! it happens; what can be looked up is looked up when somebody asks for the text.

mod book;
mod reference;

use std::time::Duration;

use continuum_schema::{Connections, Database};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::book::{Book, SecondsGauge};
use crate::config::WorkerConfig;
use crate::engine::WorkerState;

pub use self::reference::{names, reference};

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The runs that share a flush are never more than the journal writer packs into one.
const FLUSH_ROWS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// From what a local disk needs to what ends a session.
const FLUSH_SECONDS: [f64; 13] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
];

/// The metrics of one worker.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) worker: WorkerMetrics,
    pub(crate) runs: RunMetrics,
    pub(crate) journal: JournalMetrics,
    pub(crate) activities: ActivityMetrics,
    pub(crate) signals: SignalMetrics,
    pub(crate) wakes: WakeMetrics,
    pub(crate) catch_up: CatchUpMetrics,
    pub(crate) reconciler: ReconcilerMetrics,
    pub(crate) residents: ResidentMetrics,
    pub(crate) session: SessionMetrics,
    pub(crate) database: DatabaseMetrics,
}

impl Metrics {
    pub(crate) fn new(config: &WorkerConfig) -> Self {
        let mut book = Book::new();
        Self {
            worker: WorkerMetrics::new(&mut book, config),
            runs: RunMetrics::new(&mut book),
            journal: JournalMetrics::new(&mut book),
            activities: ActivityMetrics::new(&mut book),
            signals: SignalMetrics::new(&mut book),
            wakes: WakeMetrics::new(&mut book),
            catch_up: CatchUpMetrics::new(&mut book),
            reconciler: ReconcilerMetrics::new(&mut book),
            residents: ResidentMetrics::new(&mut book),
            session: SessionMetrics::new(&mut book),
            database: DatabaseMetrics::new(&mut book),
            registry: book.close(),
        }
    }

    /// All metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)
            .expect("a String takes whatever is written to it");
        text
    }
}

/// A count as a counter takes it.
pub(crate) fn tally(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// A count as a gauge takes it.
pub(crate) fn level(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The worker as a whole.
pub(crate) struct WorkerMetrics {
    states: [Gauge; WorkerState::ALL.len()],
    /// Whether the link to NATS is up.
    pub(crate) nats_connected: Gauge,
}

impl WorkerMetrics {
    fn new(book: &mut Book, config: &WorkerConfig) -> Self {
        book.info(
            "build_info",
            "What runs here; always 1",
            vec![
                ("instance", config.instance.to_string()),
                ("worker", config.name.clone()),
                ("build", config.build.clone()),
                ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ],
        );
        Self {
            states: book.gauges(
                "worker_state",
                "1 for the state that the worker is in, 0 for the others",
                "state",
                WorkerState::ALL.map(WorkerState::name),
            ),
            nats_connected: book.gauge(
                "nats_connected",
                "1 while the link to NATS is up; without it work goes on by polling",
            ),
        }
    }

    pub(crate) fn set_state(&self, state: WorkerState) {
        for (gauge, each) in self.states.iter().zip(WorkerState::ALL) {
            gauge.set(i64::from(each == state));
        }
    }
}

/// Runs in this worker.
pub(crate) struct RunMetrics {
    pub(crate) claims: Counter,
    pub(crate) claimed: Counter,
    pub(crate) ended: Counter,
    pub(crate) blocked: Counter,
    pub(crate) turns: Counter,
    pub(crate) resident: Gauge,
    pub(crate) advancing: Gauge,
}

impl RunMetrics {
    fn new(book: &mut Book) -> Self {
        Self {
            claims: book.counter(
                "run_claims",
                "Questions for due runs that this worker put to Postgres, be they answered with runs or with none",
            ),
            claimed: book.counter("runs_claimed", "Runs that this worker claimed"),
            ended: book.counter("runs_ended", "Runs whose last event this worker appended"),
            blocked: book.counter(
                "runs_blocked",
                "Runs that this worker parked because they can't go on",
            ),
            turns: book.counter("turns", "Turns of runs"),
            resident: book.gauge("runs_resident", "Runs in this worker's memory"),
            advancing: book.gauge(
                "runs_advancing",
                "Of these, runs that are loaded, in a turn, or have a step, an activity or an append under way here",
            ),
        }
    }
}

/// Appends to the journal.
pub(crate) struct JournalMetrics {
    pub(crate) committed: Counter,
    pub(crate) refused: Counter,
    pub(crate) failed: Counter,
    /// Appends sent again for want of an answer.
    pub(crate) retries: Counter,
    flush_rows: Histogram,
    flush_seconds: Histogram,
}

impl JournalMetrics {
    fn new(book: &mut Book) -> Self {
        let [committed, refused, failed] = book.counters(
            "journal_appends",
            "Appends by what became of them: in the journal, fenced off, or not to be stored at all",
            "outcome",
            ["committed", "refused", "failed"],
        );
        Self {
            committed,
            refused,
            failed,
            retries: book.counter(
                "journal_flush_retries",
                "Flushes that were sent again because Postgres gave no answer to them",
            ),
            flush_rows: book.histogram(
                "journal_flush_rows",
                "Appends, each the turn of one run, that shared one commit",
                FLUSH_ROWS,
            ),
            flush_seconds: book.seconds_histogram(
                "journal_flush",
                "Time from a flush's first sending to its answer",
                FLUSH_SECONDS,
            ),
        }
    }
}

impl JournalMetrics {
    /// One commit for the appends of so many runs.
    pub(crate) fn flushed(&self, rows: usize, took: Duration) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.flush_rows.observe(f64::from(rows));
        self.flush_seconds.observe(took.as_secs_f64());
    }
}

/// Activities in this worker; each attempt counts.
pub(crate) struct ActivityMetrics {
    pub(crate) claims: Counter,
    pub(crate) started: Counter,
    pub(crate) completed: Counter,
    pub(crate) failed: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) handed_back: Counter,
    pub(crate) running: Gauge,
}

impl ActivityMetrics {
    fn new(book: &mut Book) -> Self {
        let [completed, failed, cancelled] = book.counters(
            "activities_ended",
            "Attempts of activities that ended here: with a value, with an error, or told to stop",
            "outcome",
            ["completed", "failed", "cancelled"],
        );
        Self {
            claims: book.counter(
                "activity_claims",
                "Questions for waiting activities that this worker put to Postgres",
            ),
            started: book.counter(
                "activities_started",
                "Attempts of activities that began here",
            ),
            completed,
            failed,
            cancelled,
            handed_back: book.counter(
                "activities_handed_back",
                "Attempts that a drain handed back; they don't count as attempts",
            ),
            running: book.gauge("activities_running", "Attempts of activities that run now"),
        }
    }
}

/// Signals from the signal stream.
pub(crate) struct SignalMetrics {
    pub(crate) ingested: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) rejected: Counter,
}

impl SignalMetrics {
    fn new(book: &mut Book) -> Self {
        Self {
            ingested: book.counter(
                "signals_ingested",
                "Signals that this worker brought from NATS to their mailbox",
            ),
            duplicates: book.counter(
                "signals_duplicate",
                "Signals that were in their mailbox already",
            ),
            rejected: book.counter("signals_rejected", "Signals that were kept as rejected"),
        }
    }
}

/// Hints: wakes of runs, rings for work.
pub(crate) struct WakeMetrics {
    pub(crate) received: Counter,
    pub(crate) forwarded: Counter,
    pub(crate) rings_heard: Counter,
    pub(crate) rings_passed_on: Counter,
}

impl WakeMetrics {
    fn new(book: &mut Book) -> Self {
        Self {
            received: book.counter(
                "run_wakes_received",
                "Wakes that others sent for runs of this worker",
            ),
            forwarded: book.counter(
                "run_forwarded",
                "Wakes that this worker sent to the owner of a run",
            ),
            rings_heard: book.counter(
                "ready_rings_heard",
                "Rings that asked this worker to claim due runs",
            ),
            rings_passed_on: book.counter(
                "ready_rings_passed_on",
                "Such rings that it passed on because it could not claim",
            ),
        }
    }
}

/// Catch-up passes.
pub(crate) struct CatchUpMetrics {
    /// Passes that reached the end.
    pub(crate) passes: Counter,
    pub(crate) passes_failed: Counter,
    pub(crate) pages: Counter,
    pub(crate) scanned: Counter,
    pub(crate) matched: Counter,
    pub(crate) woken: Counter,
    pub(crate) oldest_wake_age: SecondsGauge,
    /// 1 after a pass that reached the end, 0 after one that failed.
    pub(crate) status: Gauge,
}

impl CatchUpMetrics {
    fn new(book: &mut Book) -> Self {
        let [passes, passes_failed] = book.counters(
            "catch_up_passes",
            "Catch-up passes by whether they reached the end",
            "outcome",
            ["completed", "failed"],
        );
        Self {
            passes,
            passes_failed,
            pages: book.counter("catch_up_pages", "Pages that catch-up passes read"),
            scanned: book.counter("catch_up_scanned", "Leases that catch-up passes looked at"),
            matched: book.counter("catch_up_matched", "Leases that catch-up passes found with an engine here"),
            woken: book.counter("catch_up_woken", "Runs that had mail nobody had told them of"),
            oldest_wake_age: book.seconds_gauge(
                "catch_up_oldest_wake_age",
                "Age of the oldest missed wake that the last catch-up pass found; 0 if it found none",
            ),
            status: book.gauge("catch_up_status", "1 if the last catch-up pass reached the end, 0 if it failed"),
        }
    }
}

/// The reconciler and its reaper.
pub(crate) struct ReconcilerMetrics {
    /// Passes that reached the end.
    pub(crate) passes: Counter,
    pub(crate) passes_failed: Counter,
    pub(crate) reaped: Counter,
    pub(crate) released_runs: Counter,
    pub(crate) sessions_closed: Counter,
    pub(crate) attempts_recovered: Counter,
    pub(crate) revived: Counter,
    pub(crate) ownerless_runs: Gauge,
    pub(crate) overdue_timers: Gauge,
    pub(crate) expired_attempts: Gauge,
    pub(crate) stale_mailbox: Gauge,
}

impl ReconcilerMetrics {
    fn new(book: &mut Book) -> Self {
        let [passes, passes_failed] = book.counters(
            "reconciler_passes",
            "Passes of the reconciler by whether they reached the end",
            "outcome",
            ["completed", "failed"],
        );
        Self {
            passes,
            passes_failed,
            reaped: book.counter("reconciler_reaped", "Engines that were dropped here because their lease is another's"),
            released_runs: book.counter("reconciler_released_runs", "Runs of dead sessions that were made claimable"),
            sessions_closed: book.counter("reconciler_sessions_closed", "Sessions of dead workers that were closed"),
            attempts_recovered: book.counter(
                "reconciler_attempts_recovered",
                "Attempts of dead sessions that were settled or made available again",
            ),
            revived: book.counter(
                "reconciler_revived_runs",
                "Runs that had overdue mail or timers and that nothing would have woken",
            ),
            ownerless_runs: book.gauge(
                "reconciler_ownerless_runs",
                "Runs that have been due without an owner for longer than the grace, at the last pass",
            ),
            overdue_timers: book.gauge("reconciler_overdue_timers", "Runs that are nobody's though a timer of theirs has been due for longer than the grace, at the last pass"),
            expired_attempts: book.gauge(
                "reconciler_expired_attempts",
                "Attempts whose session is closed, at the last pass",
            ),
            stale_mailbox: book.gauge(
                "reconciler_stale_mailbox_rows",
                "Results and cancel requests that have waited for longer than the grace, on the page of the last pass",
            ),
        }
    }
}

/// Cluster residents: what the fleet has one of.
pub(crate) struct ResidentMetrics {
    pub(crate) held: Gauge,
    pub(crate) built: Counter,
    pub(crate) lost: Counter,
}

impl ResidentMetrics {
    fn new(book: &mut Book) -> Self {
        Self {
            held: book.gauge(
                "cluster_residents_held",
                "Cluster residents that this worker holds",
            ),
            built: book.counter(
                "cluster_residents_built",
                "Cluster residents that became ready here",
            ),
            lost: book.counter(
                "cluster_residents_lost",
                "Cluster residents that ended here because they failed or became another's",
            ),
        }
    }
}

/// The worker's session.
pub(crate) struct SessionMetrics {
    pub(crate) opened: Counter,
    pub(crate) renewals: Counter,
    pub(crate) renewals_failed: Counter,
    pub(crate) lost: Counter,
}

impl SessionMetrics {
    fn new(book: &mut Book) -> Self {
        let [renewals, renewals_failed] = book.counters(
            "session_renewals",
            "Heartbeats by whether Postgres took them",
            "outcome",
            ["renewed", "failed"],
        );
        Self {
            opened: book.counter("session_opened", "Sessions that this worker opened"),
            renewals,
            renewals_failed,
            lost: book.counter(
                "session_lost",
                "Sessions that this worker lost, with all that it held under them",
            ),
        }
    }
}

/// The pools of connections to Postgres.
pub(crate) struct DatabaseMetrics {
    pub(crate) work: PoolMetrics,
    pub(crate) control: PoolMetrics,
}

/// One pool.
pub(crate) struct PoolMetrics {
    connections: Gauge,
    idle: Gauge,
    max: Gauge,
}

impl PoolMetrics {
    pub(crate) fn set(&self, pool: &Database) {
        let Connections { open, idle } = pool.connections();
        self.connections.set(open.into());
        self.idle.set(idle.into());
        self.max.set(pool.config().connections.into());
    }
}

impl DatabaseMetrics {
    fn new(book: &mut Book) -> Self {
        let pools = ["work", "control"];
        let [work, control] = book.gauges(
            "database_connections",
            "Connections to Postgres, by pool: the work itself, and what keeps the session alive",
            "pool",
            pools,
        );
        let [work_idle, control_idle] = book.gauges(
            "database_connections_idle",
            "Those of them that nobody uses",
            "pool",
            pools,
        );
        let [work_max, control_max] = book.gauges(
            "database_connections_max",
            "The most that the pool may make",
            "pool",
            pools,
        );
        Self {
            work: PoolMetrics {
                connections: work,
                idle: work_idle,
                max: work_max,
            },
            control: PoolMetrics {
                connections: control,
                idle: control_idle,
                max: control_max,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use continuum_bus::Bus;
    use continuum_schema::{DatabaseConfig, Name};

    use super::*;
    use crate::config::BusSource;

    fn metrics() -> Metrics {
        let instance = Name::new("test").unwrap();
        let database = DatabaseConfig::new("postgres://localhost", &instance);
        Metrics::new(&WorkerConfig {
            name: "a \"quoted\"\nname".into(),
            ..WorkerConfig::new(instance, database, BusSource::Shared(Bus::memory()))
        })
    }

    #[test]
    fn each_line_parses_and_each_metric_has_help_and_a_type() {
        let families = reference::parse(&metrics().text()).unwrap();
        assert!(families.len() > 35, "{}", families.len());
        for family in families {
            let name = &family.name;
            assert!(name.starts_with("continuum_"), "{name}");
            assert!(family.help.len() > 10, "{name}: {}", family.help);
            assert!(!family.samples.is_empty(), "{name} has no sample");
            assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name}");
        }
    }

    #[test]
    fn a_count_shows_in_its_own_registry_only() {
        let (one, other) = (metrics(), metrics());
        one.wakes.forwarded.inc();
        one.journal.flush_seconds.observe(0.004);
        assert!(one.text().contains("\ncontinuum_run_forwarded_total 1\n"));
        assert!(
            one.text()
                .contains("continuum_journal_flush_seconds_bucket{le=\"0.005\"} 1")
        );
        assert!(other.text().contains("\ncontinuum_run_forwarded_total 0\n"));
    }

    #[test]
    fn a_worker_is_in_one_state() {
        let metrics = metrics();
        metrics.worker.set_state(WorkerState::Ready);
        metrics.worker.set_state(WorkerState::Draining);
        let text = metrics.text();
        for state in WorkerState::ALL {
            let value = i64::from(state == WorkerState::Draining);
            let line = format!("continuum_worker_state{{state=\"{state}\"}} {value}\n");
            assert!(text.contains(&line), "{text}");
        }
    }
}
