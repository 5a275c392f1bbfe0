//! What a measurement costs: processor time and memory of all processes that take part, and Postgres's counters.
//!
//! Processes are read from Linux's `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use continuum_schema::Database;
use continuum_schema::floor::{self, Counters};
use serde::Serialize;
use tokio::task::AbortHandle;

use crate::stage::{Servers, Stage, WorkerProcess};

/// `/proc` counts processor time in hundredths of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The time between two looks at the memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(200);

/// The processes that take part, and where Postgres's counters are read.
pub(crate) struct Meter {
    database: Database,
    processes: Processes,
    memory_peak_kib: Arc<AtomicU64>,
    sampler: AbortHandle,
}

#[derive(Clone, Copy)]
struct Processes {
    client: u32,
    worker: u32,
    postmaster: u32,
    nats: u32,
}

/// Everything that is counted, at one moment.
pub(crate) struct Reading {
    at: Instant,
    runs: u64,
    counters: Counters,
    cpu: CpuTime,
    parts: BTreeMap<Part, PartTime>,
}

/// What lies between two readings, or between several pairs of them.
#[derive(Default)]
pub(crate) struct Usage {
    seconds: f64,
    runs: f64,
    commits: f64,
    wal_flushes: f64,
    wal_bytes: f64,
    cpu: CpuTime,
    parts: BTreeMap<Part, PartTime>,
}

/// A process, or those processes of Postgres that do the same.
type Part = String;

/// Processor time of a part in milliseconds, in its own code and in the kernel's.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct PartTime {
    pub(crate) user_ms: f64,
    pub(crate) system_ms: f64,
}

/// Processor time of a run by part.
pub(crate) type Profile = BTreeMap<Part, PartTime>;

/// Processor time in milliseconds, by process. Postgres's is that of all its processes, those that have ended included.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CpuTime {
    client: f64,
    worker: f64,
    postgres: f64,
    nats: f64,
}

/// What each run costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CostPerRun {
    /// Committed transactions, reads included.
    pub(crate) commits_per_run: f64,
    pub(crate) wal_flushes_per_run: f64,
    pub(crate) wal_bytes_per_run: f64,
    pub(crate) cpu_ms_per_run: f64,
    pub(crate) cpu_ms_per_run_by_process: CpuTime,
}

impl Meter {
    /// Begins to watch.
    pub(crate) fn start(
        servers: &Servers,
        stage: &Stage,
        worker: &WorkerProcess,
    ) -> anyhow::Result<Self> {
        let processes = Processes {
            client: std::process::id(),
            worker: worker.pid(),
            postmaster: servers.postgres.pid().context("Postgres has ended")?,
            nats: servers.nats.pid().context("NATS has ended")?,
        };
        let memory_peak_kib = Arc::new(AtomicU64::new(0));
        let peak = Arc::clone(&memory_peak_kib);
        let sampler = tokio::spawn(async move {
            loop {
                peak.fetch_max(processes.memory_kib(), Ordering::Relaxed);
                tokio::time::sleep(MEMORY_INTERVAL).await;
            }
        });
        Ok(Self {
            database: stage.database.clone(),
            processes,
            memory_peak_kib,
            sampler: sampler.abort_handle(),
        })
    }

    /// Reads all counters, when so many runs have ended.
    pub(crate) async fn read(&self, runs: u64) -> anyhow::Result<Reading> {
        let at = Instant::now();
        Ok(Reading {
            cpu: self.processes.cpu_time()?,
            parts: self.processes.parts(),
            counters: floor::counters(&self.database).await?,
            at,
            runs,
        })
    }

    /// The most memory that all processes had at one moment.
    pub(crate) fn peak_rss_mib(&self) -> f64 {
        self.memory_peak_kib.load(Ordering::Relaxed) as f64 / 1024.0
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.sampler.abort();
    }
}

