//! A child process that never outlives its parent.
//!
//! Three things keep a server from being left behind. The kernel signals the child when the thread
//! that spawned it ends ([`orphan_signal`](Child::spawn)), so all children are spawned by one thread
//! that lives as long as the process. Dropping a [`Child`] kills it. And whatever still slips through
//! is found by the next start (see [`super::folder`]).

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use tokio::sync::{oneshot, watch};
use tracing::warn;

/// A running or ended child process.
///
/// It is bound to no async runtime: it may be started in one and stopped in another, as test
/// harnesses do that share a server between tests.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    ending: Arc<Ending>,
}

/// How a child ended, once it has.
#[derive(Debug)]
struct Ending {
    /// Held while a signal is sent and while the child is reaped, so that no signal can reach a
    /// process that inherited the pid.
    status: Mutex<Option<ExitStatus>>,
    /// Wakes threads that wait for `status`.
    changed: Condvar,
    /// Wakes tasks that wait for `status`.
    seen: watch::Sender<bool>,
}

impl Child {
    /// Spawns `command` in a process group of its own, so that Ctrl-C at the terminal reaches the
    /// parent only, and has the kernel send `orphan_signal` to it if the parent dies (on Linux).
    pub(super) async fn spawn(command: Command, orphan_signal: Signal) -> io::Result<Self> {
        let (reply, spawned) = oneshot::channel();
        let job = Job {
            command,
            orphan_signal,
            reply,
        };
        spawner()?.send(job).map_err(|_| spawner_is_gone())?;
        spawned.await.map_err(|_| spawner_is_gone())?
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// How the child ended; nothing while it runs.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        *self.ending.lock()
    }

    /// Sends `signal` unless the child has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let status = self.ending.lock();
        if status.is_none()
            && let Err(error) = kill(self.pid, signal)
        {
            warn!(pid = self.pid.as_raw(), %signal, %error, "a child process could not be signalled");
        }
    }

    /// Waits until the child has ended.
    pub(super) async fn exited(&self) -> ExitStatus {
        let mut seen = self.ending.seen.subscribe();
        loop {
            if let Some(status) = self.status() {
                return status;
            }
            seen.changed()
                .await
                .expect("the sender lives in `self.ending`");
        }
    }

    /// Sends the first signal and waits for the end; after `patience` the next one; at last SIGKILL.
    pub(super) async fn stop(&self, signals: &[Signal], patience: Duration) {
        for signal in signals {
            self.signal(*signal);
            if tokio::time::timeout(patience, self.exited()).await.is_ok() {
                return;
            }
            warn!(pid = self.pid.as_raw(), %signal, "a child process did not stop in time");
        }
        self.kill().await;
    }

    /// Sends SIGKILL and waits for the end.
    pub(super) async fn kill(&self) {
        self.signal(Signal::SIGKILL);
        self.exited().await;
    }

    /// The blocking form of [`stop`](Self::stop), for destructors.
    pub(super) fn stop_blocking(&self, signal: Signal, patience: Duration) {
        self.signal(signal);
        let status = self.ending.lock();
        let (status, _) = self
            .ending
            .changed
            .wait_timeout_while(status, patience, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        drop(status);
        self.signal(Signal::SIGKILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        // The guarded value is written in one assignment, so it is whole even after a panic.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Job {
    command: Command,
    orphan_signal: Signal,
    reply: oneshot::Sender<io::Result<Child>>,
}

/// The thread that spawns every child.
///
/// The parent-death signal fires when the spawning *thread* ends, so it must be neither a thread of
/// an async runtime's pool nor the thread of a test.
fn spawner() -> io::Result<&'static mpsc::Sender<Job>> {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    if let Some(spawner) = SPAWNER.get() {
        return Ok(spawner);
    }
    let (jobs, queue) = mpsc::channel();
    std::thread::Builder::new()
        .name("continuum-children".to_owned())
        .spawn(move || spawn_jobs(&queue))?;
    // Of two threads that race here, the loser's sender is dropped and its thread ends unused.
    Ok(SPAWNER.get_or_init(|| jobs))
}

fn spawn_jobs(queue: &mpsc::Receiver<Job>) {
    for job in queue {
        let child = spawn_here(job.command, job.orphan_signal);
        // A caller that has gone away gets its child dropped, and thereby killed.
        drop(job.reply.send(child));
    }
}

fn spawner_is_gone() -> io::Error {
    io::Error::other("the thread that spawns child processes has ended")
}

fn spawn_here(mut command: Command, orphan_signal: Signal) -> io::Result<Child> {
    command.process_group(0);
    let parent = getpid();
    // SAFETY: the closure runs between fork and exec. It only makes the system calls prctl and
    // getppid and allocates nothing.
    unsafe {
        command.pre_exec(move || die_with(parent, orphan_signal));
    }
    let process = command.spawn()?;
    let pid = Pid::from_raw(process.id().cast_signed());
    let ending = Arc::new(Ending {
        status: Mutex::new(None),
        changed: Condvar::new(),
        seen: watch::Sender::new(false),
    });
    let child = Child {
        pid,
        ending: Arc::clone(&ending),
    };
    std::thread::Builder::new()
        .name(format!("continuum-child-{pid}"))
        .spawn(move || reap(process, &ending))?;
    Ok(child)
}

/// Asks the kernel to signal this process when `parent` ends. A parent that ended before the request
/// is noticed by the second look.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid, signal: Signal) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(signal)?;
    if nix::unistd::getppid() != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Other systems have no such request; there the next start ends what was left behind.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid, _signal: Signal) -> io::Result<()> {
    Ok(())
}

/// Waits for the end of `process`, on a thread of its own, and publishes its status.
fn reap(mut process: std::process::Child, ending: &Ending) {
    // First wait and leave a zombie behind, which keeps the pid taken; then reap it under the lock.
    wait_leaving_zombie(process.id());
    let mut status = ending.lock();
    *status = Some(process.wait().unwrap_or_else(|error| {
        warn!(pid = process.id(), %error, "the exit status of a child process was lost");
        ExitStatus::default()
    }));
    drop(status);
    ending.changed.notify_all();
    ending.seen.send_replace(true);
}

fn wait_leaving_zombie(pid: u32) {
    loop {
        // SAFETY: siginfo_t is plain data for which all zeroes is a valid value, and waitid writes
        // only into the one that is handed over.
        let outcome = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PID,
                pid,
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        let interrupted =
            outcome != 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if !interrupted {
            return;
        }
    }
}
