//! Settings: one flag and one variable each, and what they become.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use continuum_bus::{BusConfig, TlsConfig};
use continuum_schema::{DatabaseConfig, Error as SchemaError, Name, Pooler, TextError};

use super::dev_file::{self, DevFile};
use super::error::{CliError, Code};
use crate::{BusSource, DEFAULT_NAMESPACE, Limits, Registry, WorkerConfig};

/// The instance of those who name none.
pub(super) const DEFAULT_INSTANCE: &str = "default";

const DEFAULT_NATS_URL: &str = "nats://127.0.0.1:4222";

/// A span of time as written on a command line: `500ms`, `2s`, `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|e| format!("{e}; write for example 500ms, 2s or 1m 30s"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A size as written on a command line: `65536`, `512KiB`, `2MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size; write for example 65536, 512KiB or 2MiB");
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)))
            .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
        let number: usize = number.trim().parse().map_err(|_| wrong())?;
        number.checked_mul(unit).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, bytes)| self.0 > 0 && self.0.is_multiple_of(*bytes));
        match whole {
            Some((name, bytes)) => write!(f, "{}{name}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

/// An address to listen on, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HttpAddress(pub(super) Option<SocketAddr>);

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => text
                .parse()
                .map(|address| Self(Some(address)))
                .map_err(|_| {
                    "write an address and a port, for example 0.0.0.0:8080, or none".to_owned()
                }),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("none"),
        }
    }
}

fn instance_name(text: &str) -> Result<Name, TextError> {
    Name::of("instance", text)
}

fn queue_name(text: &str) -> Result<Name, TextError> {
    Name::of("queue", text)
}

pub(super) fn namespace(text: &str) -> Result<Name, TextError> {
    Name::of("namespace", text)
}

/// Which instance.
#[derive(Args, Debug)]
#[command(next_help_heading = "Instance")]
pub(super) struct InstanceArgs {
    /// The isolated runtime: its own Postgres schema and its own NATS subjects [default: `default`, or that of the
    /// `dev` that is found]
    #[arg(long, env = "CONTINUUM_INSTANCE", value_name = "NAME", value_parser = instance_name)]
    pub(super) instance: Option<Name>,
}

impl InstanceArgs {
    pub(super) fn name(&self) -> Name {
        self.instance.clone().unwrap_or_else(default_instance)
    }
}

fn default_instance() -> Name {
    Name::new(DEFAULT_INSTANCE).expect("the default instance is a valid name")
}

/// Which soft tenant.
#[derive(Args, Debug)]
pub(super) struct NamespaceArgs {
    /// The soft tenant that the run is in
    #[arg(long, env = "CONTINUUM_NAMESPACE", value_name = "NAME", default_value = DEFAULT_NAMESPACE, value_parser = namespace)]
    pub(super) namespace: Name,
}

/// What stands between this program and Postgres.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PoolerKind {
    /// Nothing, or a pooler in session mode
    None,
    /// A pooler in transaction mode, such as PgBouncer
    Transaction,
}

/// How to reach Postgres.
#[derive(Args, Debug)]
#[command(next_help_heading = "Postgres")]
pub(super) struct DatabaseArgs {
    /// `postgres://user:password@host:port/database` [default: that of a `dev` in the current folder]
    #[arg(
        long,
        env = "CONTINUUM_DATABASE_URL",
        value_name = "URL",
        hide_env_values = true
    )]
    database_url: Option<String>,

    /// The schema that holds the instance's tables [default: the instance's name]
    #[arg(
        long,
        env = "CONTINUUM_DATABASE_SCHEMA",
        value_name = "NAME",
        hide_short_help = true
    )]
    database_schema: Option<String>,

    /// The most connections at once
    #[arg(long, env = "CONTINUUM_DATABASE_CONNECTIONS", value_name = "COUNT", default_value_t = database_defaults().connections, hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    database_connections: u32,

    /// What stands between this program and Postgres
    #[arg(long, env = "CONTINUUM_POOLER", value_enum, value_name = "MODE", default_value_t = PoolerKind::None, hide_short_help = true)]
    pooler: PoolerKind,

    /// The longest that a statement may take
    #[arg(long, env = "CONTINUUM_DATABASE_STATEMENT_TIMEOUT", value_name = "TIME", default_value_t = Span(database_defaults().statement_timeout), hide_short_help = true)]
    database_statement_timeout: Span,

    /// The longest that a statement may wait for a lock
    #[arg(long, env = "CONTINUUM_DATABASE_LOCK_TIMEOUT", value_name = "TIME", default_value_t = Span(database_defaults().lock_timeout), hide_short_help = true)]
    database_lock_timeout: Span,

    /// The longest that a request waits for a connection
    #[arg(long, env = "CONTINUUM_DATABASE_ACQUIRE_TIMEOUT", value_name = "TIME", default_value_t = Span(database_defaults().acquire_timeout), hide_short_help = true)]
    database_acquire_timeout: Span,
}