impl Reading {
    /// What was used since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Usage {
        let (now, then) = (self.counters, earlier.counters);
        Usage {
            seconds: self.at.duration_since(earlier.at).as_secs_f64(),
            runs: (self.runs - earlier.runs) as f64,
            commits: (now.commits - then.commits) as f64,
            wal_flushes: (now.wal_flushes - then.wal_flushes) as f64,
            wal_bytes: (now.wal_bytes - then.wal_bytes) as f64,
            cpu: self.cpu.plus(earlier.cpu.times(-1.0)),
            parts: parts_since(&self.parts, &earlier.parts),
        }
    }
}

fn parts_since(
    now: &BTreeMap<Part, PartTime>,
    then: &BTreeMap<Part, PartTime>,
) -> BTreeMap<Part, PartTime> {
    now.iter()
        .map(|(part, time)| {
            let before = then.get(part).copied().unwrap_or_default();
            (part.clone(), time.plus(before.times(-1.0)))
        })
        .collect()
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.seconds += more.seconds;
        self.runs += more.runs;
        self.commits += more.commits;
        self.wal_flushes += more.wal_flushes;
        self.wal_bytes += more.wal_bytes;
        self.cpu = self.cpu.plus(more.cpu);
        for (part, time) in more.parts {
            let sum = self.parts.entry(part).or_default();
            *sum = sum.plus(time);
        }
    }
}

impl Usage {
    pub(crate) fn runs_per_s(&self) -> f64 {
        self.runs / self.seconds
    }

    /// Processor time of a run by part. That of processes of Postgres that ended meanwhile is missing.
    pub(crate) fn profile(&self) -> Profile {
        let a_run = |(part, time): (&Part, &PartTime)| (part.clone(), time.times(1.0 / self.runs));
        self.parts.iter().map(a_run).collect()
    }

    pub(crate) fn cost_per_run(&self) -> CostPerRun {
        let cpu = self.cpu.times(1.0 / self.runs);
        CostPerRun {
            commits_per_run: self.commits / self.runs,
            wal_flushes_per_run: self.wal_flushes / self.runs,
            wal_bytes_per_run: self.wal_bytes / self.runs,
            cpu_ms_per_run: cpu.total(),
            cpu_ms_per_run_by_process: cpu,
        }
    }
}

impl PartTime {
    fn plus(self, other: Self) -> Self {
        Self {
            user_ms: self.user_ms + other.user_ms,
            system_ms: self.system_ms + other.system_ms,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            user_ms: self.user_ms * factor,
            system_ms: self.system_ms * factor,
        }
    }
}

impl CpuTime {
    fn plus(self, other: Self) -> Self {
        Self {
            client: self.client + other.client,
            worker: self.worker + other.worker,
            postgres: self.postgres + other.postgres,
            nats: self.nats + other.nats,
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            client: self.client * factor,
            worker: self.worker * factor,
            postgres: self.postgres * factor,
            nats: self.nats * factor,
        }
    }

    fn total(self) -> f64 {
        self.client + self.worker + self.postgres + self.nats
    }
}

impl std::fmt::Display for CpuTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "postgres {:.2}, worker {:.2}, client {:.2}, nats {:.2}",
            self.postgres, self.worker, self.client, self.nats
        )
    }
}

impl Processes {
    fn cpu_time(self) -> anyhow::Result<CpuTime> {
        let own = |pid: u32| {
            Ok::<_, anyhow::Error>(millis(stat(pid).context("a process has ended")?.own_ticks))
        };
        let postmaster = stat(self.postmaster).context("Postgres has ended")?;
        let backends: u64 = self.backends().map(|backend| backend.own_ticks).sum();
        Ok(CpuTime {
            client: own(self.client)?,
            worker: own(self.worker)?,
            postgres: millis(postmaster.own_ticks + postmaster.reaped_ticks + backends),
            nats: own(self.nats)?,
        })
    }

