//! A private PostgreSQL server.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tracing::debug;

use super::child::Child;
use super::folder::{Folder, empty, serves};
use super::{
    DROP_PATIENCE, DevError, IoContext as _, Obstacle, START_PATIENCE, STOP_PATIENCE,
    folder_on_path, holds, until_ready,
};

const BIN_VARIABLE: &str = "CONTINUUM_POSTGRES_BIN";
const PROGRAMS: [&str; 2] = ["initdb", "postgres"];
const LOG: &str = "postgres.log";
const INITDB_LOG: &str = "initdb.log";
const DATA: &str = "data";

/// A socket's file is named after the port even when no port is opened.
const SOCKET_ONLY_PORT: u16 = 5432;

/// The longest path of a socket that every system accepts, in bytes (Linux 107, macOS 103).
const SOCKET_PATH_MAX: usize = 103;

/// The line of `postmaster.pid`, from 0, that says whether connections are accepted.
const STATUS_LINE: usize = 7;

/// How a [`PrivatePostgres`] is set up.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Where the data is kept between starts. Without it a temporary folder is used, which is removed
    /// when the server is dropped.
    pub data_dir: Option<PathBuf>,
    /// Whether commits are flushed to the disk. Default: true. Turning it off makes tests faster; what
    /// was committed then survives a crash of the server, but not one of the machine.
    pub fsync: bool,
    /// Whether to listen on a free port of 127.0.0.1 beside the Unix socket. Default: false. Every
    /// user of the machine can then connect.
    pub tcp: bool,
    /// Further settings, as in `postgresql.conf`.
    pub settings: Vec<(String, String)>,
    /// Further environment variables of the server, for example a library to preload.
    pub environment: Vec<(String, String)>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            data_dir: None,
            fsync: true,
            tcp: false,
            settings: Vec::new(),
            environment: Vec::new(),
        }
    }
}

/// A PostgreSQL server of our own, reached over a Unix socket that only we can open.
///
/// Started by root, the server runs as user `postgres`, or `nobody` where there is none. Dropping it
/// shuts the server down at once; [`stop`](Self::stop) is the orderly way.
#[derive(Debug)]
pub struct PrivatePostgres {
    child: Option<Child>,
    programs: PathBuf,
    options: PostgresOptions,
    user: Option<User>,
    port: u16,
    socket_dir: PathBuf,
    /// Holds the socket when the data folder's path is too long for one.
    _socket_folder: Option<Folder>,
    // The last field, because a temporary folder is removed when it is dropped.
    folder: Folder,
}

impl PrivatePostgres {
    /// Starts a server and waits until it accepts connections. A new data folder is initialized first.
    ///
    /// # Errors
    ///
    /// The programs are missing, the data folder is in use or out of reach, or the server did not
    /// start; the error then quotes the end of its log.
    pub async fn start(options: PostgresOptions) -> Result<Self, DevError> {
        let programs = find_programs()?;
        let user = server_user()?;
        let folder = Folder::open(options.data_dir.as_deref())?;
        if let Some(user) = &user {
            folder.check_reachable(user)?;
        }
        folder.end_leftover(Signal::SIGINT).await?;
        let (socket_dir, socket_folder) = place_socket(&folder, user.as_ref())?;
        let port = match options.tcp {
            true => free_port()?,
            false => SOCKET_ONLY_PORT,
        };
        let mut server = Self {
            child: None,
            programs,
            options,
            user,
            port,
            socket_dir,
            _socket_folder: socket_folder,
            folder,
        };
        server.initialize().await?;
        server.clear_stale_pid_file()?;
        server.launch(false).await?;
        Ok(server)
    }

    /// The URL of database `postgres` over the Unix socket, for sqlx and for libpq alike.
    #[must_use]
    pub fn url(&self) -> String {
        // Every part is stated, so that no PG… variable of the environment can change it.
        format!(
            "postgres:///postgres?host={}&port={}&user=postgres&sslmode=disable",
            percent_encode(&self.socket_dir),
            self.port
        )
    }

    /// The URL of database `postgres` over TCP, if [`PostgresOptions::tcp`] was set.
    #[must_use]
    pub fn tcp_url(&self) -> Option<String> {
        self.options.tcp.then(|| {
            format!(
                "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
                self.port
            )
        })
    }