fn database_defaults() -> DatabaseConfig {
    DatabaseConfig::new("", &default_instance())
}

/// An instance and how to reach it.
pub(super) struct Target {
    pub(super) instance: Name,
    pub(super) database: DatabaseConfig,
    /// Set when the servers are those of a `dev` that was found.
    dev: Option<DevFile>,
}

impl Target {
    /// Says which server it was that is away, without user and password.
    pub(super) fn reached(&self, error: SchemaError) -> CliError {
        match error {
            SchemaError::Unavailable(error) => CliError::new(
                Code::Unavailable,
                format!(
                    "Postgres at {} is unavailable: {error}",
                    address(&self.database.url)
                ),
            ),
            error => error.into(),
        }
    }
}

/// What of a database URL may be shown: host, port and database.
fn address(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    // Parameters may hold a password too, but a local server is known by its socket only.
    match rest.split_once('?') {
        Some(("" | "/", parameters)) => socket(parameters).unwrap_or("its socket"),
        Some((server, parameters)) if server.starts_with('/') => {
            socket(parameters).unwrap_or(server)
        }
        Some((server, _)) => server,
        None => rest,
    }
}

fn socket(parameters: &str) -> Option<&str> {
    parameters
        .split('&')
        .find_map(|parameter| parameter.strip_prefix("host="))
}

impl DatabaseArgs {
    /// The settings that were given, or else those of a `dev` in the current folder.
    pub(super) fn target(&self, instance: &InstanceArgs) -> Result<Target, CliError> {
        let given = self.database_url.clone().filter(|url| !url.is_empty());
        let dev = match given {
            Some(_) => None,
            None => DevFile::find()?,
        };
        let url = given.or_else(|| dev.as_ref().map(|dev| dev.database_url.clone()));
        let url = url.ok_or_else(no_database)?;
        let instance = match (&instance.instance, &dev) {
            (None, Some(dev)) => dev.instance.clone(),
            _ => instance.name(),
        };
        let database = self.config(url, &instance)?;
        Ok(Target {
            instance,
            database,
            dev,
        })
    }

    fn config(&self, url: String, instance: &Name) -> Result<DatabaseConfig, CliError> {
        let mut config = DatabaseConfig::new(url, instance);
        if let Some(schema) = self.schema()? {
            config.schema = schema.to_owned();
        }
        config.connections = self.database_connections;
        config.pooler = match self.pooler {
            PoolerKind::None => Pooler::None,
            PoolerKind::Transaction => Pooler::Transaction,
        };
        config.statement_timeout = self.database_statement_timeout.0;
        config.lock_timeout = self.database_lock_timeout.0;
        config.acquire_timeout = self.database_acquire_timeout.0;
        Ok(config)
    }

    /// The schema, where it is not that of the instance. Postgres cuts longer names silently.
    pub(super) fn schema(&self) -> Result<Option<&str>, CliError> {
        let schema = self
            .database_schema
            .as_deref()
            .filter(|schema| !schema.is_empty());
        match schema {
            Some(name) if name.len() > 63 => Err(CliError::usage(format!(
                "the schema name has {} bytes; Postgres keeps 63",
                name.len()
            ))),
            schema => Ok(schema),
        }
    }
}

