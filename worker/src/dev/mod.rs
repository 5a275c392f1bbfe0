//! Private PostgreSQL and NATS servers as child processes.
//!
//! `continuum dev`, the demo, the tests and the benchmarks each run servers of their own: nothing is
//! shared, no port is fixed and no service of the machine is touched. The servers' programs come from
//! the machine; nothing is downloaded.
//!
//! A server ends with its parent, however the parent ends, and keeps its data only in a folder that
//! was asked for. Such a folder serves one process at a time and may be started from again after a
//! crash of everything.
//!
//! ```no_run
//! use continuum_worker::dev::{NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};
//!
//! # async fn example() -> Result<(), continuum_worker::dev::DevError> {
//! let mut postgres = PrivatePostgres::start(PostgresOptions::default()).await?;
//! let mut nats = PrivateNats::start(NatsOptions::default()).await?;
//! println!("{} {}", postgres.url(), nats.url());
//! nats.stop().await;
//! postgres.stop().await;
//! # Ok(())
//! # }
//! ```

mod child;
mod folder;
mod nats;
mod postgres;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

pub use self::nats::{NatsOptions, PrivateNats};
pub use self::postgres::{PostgresOptions, PrivatePostgres};

use self::child::Child;
use self::folder::POLL_INTERVAL;

/// How long a server may take from its start until it is ready. Crash recovery is the slow part.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How long an obstacle that passes by itself is waited for, such as processes that still die.
const OBSTACLE_PATIENCE: Duration = Duration::from_secs(10);

/// The pause before a start is tried again.
const OBSTACLE_PAUSE: Duration = Duration::from_millis(100);

/// How long a server may take to stop before it is told more firmly.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How long a destructor blocks for its server to end.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// Why a private server could not be started. Each message says what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// No `initdb` and `postgres` where they are usually kept.
    #[error(
        "PostgreSQL's server programs were not found; install them with `apt-get install \
         postgresql` or set CONTINUUM_POSTGRES_BIN to the folder that holds `initdb` and `postgres`"
    )]
    PostgresNotFound,

    /// No `nats-server` where it is usually kept.
    #[error(
        "nats-server was not found; install it with `apt-get install nats-server` or set \
         CONTINUUM_NATS_SERVER to the program's path"
    )]
    NatsNotFound,

    /// An environment variable names a place that does not hold the programs.
    #[error(
        "{variable} is set to {value:?}, but there is no program {missing:?}; correct or unset it"
    )]
    WrongVariable {
        /// The environment variable.
        variable: &'static str,
        /// What it is set to.
        value: PathBuf,
        /// The program that is not there.
        missing: PathBuf,
    },

    /// PostgreSQL refuses to run as root, and there is no user to run it as.
    #[error(
        "PostgreSQL does not run as root, and this machine has neither a user `postgres` nor \
         `nobody`; create one with `useradd --system postgres` or start as an ordinary user"
    )]
    NoServerUser,

    /// Another process works with the data folder.
    #[error(
        "the data folder {} is in use{}; stop that process or choose another folder",
        folder.display(),
        pid.map(|pid| format!(" by the server with process id {pid}")).unwrap_or_default()
    )]
    FolderInUse {
        /// The data folder.
        folder: PathBuf,
        /// The server's process id, if it is known.
        pid: Option<u32>,
    },

    /// The user that PostgreSQL runs as may not enter a parent of the data folder.
    #[error(
        "the user {user:?}, as whom PostgreSQL runs, cannot enter {}; choose a data folder outside \
         of it, or let others pass with `chmod o+x {}`",
        parent.display(),
        parent.display()
    )]
    FolderUnreachable {
        /// The data folder.
        folder: PathBuf,
        /// Its parent that bars the way.
        parent: PathBuf,
        /// The user.
        user: String,
    },

    /// A program ended before it had done its work.
    #[error(
        "{program} ended with {status}; its last words, which should name the reason:\n{log_tail}"
    )]
    Ended {
        /// The program's name.
        program: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log_tail: String,
    },

    /// A program neither became ready nor ended.
    #[error(
        "{program} was not ready after {} s; look for the reason in its last words, or for an \
         overloaded machine:\n{log_tail}",
        waited.as_secs()
    )]
    NotReady {
        /// The program's name.
        program: &'static str,
        /// How long it was waited for.
        waited: Duration,
        /// The end of its log.
        log_tail: String,
    },

    /// A program could not be started at all.
    #[error("{} could not be started; check that it may be executed", program.display())]
    Spawn {
        /// The program's path.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },

    /// A file or folder of the server is not usable.
    #[error("could not {action} {}; check its permissions and the space on its disk", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Says what an input or output error was about.
trait IoContext<T> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T, DevError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T, DevError> {
        self.map_err(|source| DevError::Io {
            action,
            path: path.to_path_buf(),
            source,
        })
    }
}

/// Waits until `probe` has an answer. Fails when the child ends first or takes too long.
async fn until_ready<T>(
    program: &'static str,
    child: &Child,
    log_tail: impl Fn() -> String,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T, DevError> {
    let ready = async {
        loop {
            if let Some(answer) = probe() {
                return answer;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        answer = timeout(START_PATIENCE, ready) => answer.map_err(|_| DevError::NotReady {
            program,
            waited: START_PATIENCE,
            log_tail: log_tail(),
        }),
        status = child.exited() => Err(DevError::Ended { program, status, log_tail: log_tail() }),
    }
}

/// Bounds the attempts at a start that fails for a reason that passes by itself.
struct Obstacle {
    deadline: Instant,
}

impl Obstacle {
    fn new() -> Self {
        Self {
            deadline: Instant::now() + OBSTACLE_PATIENCE,
        }
    }

    /// Pauses and returns when another attempt makes sense; hands the error back when not.
    async fn pass(&self, error: DevError) -> Result<(), DevError> {
        if !passes_by_itself(&error) || Instant::now() >= self.deadline {
            return Err(error);
        }
        sleep(OBSTACLE_PAUSE).await;
        Ok(())
    }
}

/// After a kill, the dead server's other processes and its port may take a moment to go away.
fn passes_by_itself(error: &DevError) -> bool {
    let DevError::Ended { log_tail, .. } = error else {
        return false;
    };
    let log_tail = log_tail.to_ascii_lowercase();
    ["pre-existing shared memory block", "address already in use"]
        .iter()
        .any(|obstacle| log_tail.contains(obstacle))
}

/// The first folder of `path` (in the form of the variable PATH) that holds all of `programs`.
fn folder_on_path(path: Option<&OsStr>, programs: &[&str]) -> Option<PathBuf> {
    std::env::split_paths(path?).find(|folder| holds(folder, programs))
}

fn holds(folder: &Path, programs: &[&str]) -> bool {
    programs
        .iter()
        .all(|program| folder.join(program).is_file())
}