    /// The process id of the server's main process; nothing while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let child = self.child.as_ref()?;
        child.status().is_none().then(|| child.pid())
    }

    /// Waits until the server ends, for whatever reason. A stopped server has ended.
    pub async fn exited(&self) -> Option<ExitStatus> {
        match &self.child {
            Some(child) => Some(child.exited().await),
            None => None,
        }
    }

    /// Stops the server: open transactions are rolled back and connections closed. A server that does
    /// not stop in 10 s is told to end without tidying up, and then killed.
    pub async fn stop(&mut self) {
        if let Some(child) = self.child.take() {
            child
                .stop(&[Signal::SIGINT, Signal::SIGQUIT], STOP_PATIENCE)
                .await;
        }
    }

    /// Kills the main process, as a crash would. The processes of open connections notice and end
    /// by themselves; [`restart`](Self::restart) waits for them.
    pub async fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            child.kill().await;
        }
    }

    /// Starts the server again, with the same data and URL. A running one is stopped first.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn restart(&mut self) -> Result<(), DevError> {
        self.stop().await;
        self.launch(true).await
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.folder.log_tail(LOG)
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join(DATA)
    }

    /// Creates the database cluster, under another name until it is complete.
    async fn initialize(&self) -> Result<(), DevError> {
        let data = self.data_dir();
        if data.exists() {
            return Ok(());
        }
        let unfinished = self.folder.path().join("data.new");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).doing("remove", &unfinished)?;
        }
        self.folder.subfolder("data.new", self.user.as_ref())?;
        self.run_initdb(&unfinished).await?;
        fs::rename(&unfinished, &data).doing("rename", &unfinished)
    }

    async fn run_initdb(&self, data: &Path) -> Result<(), DevError> {
        let mut command = self.command("initdb", INITDB_LOG, false)?;
        command
            .arg("-D")
            .arg(data)
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8"])
            .args(["--no-locale", "--no-sync"]);
        let child = self.spawn("initdb", command, Signal::SIGTERM).await?;
        let log_tail = || self.folder.log_tail(INITDB_LOG);
        match tokio::time::timeout(START_PATIENCE, child.exited()).await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(DevError::Ended {
                program: "initdb",
                status,
                log_tail: log_tail(),
            }),
            Err(_) => Err(DevError::NotReady {
                program: "initdb",
                waited: START_PATIENCE,
                log_tail: log_tail(),
            }),
        }
    }

    /// Deals with the `postmaster.pid` of an earlier server.
    ///
    /// PostgreSQL recognizes a dead server's file by itself, except when its pid has been given to
    /// another process since, as often happens in a restarted container. A server that was started by
    /// hand is not ours to stop.
    fn clear_stale_pid_file(&self) -> Result<(), DevError> {
        let path = self.data_dir().join("postmaster.pid");
        let Some(pid) = read_lines(&path).first().and_then(|line| line.parse().ok()) else {
            return Ok(());
        };
        if serves(pid, self.folder.path()) {
            return Err(DevError::FolderInUse {
                folder: self.folder.path().to_path_buf(),
                pid: Some(pid),
            });
        }
        // A living process of another user answers EPERM.
        if kill(Pid::from_raw(pid.cast_signed()), None) == Err(Errno::ESRCH) {
            return Ok(());
        }
        debug!(pid, file = %path.display(), "removing a pid file that names a foreign process");
        fs::remove_file(&path).doing("remove", &path)
    }

    async fn launch(&mut self, again: bool) -> Result<(), DevError> {
        let obstacle = Obstacle::new();
        loop {
            match self.launch_once(again).await {
                Ok(child) => {
                    self.child = Some(child);
                    return Ok(());
                }
                Err(error) => obstacle.pass(error).await?,
            }
        }
    }

    async fn launch_once(&self, again: bool) -> Result<Child, DevError> {
        // No server runs here, so a socket that is left can only be stale.
        empty(&self.socket_dir)?;
        let command = self.server_command(again)?;
        let child = self.spawn("postgres", command, Signal::SIGINT).await?;
        self.folder.record(child.pid())?;
        let pid_file = self.data_dir().join("postmaster.pid");
        until_ready(
            "postgres",
            &child,
            || self.log_tail(),
            || says_ready(&read_lines(&pid_file), child.pid()).then_some(()),
        )
        .await?;
        Ok(child)
    }

    fn server_command(&self, again: bool) -> Result<Command, DevError> {
        let addresses = match self.options.tcp {
            true => "127.0.0.1",
            false => "",
        };
        let fsync = match self.options.fsync {
            true => "on",
            false => "off",
        };
        let mut command = self.command("postgres", LOG, again)?;
        command
            .arg("-D")
            .arg(self.data_dir())
            .arg("-k")
            .arg(&self.socket_dir)
            .arg("-p")
            .arg(self.port.to_string())
            .args(["-c", &format!("listen_addresses={addresses}")])
            .args(["-c", &format!("fsync={fsync}")]);
        for (name, value) in &self.options.settings {
            command.args(["-c", &format!("{name}={value}")]);
        }
        command.envs(self.options.environment.iter().map(|(k, v)| (k, v)));
        Ok(command)
    }

    /// What both programs need: the user, a folder that user may be in, and a log in English.
    fn command(&self, program: &str, log: &str, append: bool) -> Result<Command, DevError> {
        let (output, errors) = self.folder.log_file(log, append)?;
        let mut command = Command::new(self.programs.join(program));
        command
            .current_dir(self.folder.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        Ok(command)
    }

    async fn spawn(
        &self,
        program: &str,
        command: Command,
        orphan_signal: Signal,
    ) -> Result<Child, DevError> {
        Child::spawn(command, orphan_signal)
            .await
            .map_err(|source| DevError::Spawn {
                program: self.programs.join(program),
                source,
            })
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            child.stop_blocking(Signal::SIGQUIT, DROP_PATIENCE);
        }
    }
}