fn no_database() -> CliError {
    CliError::usage(format!(
        "no database is named: set CONTINUUM_DATABASE_URL (or --database-url) to \
         postgres://user:password@host:port/database; or run `continuum dev` in this folder, whose servers are then \
         found through {}",
        dev_file::path_here().display()
    ))
}

/// How to reach NATS.
#[derive(Args, Debug)]
#[command(next_help_heading = "NATS")]
pub(super) struct NatsArgs {
    /// `nats://host:port` or `tls://host:port`, several with commas between them [default: nats://127.0.0.1:4222, or
    /// that of the `dev` that is found]
    #[arg(
        long,
        env = "CONTINUUM_NATS_URL",
        value_name = "URLS",
        hide_env_values = true
    )]
    nats_url: Option<String>,

    /// The user, with a password
    #[arg(
        long,
        env = "CONTINUUM_NATS_USER",
        value_name = "NAME",
        hide_short_help = true
    )]
    nats_user: Option<String>,

    /// The password; the variable keeps it out of process lists
    #[arg(
        long,
        env = "CONTINUUM_NATS_PASSWORD",
        value_name = "TEXT",
        hide_env_values = true,
        hide_short_help = true
    )]
    nats_password: Option<String>,

    /// A token instead of user and password
    #[arg(
        long,
        env = "CONTINUUM_NATS_TOKEN",
        value_name = "TEXT",
        hide_env_values = true,
        hide_short_help = true
    )]
    nats_token: Option<String>,

    /// A file with a JWT and its key, as `nsc` writes it
    #[arg(
        long,
        env = "CONTINUUM_NATS_CREDENTIALS",
        value_name = "FILE",
        hide_short_help = true
    )]
    nats_credentials: Option<PathBuf>,

    /// Refuse a connection without TLS
    #[arg(long, env = "CONTINUUM_NATS_TLS", value_parser = BoolishValueParser::new(), hide_short_help = true)]
    nats_tls: bool,

    /// Certificate authorities (PEM) instead of the system's
    #[arg(
        long,
        env = "CONTINUUM_NATS_CA",
        value_name = "FILE",
        hide_short_help = true
    )]
    nats_ca: Option<PathBuf>,

    /// A client certificate (PEM), with its key
    #[arg(
        long,
        env = "CONTINUUM_NATS_CERT",
        value_name = "FILE",
        hide_short_help = true
    )]
    nats_cert: Option<PathBuf>,

    /// The key of the client certificate
    #[arg(
        long,
        env = "CONTINUUM_NATS_KEY",
        value_name = "FILE",
        hide_short_help = true
    )]
    nats_key: Option<PathBuf>,

    /// The prefix of the subjects on which answers are awaited
    #[arg(long, env = "CONTINUUM_NATS_INBOX_PREFIX", value_name = "SUBJECT", default_value_t = bus_defaults().inbox_prefix, hide_short_help = true)]
    nats_inbox_prefix: String,

    /// The longest wait for the server itself
    #[arg(long, env = "CONTINUUM_NATS_TIMEOUT", value_name = "TIME", default_value_t = Span(bus_defaults().request_timeout), hide_short_help = true)]
    nats_timeout: Span,
}

fn bus_defaults() -> BusConfig {
    BusConfig::new([DEFAULT_NATS_URL])
}

