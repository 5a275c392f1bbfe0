//! What can be done to a cluster, and undone.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::Cluster;
use crate::{Cut, Proxy};

/// How much longer a packet takes on a slow link.
const SLOW_LINK: Duration = Duration::from_millis(40);

/// How much longer a flush takes on a slow disk.
const SLOW_FLUSH: Duration = Duration::from_millis(60);

/// Which of a worker's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The one to Postgres.
    Postgres,
    /// The one to NATS.
    Nats,
    /// Both at the same time: the worker is alone in the world.
    All,
}

/// How a server goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStop {
    /// As it does for an update: connections are closed, everything is written.
    Fast,
    /// Postgres only: all processes end at once and nothing is written.
    Immediate,
    /// Its main process is killed.
    Crash,
}

/// A fault. Those of a worker name no victim here; see [`Step`](super::Step).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9; another process comes when the fault is lifted.
    Kill,
    /// SIGTERM; another process comes when the fault is lifted.
    Leave,
    /// SIGSTOP, and SIGCONT when it is lifted.
    Halt,
    /// What goes this way is held up, and nobody is told.
    Cut(Link, Cut),
    /// All connections are closed, and new ones refused.
    Refuse(Link),
    /// Everything takes longer.
    Slow(Link),
    /// The worker's wall clock jumps by so many minutes, and back.
    Clock(i64),
    /// Postgres goes down, and comes back with the same data.
    Postgres(ServerStop),
    /// NATS goes down, and comes back with the same streams.
    Nats(ServerStop),
    /// Each flush of Postgres to its disk takes longer.
    SlowDisk,
}

impl Fault {
    /// Whether it strikes a server, and so everybody.
    #[must_use]
    pub const fn is_of_a_server(self) -> bool {
        matches!(self, Self::Postgres(_) | Self::Nats(_) | Self::SlowDisk)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = |link: &Link| match link {
            Link::Postgres => "Postgres",
            Link::Nats => "NATS",
            Link::All => "Postgres and NATS",
        };
        let text = match self {
            Self::Kill => "kill -9".to_owned(),
            Self::Leave => "SIGTERM".to_owned(),
            Self::Halt => "SIGSTOP, SIGCONT".to_owned(),
            Self::Cut(from, Cut::Both) => format!("cut from {}", link(from)),
            Self::Cut(from, Cut::ToServer) => format!("not heard by {}", link(from)),
            Self::Cut(from, Cut::FromServer) => format!("deaf to {}", link(from)),
            Self::Refuse(by) => format!("refused by {}", link(by)),
            Self::Slow(to) => format!("slow link to {}", link(to)),
            Self::Clock(minutes) => format!("clock {minutes:+} min"),
            Self::Postgres(ServerStop::Fast) => "Postgres restarts".to_owned(),
            Self::Postgres(ServerStop::Immediate) => "Postgres stops at once".to_owned(),
            Self::Postgres(ServerStop::Crash) => "Postgres is killed".to_owned(),
            Self::Nats(ServerStop::Crash | ServerStop::Immediate) => "NATS is killed".to_owned(),
            Self::Nats(ServerStop::Fast) => "NATS restarts".to_owned(),
            Self::SlowDisk => "slow disk under the WAL".to_owned(),
        };
        f.pad(&text)
    }
}

/// A fault that was injected, and has to be lifted.
#[must_use = "it has to be lifted"]
pub struct Injected {
    fault: Fault,
    victim: usize,
    disk: Option<Child>,
}

impl Cluster {
    /// Injects a fault; `victim` is the worker that it strikes, if it is one of a worker.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn inject(&self, fault: Fault, victim: usize) -> Injected {
        let mut disk = None;
        match fault {
            Fault::Kill => self.member(victim).await.kill().await,
            Fault::Leave => drop(self.member(victim).await.leave_early().await),
            Fault::Halt => self.member(victim).await.process().pause(),
            Fault::Cut(link, cut) => self.links(victim, link, |proxy| proxy.cut(cut)).await,
            Fault::Refuse(link) => self.links(victim, link, Proxy::refuse).await,
            Fault::Slow(link) => {
                self.links(victim, link, |proxy| proxy.delay(SLOW_LINK))
                    .await;
            }
            Fault::Clock(minutes) => self.member(victim).await.clock.set(minutes * 60),
            Fault::Postgres(stop) => self.stop_postgres(stop).await,
            Fault::Nats(ServerStop::Fast) => self.nats.lock().await.stop().await,
            Fault::Nats(ServerStop::Immediate | ServerStop::Crash) => {
                self.nats.lock().await.kill().await;
            }
            Fault::SlowDisk => {
                let postgres = self.postgres.lock().await;
                disk = Some(slow_disk(postgres.pid().expect("it runs")));
            }
        }
        Injected {
            fault,
            victim,
            disk,
        }
    }

    /// Lifts a fault. Whether it was really there all the time: who may not trace other processes can't slow a disk.
    ///
    /// # Panics
    /// If that is not possible.
    pub async fn lift(&self, injected: Injected) -> bool {
        let Injected {
            fault,
            victim,
            disk,
        } = injected;
        match fault {
            Fault::Kill | Fault::Leave => self.member(victim).await.boot(),
            Fault::Halt => self.member(victim).await.process().resume(),
            Fault::Cut(link, _) | Fault::Refuse(link) | Fault::Slow(link) => {
                self.links(victim, link, Proxy::forward).await;
            }
            Fault::Clock(_) => self.member(victim).await.clock.set(0),
            Fault::Postgres(_) => {
                let restarted = self.postgres.lock().await.restart().await;
                restarted.expect("Postgres comes back");
            }
            Fault::Nats(_) => {
                let restarted = self.nats.lock().await.restart().await;
                restarted.expect("NATS comes back");
            }
            Fault::SlowDisk => return detach(disk.expect("it was injected")).await,
        }
        true
    }

    async fn links(&self, victim: usize, link: Link, change: impl Fn(&Proxy)) {
        let member = self.member(victim).await;
        if link != Link::Nats {
            change(&member.postgres);
        }
        if link != Link::Postgres {
            change(&member.nats);
        }
    }

    async fn stop_postgres(&self, stop: ServerStop) {
        let mut postgres = self.postgres.lock().await;
        match stop {
            ServerStop::Fast => postgres.stop().await,
            ServerStop::Immediate => {
                let pid = postgres.pid().expect("it runs").cast_signed();
                kill(Pid::from_raw(pid), Signal::SIGQUIT).expect("it is our child");
                postgres.exited().await;
            }
            ServerStop::Crash => postgres.kill().await,
        }
    }
}

/// A disk can't be slowed without being root of the machine, so what is slowed are the calls that wait for it: strace
/// makes each flush of each process of Postgres last longer. All their other calls take a little longer too.
fn slow_disk(postmaster: u32) -> Child {
    let children = format!("/proc/{postmaster}/task/{postmaster}/children");
    let children = std::fs::read_to_string(Path::new(&children)).expect("Postgres runs");
    let micros = SLOW_FLUSH.as_micros();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg("trace=fsync,fdatasync")
        .arg("-e")
        .arg(format!("inject=fsync,fdatasync:delay_enter={micros}"))
        .args(["-p", &postmaster.to_string()])
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true);
    for child in children.split_whitespace() {
        strace.args(["-p", child]);
    }
    strace.spawn().expect("strace is installed")
}

async fn detach(mut strace: Child) -> bool {
    if strace.try_wait().expect("it is our child").is_some() {
        return false;
    }
    let pid = strace.id().expect("it was not waited for").cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("it is our child");
    strace.wait().await.expect("it is our child");
    true
}