    /// Postgres's processes but the first, whose children all of them are.
    fn backends(self) -> impl Iterator<Item = Stat> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?))
            .filter(move |stat| stat.parent == self.postmaster)
    }

    fn parts(self) -> BTreeMap<Part, PartTime> {
        let named = [
            ("client", self.client),
            ("worker", self.worker),
            ("nats", self.nats),
            ("postgres: postmaster", self.postmaster),
        ];
        let named = named
            .into_iter()
            .filter_map(|(part, pid)| Some((part.to_owned(), stat(pid)?)));
        let backends = self
            .backends()
            .filter_map(|backend| Some((part_of_postgres(&title(backend.pid)?), backend)));
        let mut parts = BTreeMap::<Part, PartTime>::new();
        for (part, stat) in named.chain(backends) {
            let sum = parts.entry(part).or_default();
            *sum = sum.plus(PartTime {
                user_ms: millis(stat.user_ticks),
                system_ms: millis(stat.own_ticks - stat.user_ticks),
            });
        }
        parts
    }

    /// The memory that each process has for itself, and Postgres's shared memory once.
    fn memory_kib(self) -> u64 {
        let backends = self.backends().map(|backend| backend.pid);
        let all = [self.client, self.worker, self.nats, self.postmaster]
            .into_iter()
            .chain(backends);
        let (own, shared): (Vec<u64>, Vec<u64>) = all.filter_map(memory).unzip();
        own.iter().sum::<u64>() + shared.iter().max().copied().unwrap_or(0)
    }
}

/// What `/proc/<pid>/stat` says.
struct Stat {
    pid: u32,
    parent: u32,
    own_ticks: u64,
    /// Those of `own_ticks` that were not spent in the kernel.
    user_ticks: u64,
    /// Of children that have ended.
    reaped_ticks: u64,
}

/// Nothing if the process has ended.
fn stat(pid: u32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &line)
}

fn parse_stat(pid: u32, line: &str) -> Option<Stat> {
    // The name, in brackets, may hold anything; the fields after it are numbers, from the third on.
    let (_, fields) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        pid,
        parent: u32::try_from(number(4)?).ok()?,
        own_ticks: number(14)? + number(15)?,
        user_ticks: number(14)?,
        reaped_ticks: number(16)? + number(17)?,
    })
}

/// What a process of Postgres says that it does: `postgres: walwriter`, `postgres: user database [local] idle`.
fn title(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(
        String::from_utf8_lossy(&line)
            .trim_end_matches('\0')
            .trim()
            .to_owned(),
    )
}

/// The processes that serve connections are one part, the others by their names.
fn part_of_postgres(title: &str) -> Part {
    const OTHERS: [&str; 6] = [
        "autovacuum worker",
        "autovacuum launcher",
        "background writer",
        "checkpointer",
        "logical replication launcher",
        "walwriter",
    ];
    let part = OTHERS.iter().find(|other| title.contains(**other));
    format!("postgres: {}", part.unwrap_or(&"backends"))
}

/// The anonymous memory of a process in KiB.
pub(crate) fn own_memory_kib(pid: u32) -> anyhow::Result<u64> {
    Ok(memory(pid).context("the process has ended")?.0)
}

/// Memory that is the process's own and memory that it shares, in KiB; the program's text is in neither.
fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some((kib(&status, "RssAnon:")?, kib(&status, "RssShmem:")?))
}

fn kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn millis(ticks: u64) -> f64 {
    ticks as f64 * TICK.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_and_blanks_shifts_no_field() {
        let line = "7 (a) R (b) S 3 7 7 0 -1 4194304 1 2 3 4 50 6 70 8 20 0 1 0";
        let stat = parse_stat(7, line).unwrap();
        assert_eq!(
            (stat.parent, stat.own_ticks, stat.reaped_ticks),
            (3, 56, 78)
        );
    }

    #[test]
    fn processes_that_serve_connections_are_one_part() {
        for title in [
            "postgres: me bench [local] idle",
            "postgres: me bench ::1(7) BIND",
        ] {
            assert_eq!(part_of_postgres(title), "postgres: backends");
        }
        assert_eq!(
            part_of_postgres("postgres: walwriter "),
            "postgres: walwriter"
        );
    }

    #[test]
    fn this_process_has_memory_and_used_the_processor() {
        let pid = std::process::id();
        assert!(stat(pid).is_some());
        assert!(memory(pid).unwrap().0 > 100);
    }
}