impl NatsArgs {
    /// Where to find NATS, under the name `connection`. Nothing if the `dev` that was found runs without it.
    pub(super) fn config(
        &self,
        target: &Target,
        connection: &str,
    ) -> Result<Option<BusConfig>, CliError> {
        let given = self.nats_url.clone().filter(|url| !url.is_empty());
        let url = match (given, &target.dev) {
            (Some(url), _) => url,
            (None, None) => DEFAULT_NATS_URL.to_owned(),
            (None, Some(dev)) => match &dev.nats_url {
                Some(url) => url.clone(),
                None => return Ok(None),
            },
        };
        let config = BusConfig {
            user: self.nats_user.clone(),
            password: self.nats_password.clone(),
            token: self.nats_token.clone(),
            credentials_file: self.nats_credentials.clone(),
            tls: TlsConfig {
                require: self.nats_tls,
                ca_file: self.nats_ca.clone(),
                cert_file: self.nats_cert.clone(),
                key_file: self.nats_key.clone(),
            },
            connection_name: connection.to_owned(),
            inbox_prefix: self.nats_inbox_prefix.clone(),
            request_timeout: self.nats_timeout.0,
            ..BusConfig::new([url])
        };
        config.validate()?;
        Ok(Some(config))
    }
}

/// What only a worker needs to know of NATS.
#[derive(Args, Debug)]
#[command(next_help_heading = "Signals over NATS")]
pub(super) struct SignalArgs {
    /// Further prefixes of subjects that may be answered, for example `_R_` where another account imports the API
    #[arg(
        long,
        env = "CONTINUUM_NATS_REPLY_PREFIXES",
        value_name = "SUBJECTS",
        value_delimiter = ',',
        hide_short_help = true
    )]
    nats_reply_prefixes: Vec<String>,

    /// Copies of the signal stream in a NATS cluster, 1 to 5; 3 or more survive a power loss
    #[arg(long, env = "CONTINUUM_SIGNAL_REPLICAS", value_name = "COUNT", default_value_t = bus_defaults().signals.replicas)]
    signal_replicas: usize,

    /// The largest signal, headers included
    #[arg(long, env = "CONTINUUM_SIGNAL_LIMIT", value_name = "SIZE", default_value_t = Size(bus_defaults().signals.max_message_bytes), hide_short_help = true)]
    signal_limit: Size,

    /// A signal that no worker has settled for so long is delivered again
    #[arg(long, env = "CONTINUUM_SIGNAL_ACK_WAIT", value_name = "TIME", default_value_t = Span(bus_defaults().signals.ack_wait), hide_short_help = true)]
    signal_ack_wait: Span,

    /// The most signals on their way at once, over all workers
    #[arg(long, env = "CONTINUUM_SIGNALS_IN_FLIGHT", value_name = "COUNT", default_value_t = bus_defaults().signals.max_ack_pending, hide_short_help = true)]
    signals_in_flight: u32,
}

impl SignalArgs {
    pub(super) fn apply(&self, config: &mut BusConfig) -> Result<(), CliError> {
        config
            .more_reply_prefixes
            .clone_from(&self.nats_reply_prefixes);
        config.signals.replicas = self.signal_replicas;
        config.signals.max_message_bytes = self.signal_limit.0;
        config.signals.ack_wait = self.signal_ack_wait.0;
        config.signals.max_ack_pending = self.signals_in_flight;
        Ok(config.validate()?)
    }
}

/// What is refused at the edge, by workers and clients alike.
#[derive(Args, Debug)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// The largest input, result or signal
    #[arg(long, env = "CONTINUUM_PAYLOAD_LIMIT", value_name = "SIZE", default_value_t = Size(Limits::default().payload_bytes_max))]
    pub(super) payload_limit: Size,
}

impl LimitArgs {
    pub(super) fn limits(&self) -> Limits {
        Limits {
            payload_bytes_max: self.payload_limit.0,
            ..Limits::default()
        }
    }
}

/// What a worker is told about its work.
#[derive(Args, Debug)]
#[command(next_help_heading = "Worker")]
pub(super) struct WorkerArgs {
    /// Its name, for people [default: host name and process id]
    #[arg(long, env = "CONTINUUM_WORKER_NAME", value_name = "NAME")]
    worker_name: Option<String>,

    /// Its build, for people
    #[arg(long, env = "CONTINUUM_BUILD", value_name = "TEXT", default_value_t = worker_defaults().build, hide_short_help = true)]
    build: String,

