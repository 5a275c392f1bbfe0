//! A private NATS server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use nix::sys::signal::Signal;
use serde::Deserialize;

use super::child::Child;
use super::folder::{Folder, empty};
use super::{DROP_PATIENCE, DevError, Obstacle, STOP_PATIENCE, folder_on_path, until_ready};

const PROGRAM_VARIABLE: &str = "CONTINUUM_NATS_SERVER";
const PROGRAM: &str = "nats-server";
const LOG: &str = "nats.log";

/// How a [`PrivateNats`] is set up.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Where JetStream's data is kept between starts. Without it a temporary folder is used, which is
    /// removed when the server is dropped.
    pub data_dir: Option<PathBuf>,
    /// The port for clients on 127.0.0.1. Default: a free one.
    pub port: Option<u16>,
    /// A configuration file of nats-server. The other options take precedence over it.
    pub config_file: Option<PathBuf>,
    /// Further command-line arguments of nats-server.
    pub extra_args: Vec<String>,
}

/// A NATS server of our own on 127.0.0.1, with JetStream.
///
/// Dropping it stops the server; [`stop`](Self::stop) does so without blocking.
#[derive(Debug)]
pub struct PrivateNats {
    child: Option<Child>,
    program: PathBuf,
    options: NatsOptions,
    url: String,
    monitor_url: String,
    store_dir: PathBuf,
    ports_dir: PathBuf,
    // The last field, because a temporary folder is removed when it is dropped.
    folder: Folder,
}

impl PrivateNats {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// The program is missing, the data folder is in use, or the server did not start; the error then
    /// quotes the end of its log.
    pub async fn start(options: NatsOptions) -> Result<Self, DevError> {
        let program = find_program()?;
        let folder = Folder::open(options.data_dir.as_deref())?;
        folder.end_leftover(Signal::SIGTERM).await?;
        let mut server = Self {
            child: None,
            program,
            options,
            url: String::new(),
            monitor_url: String::new(),
            store_dir: folder.subfolder("jetstream", None)?,
            ports_dir: folder.subfolder("ports", None)?,
            folder,
        };
        server.launch(false).await?;
        Ok(server)
    }

    /// The URL for clients, such as `nats://127.0.0.1:4222`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the monitoring pages, such as `http://127.0.0.1:8222`.
    #[must_use]
    pub fn monitor_url(&self) -> &str {
        &self.monitor_url
    }

    /// The server's process id; nothing while it is stopped.
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

    /// Stops the server. One that does not stop in 10 s is killed.
    pub async fn stop(&mut self) {
        if let Some(child) = self.child.take() {
            child.stop(&[Signal::SIGTERM], STOP_PATIENCE).await;
        }
    }

    /// Kills the server, as a crash would.
    pub async fn kill(&mut self) {
        if let Some(child) = self.child.take() {
            child.kill().await;
        }
    }

    /// Starts the server again, with the same data and URLs. A running one is stopped first.
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

    async fn launch(&mut self, again: bool) -> Result<(), DevError> {
        let obstacle = Obstacle::new();
        loop {
            match self.launch_once(again).await {
                Ok((child, ports)) => {
                    self.child = Some(child);
                    self.url = ports.client;
                    self.monitor_url = ports.monitor;
                    return Ok(());
                }
                Err(error) => obstacle.pass(error).await?,
            }
        }
    }

    async fn launch_once(&self, again: bool) -> Result<(Child, Ports), DevError> {
        // A killed server leaves its file behind, which would mislead a later one with the same pid.
        empty(&self.ports_dir)?;
        let command = self.command(again)?;
        let child = Child::spawn(command, Signal::SIGTERM)
            .await
            .map_err(|source| DevError::Spawn {
                program: self.program.clone(),
                source,
            })?;
        self.folder.record(child.pid())?;
        let file = self.ports_file(child.pid());
        let ports = until_ready(
            PROGRAM,
            &child,
            || self.log_tail(),
            || Ports::parse(&fs::read(&file).ok()?),
        )
        .await?;
        Ok((child, ports))
    }

    fn command(&self, again: bool) -> Result<Command, DevError> {
        let (output, errors) = self.folder.log_file(LOG, again)?;
        let mut command = Command::new(&self.program);
        command
            .args(["-a", "127.0.0.1", "-js"])
            .args(["-p", &self.client_port()])
            .args(["-m", port_of(&self.monitor_url).unwrap_or("-1")])
            .arg("-sd")
            .arg(&self.store_dir)
            .arg("--ports_file_dir")
            .arg(&self.ports_dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        if let Some(config_file) = &self.options.config_file {
            command.arg("-c").arg(config_file);
        }
        command.args(&self.options.extra_args);
        Ok(command)
    }

    /// The port that was served before, else the one asked for, else any (`-1`).
    fn client_port(&self) -> String {
        match (port_of(&self.url), self.options.port) {
            (Some(known), _) => known.to_owned(),
            (None, Some(wanted)) => wanted.to_string(),
            (None, None) => "-1".to_owned(),
        }
    }

    /// The server names the file after its program and pid.
    fn ports_file(&self, pid: u32) -> PathBuf {
        let program = self.program.file_name().unwrap_or_default();
        self.ports_dir
            .join(format!("{}_{pid}.ports", program.display()))
    }
}

impl Drop for PrivateNats {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            child.stop_blocking(Signal::SIGTERM, DROP_PATIENCE);
        }
    }
}

/// The URLs that the server listens on.
#[derive(Debug, PartialEq)]
struct Ports {
    client: String,
    monitor: String,
}

impl Ports {
    /// Nothing while the file is not completely written.
    fn parse(file: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct File {
            nats: Vec<String>,
            monitoring: Vec<String>,
        }
        let file: File = serde_json::from_slice(file).ok()?;
        Some(Self {
            client: file.nats.into_iter().next()?,
            monitor: file.monitoring.into_iter().next()?,
        })
    }
}

fn port_of(url: &str) -> Option<&str> {
    url.rsplit_once(':').map(|(_, port)| port)
}

fn find_program() -> Result<PathBuf, DevError> {
    if let Some(value) = std::env::var_os(PROGRAM_VARIABLE) {
        return named_program(PathBuf::from(value));
    }
    folder_on_path(std::env::var_os("PATH").as_deref(), &[PROGRAM])
        .map(|folder| folder.join(PROGRAM))
        // Debian keeps it where the PATH of ordinary users does not lead.
        .or_else(|| Some(Path::new("/usr/sbin").join(PROGRAM)).filter(|program| program.is_file()))
        .ok_or(DevError::NatsNotFound)
}

fn named_program(program: PathBuf) -> Result<PathBuf, DevError> {
    if program.is_file() {
        return Ok(program);
    }
    Err(DevError::WrongVariable {
        variable: PROGRAM_VARIABLE,
        value: program.clone(),
        missing: program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_file_is_read_once_it_is_complete() {
        let file = br#"{"nats":["nats://127.0.0.1:4222"],"monitoring":["http://127.0.0.1:8222"]}"#;
        let ports = Ports::parse(file).unwrap();
        assert_eq!(port_of(&ports.client), Some("4222"));
        assert_eq!(port_of(&ports.monitor), Some("8222"));
        assert_eq!(Ports::parse(&file[..30]), None);
        assert_eq!(Ports::parse(b""), None);
    }

    #[test]
    fn a_wrong_variable_is_named_in_the_error() {
        let message = named_program(PathBuf::from("/nowhere/nats-server"))
            .unwrap_err()
            .to_string();
        assert!(message.contains(PROGRAM_VARIABLE), "{message}");
    }
}