fn find_programs() -> Result<PathBuf, DevError> {
    if let Some(value) = std::env::var_os(BIN_VARIABLE) {
        return named_programs(PathBuf::from(value));
    }
    folder_on_path(std::env::var_os("PATH").as_deref(), &PROGRAMS)
        .or_else(|| newest_version(Path::new("/usr/lib/postgresql")))
        .ok_or(DevError::PostgresNotFound)
}

fn named_programs(folder: PathBuf) -> Result<PathBuf, DevError> {
    let missing = PROGRAMS
        .iter()
        .map(|program| folder.join(program))
        .find(|program| !program.is_file());
    match missing {
        None => Ok(folder),
        Some(missing) => Err(DevError::WrongVariable {
            variable: BIN_VARIABLE,
            value: folder,
            missing,
        }),
    }
}

/// Debian keeps each major version's programs in `<root>/<version>/bin`.
fn newest_version(root: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(root).ok()?.flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let folder = entry.path().join("bin");
        holds(&folder, &PROGRAMS).then_some((version, folder))
    });
    versions.max().map(|(_, folder)| folder)
}

/// The user the server runs as; nothing when that is simply us.
fn server_user() -> Result<Option<User>, DevError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| User::from_name(name).ok().flatten())
        .map(Some)
        .ok_or(DevError::NoServerUser)
}

/// Puts the socket into the data folder, or into a temporary one if that path is too long.
fn place_socket(
    folder: &Folder,
    user: Option<&User>,
) -> Result<(PathBuf, Option<Folder>), DevError> {
    let socket_dir = folder.subfolder("socket", user)?;
    let file = format!(".s.PGSQL.{}", u16::MAX);
    if socket_dir.join(file).as_os_str().len() <= SOCKET_PATH_MAX {
        return Ok((socket_dir, None));
    }
    let elsewhere = Folder::temporary()?;
    let socket_dir = elsewhere.subfolder("socket", user)?;
    Ok((socket_dir, Some(elsewhere)))
}

/// PostgreSQL refuses port 0, so a free one is found by binding it for a moment. Should somebody else
/// take it in between, the start is tried again.
fn free_port() -> Result<u16, DevError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .doing("find a free port on", Path::new("127.0.0.1"))
}

/// The lines of a small file; none when it cannot be read.
fn read_lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn says_ready(pid_file: &[String], pid: u32) -> bool {
    let written_by_child = pid_file
        .first()
        .is_some_and(|line| *line == pid.to_string());
    let status = pid_file.get(STATUS_LINE);
    // A replica that can be read says `standby`.
    written_by_child && status.is_some_and(|status| status == "ready" || status == "standby")
}

fn percent_encode(path: &Path) -> String {
    let bytes = OsStr::as_bytes(path.as_os_str());
    bytes.iter().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            encoded.push(char::from(*byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_found_by_number_and_only_if_complete() {
        let root = tempfile::tempdir().unwrap();
        for (version, programs) in [("9", &PROGRAMS[..]), ("15", &PROGRAMS), ("17", &["initdb"])] {
            let bin = root.path().join(version).join("bin");
            fs::create_dir_all(&bin).unwrap();
            for program in programs {
                fs::write(bin.join(program), "").unwrap();
            }
        }
        assert_eq!(
            newest_version(root.path()),
            Some(root.path().join("15/bin"))
        );
    }

    #[test]
    fn a_wrong_variable_is_named_in_the_error() {
        let error = named_programs(PathBuf::from("/nowhere")).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(BIN_VARIABLE), "{message}");
        assert!(message.contains("/nowhere/initdb"), "{message}");
    }

    #[test]
    fn only_the_child_s_own_pid_file_says_ready() {
        let lines = |status: &str| {
            ["42", "/data", "1", "5432", "/socket", "", "1 2", status].map(str::to_owned)
        };
        assert!(says_ready(&lines("ready"), 42));
        assert!(says_ready(&lines("standby"), 42));
        assert!(!says_ready(&lines("starting"), 42));
        assert!(!says_ready(&lines("ready"), 43));
        assert!(!says_ready(&[], 42));
    }

    #[test]
    fn a_path_survives_percent_encoding() {
        assert_eq!(
            percent_encode(Path::new("/a b/ü.s-1")),
            "%2Fa%20b%2F%C3%BC.s-1"
        );
    }
}