    /// The queues whose activities it runs, with commas between them [default: those that its activities name]
    #[arg(long, env = "CONTINUUM_QUEUES", value_name = "NAMES", value_delimiter = ',', value_parser = queue_name)]
    queues: Vec<Name>,

    /// The most activities that it runs at once
    #[arg(long, env = "CONTINUUM_ACTIVITIES_MAX", value_name = "COUNT", default_value_t = worker_defaults().activities_max)]
    activities_max: usize,

    /// The most runs that it keeps in memory
    #[arg(long, env = "CONTINUUM_RESIDENTS_MAX", value_name = "COUNT", default_value_t = worker_defaults().residents_max)]
    residents_max: usize,

    /// The most runs that it advances at once; with more it claims nothing, so that other workers get their share
    #[arg(long, env = "CONTINUUM_ADVANCING_MAX", value_name = "COUNT", default_value_t = worker_defaults().advancing_max)]
    advancing_max: usize,

    /// How long a run that waits stays in memory
    #[arg(long, env = "CONTINUUM_IDLE_MAX", value_name = "TIME", default_value_t = Span(worker_defaults().idle_max), hide_short_help = true)]
    idle_max: Span,

    /// Event loops that the runs are spread over, each with its own journal writer
    #[arg(long, env = "CONTINUUM_SHARDS", value_name = "COUNT", default_value_t = worker_defaults().shards, hide_short_help = true)]
    shards: usize,

    /// The longest that work waits when no hint arrives
    #[arg(long, env = "CONTINUUM_POLL_INTERVAL", value_name = "TIME", default_value_t = Span(worker_defaults().poll_interval), hide_short_help = true)]
    poll_interval: Span,

    /// The time between two heartbeats
    #[arg(long, env = "CONTINUUM_BEAT_INTERVAL", value_name = "TIME", default_value_t = Span(worker_defaults().beat_interval), hide_short_help = true)]
    beat_interval: Span,

    /// The silence after which others take over its work; at least four heartbeats
    #[arg(long, env = "CONTINUUM_SESSION_TTL", value_name = "TIME", default_value_t = Span(worker_defaults().session_ttl), hide_short_help = true)]
    session_ttl: Span,

    /// The time between two looks for work whose hint was lost
    #[arg(long, env = "CONTINUUM_CATCH_UP_INTERVAL", value_name = "TIME", default_value_t = Span(worker_defaults().catch_up_interval), hide_short_help = true)]
    catch_up_interval: Span,

    /// The time between two looks of the reconciler at what is owned and what is due
    #[arg(long, env = "CONTINUUM_RECONCILE_INTERVAL", value_name = "TIME", default_value_t = Span(worker_defaults().reconcile_interval), hide_short_help = true)]
    reconcile_interval: Span,

    /// How long work may be due and nobody's, beyond the session TTL, before it is called overdue
    #[arg(long, env = "CONTINUUM_RECONCILE_GRACE", value_name = "TIME", default_value_t = Span(worker_defaults().reconcile_grace), hide_short_help = true)]
    reconcile_grace: Span,

    /// The time between two looks at who holds the fleet's residents
    #[arg(long, env = "CONTINUUM_RESIDENT_INTERVAL", value_name = "TIME", default_value_t = Span(worker_defaults().resident_interval), hide_short_help = true)]
    resident_interval: Span,

    /// How often the owners of a run may die without a new event before it is quarantined
    #[arg(long, env = "CONTINUUM_CRASHES_MAX", value_name = "COUNT", default_value_t = worker_defaults().crashes_max, hide_short_help = true, value_parser = clap::value_parser!(i32).range(1..))]
    crashes_max: i32,

    /// Where to answer HTTP requests for liveness, readiness, metrics and drain, or none. Whoever reaches the port can
    /// drain the worker
    #[arg(long, env = "CONTINUUM_HTTP", value_name = "ADDRESS", default_value_t = HttpAddress(worker_defaults().http))]
    http: HttpAddress,

