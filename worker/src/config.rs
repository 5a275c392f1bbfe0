//! What a worker is told, checked once, relations included.

use std::net::SocketAddr;
use std::time::Duration;

use continuum_bus::{Bus, BusConfig};
use continuum_schema::{DatabaseConfig, Name};

/// Where a worker or a client gets its bus from.
#[derive(Clone)]
pub enum BusSource {
    /// A NATS server.
    Nats(Box<BusConfig>),
    /// A bus that exists already, for example [`Bus::memory`].
    Shared(Bus),
}

/// The sizes that are refused at the edge, before anything is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload: an input, a result, a signal, in bytes.
    pub payload_bytes_max: usize,
    /// The most bytes that one turn may append. What exceeds it ends the run; cancel and terminate stay possible.
    pub turn_bytes_max: usize,
}

impl Default for Limits {
    /// 2 MiB a payload, 16 MiB a turn.
    fn default() -> Self {
        Self {
            payload_bytes_max: 2 << 20,
            turn_bytes_max: 16 << 20,
        }
    }
}

/// What a worker is told. Start from [`WorkerConfig::new`] and change fields.
#[derive(Clone)]
pub struct WorkerConfig {
    /// The isolated runtime that it serves.
    pub instance: Name,
    /// How it reaches Postgres.
    pub database: DatabaseConfig,
    /// How it reaches the other processes.
    pub bus: BusSource,
    /// Its name, for people.
    pub name: String,
    /// Its build, for people.
    pub build: String,
    /// The queues whose activities it runs.
    pub queues: Vec<Name>,
    /// The most activities that it runs at once.
    pub activities_max: usize,
    /// The most runs that it keeps in memory.
    pub residents_max: usize,
    /// The most runs that it advances at once: those that are loaded, in a turn, or have a step, an activity or an append
    /// under way here. With more it claims nothing, so that the rest of the fleet gets its share.
    pub advancing_max: usize,
    /// How long a run that waits stays in memory.
    pub idle_max: Duration,
    /// The event loops that the runs are spread over, each with its own journal writer.
    pub shards: usize,
    /// The longest that work waits when no hint arrives.
    pub poll_interval: Duration,
    /// The time between two heartbeats.
    pub beat_interval: Duration,
    /// The silence after which others may take over what the worker owns.
    pub session_ttl: Duration,
    /// The time between two catch-up passes.
    pub catch_up_interval: Duration,
    /// The time between two looks of the reconciler at what is owned and what is due. It looks for dead workers at each
    /// heartbeat.
    pub reconcile_interval: Duration,
    /// How long work may be due and nobody's before the reconciler calls it overdue, beyond the session TTL, which a
    /// recovery may take.
    pub reconcile_grace: Duration,
    /// The time between two looks at who holds the residents that the registry names.
    pub resident_interval: Duration,
    /// How often the owners of a run may die without a new event before it is quarantined.
    pub crashes_max: i32,
    /// How long a drain waits for runs to reach a wait. Activities get seven seconds more.
    pub stop_timeout: Duration,
    /// Where to answer HTTP requests: liveness, readiness, metrics, drain. Nowhere unless it is set.
    pub http: Option<SocketAddr>,
    /// The sizes that are refused.
    pub limits: Limits,
}

/// A setting that can't work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {rule}")]
pub struct ConfigError {
    /// Which setting.
    pub setting: &'static str,
    /// The rule that it breaks.
    pub rule: String,
}

impl WorkerConfig {
    /// Everything at its default.
    #[must_use]
    pub fn new(instance: Name, database: DatabaseConfig, bus: BusSource) -> Self {
        Self {
            instance,
            database,
            bus,
            name: "worker".into(),
            build: env!("CARGO_PKG_VERSION").into(),
            queues: Vec::new(),
            activities_max: 256,
            residents_max: 10_000,
            advancing_max: 1_000,
            idle_max: Duration::from_secs(60),
            shards: 2,
            poll_interval: Duration::from_secs(1),
            beat_interval: Duration::from_secs(2),
            session_ttl: Duration::from_secs(15),
            catch_up_interval: Duration::from_secs(30),
            reconcile_interval: Duration::from_secs(5),
            reconcile_grace: Duration::from_secs(15),
            resident_interval: Duration::from_secs(2),
            crashes_max: 20,
            stop_timeout: Duration::from_secs(5),
            http: None,
            limits: Limits::default(),
        }
    }

    /// The time that a worker's own trust in its session ends before others may take over: a beat that is under way
    /// can't stretch it.
    #[must_use]
    pub fn session_margin(&self) -> Duration {
        self.session_ttl / 5
    }

    /// Checks every setting and their relations.
    ///
    /// # Errors
    /// [`ConfigError`] names the first rule that is broken.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least_one: [(&'static str, usize); 5] = [
            ("activities_max", self.activities_max),
            ("residents_max", self.residents_max),
            ("advancing_max", self.advancing_max),
            ("shards", self.shards),
            ("payload_bytes_max", self.limits.payload_bytes_max),
        ];
        for (setting, value) in at_least_one {
            check(setting, value > 0, || "must be at least 1".into())?;
        }
        for (setting, text) in [("name", &self.name), ("build", &self.build)] {
            check(setting, !text.is_empty() && !text.contains('\0'), || {
                "must hold at least one character and no NUL".into()
            })?;
        }
        check(
            "session_ttl",
            self.session_ttl >= self.beat_interval * 4,
            || {
                format!(
                    "{:?} must be at least four times the beat interval {:?}, or one lost beat ends a session",
                    self.session_ttl, self.beat_interval
                )
            },
        )?;
        for (setting, interval) in [
            ("poll_interval", self.poll_interval),
            ("reconcile_interval", self.reconcile_interval),
            ("resident_interval", self.resident_interval),
        ] {
            check(setting, interval >= Duration::from_millis(10), || {
                "must be at least 10 ms".into()
            })?;
        }
        check(
            "turn_bytes_max",
            self.limits.turn_bytes_max >= self.limits.payload_bytes_max * 2,
            || {
                "must be at least twice payload_bytes_max, so that a turn can take in one and put out one".into()
            },
        )
    }
}

fn check(
    setting: &'static str,
    holds: bool,
    rule: impl FnOnce() -> String,
) -> Result<(), ConfigError> {
    if holds {
        return Ok(());
    }
    Err(ConfigError {
        setting,
        rule: rule(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> WorkerConfig {
        let instance = Name::new("test").unwrap();
        let database = DatabaseConfig::new("postgres://localhost", &instance);
        WorkerConfig::new(instance, database, BusSource::Shared(Bus::memory()))
    }

    #[test]
    fn defaults_keep_every_rule() {
        assert_eq!(config().validate(), Ok(()));
    }

    #[test]
    fn a_session_that_one_lost_beat_would_end_is_refused() {
        let mut config = config();
        config.session_ttl = config.beat_interval * 3;
        assert_eq!(config.validate().unwrap_err().setting, "session_ttl");
    }
}
