//! A second Postgres that follows another.

use std::path::Path;

use continuum_worker::dev::{PostgresOptions, PrivatePostgres};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::programs::{as_server_user, give_to_server_user, postgres_program};

/// Fast settings for a Postgres that listens on a port.
#[must_use]
pub fn postgres_on_a_port() -> PostgresOptions {
    PostgresOptions {
        fsync: false,
        tcp: true,
        ..PostgresOptions::default()
    }
}

/// The port of a server's URL.
///
/// # Panics
/// If it listens on none.
#[must_use]
pub fn port_of(postgres: &PrivatePostgres) -> u16 {
    let url = postgres.tcp_url().expect("it listens on a port");
    let port = url.split(['/', ':']).find_map(|part| part.parse().ok());
    port.expect("the URL names a port")
}

/// A Postgres whose data a test can get at.
pub struct PostgresNode {
    /// The server.
    pub postgres: PrivatePostgres,
    folder: TempDir,
}

impl PostgresNode {
    /// A new one.
    ///
    /// # Panics
    /// If it can't be started.
    pub async fn primary() -> Self {
        Self::start(Self::folder()).await
    }

    /// A copy of the server that is reached over `port`, which it follows from then on.
    ///
    /// # Panics
    /// If it can't be made.
    pub async fn follow(port: u16) -> Self {
        let folder = Self::folder();
        let copied = as_server_user(&postgres_program("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-U", "postgres", "-X", "stream", "-R"])
            .args(["--checkpoint=fast", "--no-sync"])
            .args(["-p", &port.to_string()])
            .arg("-D")
            .arg(folder.path().join("data"))
            .current_dir(folder.path())
            .output()
            .await
            .expect("Postgres's programs are installed");
        assert!(copied.status.success(), "{copied:?}");
        Self::start(folder).await
    }

    /// Makes a follower a server of its own.
    ///
    /// # Panics
    /// If that fails.
    pub async fn promote(&self) {
        let promoted = as_server_user(&postgres_program("pg_ctl"))
            .args(["promote", "-w", "-D"])
            .arg(self.data())
            .current_dir(self.folder.path())
            .output()
            .await
            .expect("Postgres's programs are installed");
        assert!(promoted.status.success(), "{promoted:?}");
    }

    /// Lets the server only be read, open sessions included, as one that became a replica.
    ///
    /// # Panics
    /// If it is not running.
    pub fn set_read_only(&self) {
        let file = self.data().join("postgresql.auto.conf");
        std::fs::write(file, "default_transaction_read_only = on\n").expect("root or its owner");
        let pid = self.postgres.pid().expect("it runs");
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGHUP).expect("it is our child");
    }

    fn folder() -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        give_to_server_user(folder.path());
        folder
    }

    async fn start(folder: TempDir) -> Self {
        let options = PostgresOptions {
            data_dir: Some(folder.path().to_owned()),
            ..postgres_on_a_port()
        };
        let postgres = PrivatePostgres::start(options)
            .await
            .expect("a private Postgres starts");
        Self { postgres, folder }
    }

    fn data(&self) -> std::path::PathBuf {
        Path::new(self.folder.path()).join("data")
    }
}
