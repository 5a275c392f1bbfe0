//! The worker processes.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::stage::{INSTANCE, SIGNAL_ACK_WAIT, Stage};

/// Set to the demo's process id for the workers that it starts.
const PARENT: &str = "ORDERS_DEMO_PID";

/// How long the payment provider and the parcel service take, so that there is something to see.
const SLOW: &str = "400ms";

const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How much of a log an error message quotes, in bytes.
const TAIL_BYTES: i64 = 2048;

/// The workers that are alive.
pub(super) struct Crew {
    members: Vec<Member>,
}

struct Member {
    name: String,
    pid: Pid,
    process: Child,
    log: PathBuf,
}

/// Whom the demo killed.
pub(super) struct Victim {
    pub(super) name: String,
    pub(super) pid: Pid,
}

impl Crew {
    /// Starts `size` workers.
    pub(super) fn hire(size: u16, stage: &Stage) -> anyhow::Result<Self> {
        let members = (1..=size).map(|number| Member::hire(number, stage));
        Ok(Self {
            members: members.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Kills the worker that holds the most runs; `held` says how many each holds, by name.
    pub(super) async fn kill_busiest(
        &mut self,
        held: &BTreeMap<String, usize>,
    ) -> anyhow::Result<Victim> {
        let busiest = (0..self.members.len())
            .max_by_key(|&member| held.get(&self.members[member].name))
            .context("no worker is left")?;
        let mut member = self.members.swap_remove(busiest);
        kill(member.pid, Signal::SIGKILL)?;
        member.process.wait().await?;
        let Member { name, pid, .. } = member;
        Ok(Victim { name, pid })
    }

    /// Fails if a worker has ended that nobody killed.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            if let Some(status) = member.process.try_wait()? {
                let Member { name, log, .. } = member;
                bail!(
                    "{name} ended by itself with {status}; its last words:\n{}",
                    tail(log)
                );
            }
        }
        Ok(())
    }

    /// Lets all workers leave in order.
    pub(super) async fn dismiss(&mut self) {
        futures::future::join_all(self.members.iter_mut().map(Member::dismiss)).await;
    }
}

impl Member {
    fn hire(number: u16, stage: &Stage) -> anyhow::Result<Self> {
        let name = format!("worker-{number}");
        let log = stage.folder.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(env::current_exe()?);
        for (variable, _) in env::vars_os() {
            if is_setting(&variable.to_string_lossy()) {
                command.env_remove(variable);
            }
        }
        let process = command
            .arg("worker")
            .env("CONTINUUM_INSTANCE", INSTANCE)
            .env("CONTINUUM_DATABASE_URL", stage.postgres_url())
            .env("CONTINUUM_NATS_URL", stage.nats_url())
            .env("CONTINUUM_WORKER_NAME", &name)
            .env(
                "CONTINUUM_SIGNAL_ACK_WAIT",
                humantime::format_duration(SIGNAL_ACK_WAIT).to_string(),
            )
            .env("ORDERS_LEDGER", stage.ledger.folder())
            .env("ORDERS_SLOW", SLOW)
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C at the terminal is for the demo, which then dismisses its workers.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        let pid = process.id().context("the worker has no process id")?;
        Ok(Self {
            name,
            pid: Pid::from_raw(pid.cast_signed()),
            process,
            log,
        })
    }

    async fn dismiss(&mut self) {
        // One that has ended already needs no telling; its pid is ours until it was waited for.
        if matches!(self.process.try_wait(), Ok(None)) && kill(self.pid, Signal::SIGTERM).is_ok() {
            let left = timeout(STOP_PATIENCE, self.process.wait()).await;
            if left.is_err() {
                eprintln!("demo: {} did not leave in time and is killed", self.name);
            }
        }
    }
}

/// The settings of whoever runs the demo are not for its workers.
fn is_setting(variable: &str) -> bool {
    variable.starts_with("CONTINUUM_") || variable.starts_with("ORDERS_")
}

fn tail(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let length = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX);
        file.seek(SeekFrom::End(-length.min(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("({error})"))
}

/// Lets this process end with the demo that started it, if one did, however that ends.
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    let Some(parent) = env::var_os(PARENT) else {
        return Ok(());
    };
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have ended before the kernel was asked.
    if parent.to_str() != Some(&getppid().to_string()) {
        bail!("the demo that started this worker has ended");
    }
    Ok(())
}
