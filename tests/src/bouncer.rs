//! PgBouncer before a Postgres.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::programs::as_server_user;
use crate::until;

/// Where Debian keeps it.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A PgBouncer of a test's own. Dropping it kills it.
pub struct Bouncer {
    _child: Child,
    port: u16,
    _folder: TempDir,
}

impl Bouncer {
    /// Starts one on a free port, before the server that listens on `postgres_port`. `settings` are further lines of its
    /// configuration.
    ///
    /// # Panics
    /// If it can't be started: a test without it would prove nothing.
    pub async fn start(postgres_port: u16, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let port = free_port();
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, configuration(port, postgres_port, settings)).expect("room for a file");
        let mut child = as_server_user(Path::new(PROGRAM))
            .arg("-q")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("PgBouncer is installed");
        until("PgBouncer accepts connections", || {
            let ended = child.try_wait().expect("it is our child");
            assert_eq!(ended, None, "PgBouncer ended");
            async move { TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok() }
        })
        .await;
        Self {
            _child: child,
            port,
            _folder: folder,
        }
    }

    /// The URL of Postgres through it.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
            self.port
        )
    }
}

fn configuration(port: u16, postgres_port: u16, settings: &[&str]) -> String {
    format!(
        "[databases]
         * = host=127.0.0.1 port={postgres_port} user=postgres
         [pgbouncer]
         listen_addr = 127.0.0.1
         listen_port = {port}
         unix_socket_dir =
         auth_type = any
         max_client_conn = 200
         {}\n",
        settings.join("\n")
    )
    .lines()
    .map(|line| format!("{}\n", line.trim()))
    .collect()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