    /// How long a drain waits for runs to reach a wait; activities get seven seconds more
    #[arg(long, env = "CONTINUUM_STOP_TIMEOUT", value_name = "TIME", default_value_t = Span(worker_defaults().stop_timeout))]
    stop_timeout: Span,

    /// The most bytes that one turn of a run may append; at least twice the payload limit
    #[arg(long, env = "CONTINUUM_TURN_LIMIT", value_name = "SIZE", default_value_t = Size(Limits::default().turn_bytes_max), hide_short_help = true)]
    turn_limit: Size,

    #[command(flatten)]
    limits: LimitArgs,
}

fn worker_defaults() -> WorkerConfig {
    let bus = BusSource::Nats(Box::new(bus_defaults()));
    WorkerConfig::new(default_instance(), database_defaults(), bus)
}

impl WorkerArgs {
    pub(super) fn name(&self) -> String {
        self.worker_name.clone().unwrap_or_else(default_worker_name)
    }

    /// The whole configuration, with every rule checked.
    pub(super) fn config(
        &self,
        instance: Name,
        database: DatabaseConfig,
        bus: BusSource,
        registry: &Registry,
    ) -> Result<WorkerConfig, CliError> {
        let queues = match self.queues.is_empty() {
            false => self.queues.clone(),
            true => registry
                .queues()
                .iter()
                .map(|queue| queue_name(queue))
                .collect::<Result<_, _>>()?,
        };
        let config = WorkerConfig {
            instance,
            database,
            bus,
            name: self.name(),
            build: self.build.clone(),
            queues,
            activities_max: self.activities_max,
            residents_max: self.residents_max,
            advancing_max: self.advancing_max,
            idle_max: self.idle_max.0,
            shards: self.shards,
            poll_interval: self.poll_interval.0,
            beat_interval: self.beat_interval.0,
            session_ttl: self.session_ttl.0,
            catch_up_interval: self.catch_up_interval.0,
            reconcile_interval: self.reconcile_interval.0,
            reconcile_grace: self.reconcile_grace.0,
            resident_interval: self.resident_interval.0,
            crashes_max: self.crashes_max,
            stop_timeout: self.stop_timeout.0,
            http: self.http.0,
            limits: Limits {
                payload_bytes_max: self.limits.payload_limit.0,
                turn_bytes_max: self.turn_limit.0,
            },
        };
        config.validate()?;
        Ok(config)
    }
}

/// Host names tell machines and containers apart, process ids the workers on one of them.
fn default_worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok());
    let host = host
        .as_deref()
        .map(str::trim)
        .filter(|host| !host.is_empty());
    format!("{}-{}", host.unwrap_or("worker"), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_written_and_nonsense_is_refused() {
        for (text, bytes) in [
            ("65536", 65536),
            ("512KiB", 512 << 10),
            ("2MiB", 2 << 20),
            ("1GiB", 1 << 30),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(2 << 20).to_string(), "2MiB");
        assert_eq!(Size(1_000).to_string(), "1000");
        assert_eq!(Size(0).to_string(), "0");
        for wrong in [
            "",
            "MiB",
            "2MB",
            "-1",
            "1.5MiB",
            "99999999999999999999",
            "9999999999999GiB",
        ] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_read_back_as_written_and_the_error_shows_how() {
        assert_eq!("1m 30s".parse(), Ok(Span(Duration::from_secs(90))));
        assert_eq!(Span(Duration::from_millis(1500)).to_string(), "1s 500ms");
        assert!("30".parse::<Span>().unwrap_err().contains("500ms"));
    }

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        for (url, shown) in [
            ("postgres://u:se@cret@db:5432/app?password=x", "db:5432/app"),
            (
                "postgres:///postgres?host=%2Ftmp%2Fs&password=x",
                "%2Ftmp%2Fs",
            ),
            ("postgres:///?password=x", "its socket"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(address(url), shown);
        }
    }

    #[test]
    fn a_worker_has_a_name_of_its_own_by_default() {
        assert!(default_worker_name().ends_with(&format!("-{}", std::process::id())));
    }
}
