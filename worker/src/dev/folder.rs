//! The folder that a private server keeps its data in, and the lock on it.
//!
//! A folder serves one process at a time. The lock is an `flock` on a file, which the kernel releases
//! however the process ends, so a lock never goes stale. The file's content is the pid of the server,
//! which lets the next holder end a server that outlived a killed parent.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use super::{DevError, IoContext as _};

/// How often files and processes of others are looked at, where nothing can signal a change.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a server that outlived its parent may take to stop.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);

/// How much of a log an error message quotes, in bytes.
const TAIL_BYTES: u64 = 4096;

const LOCK: &str = "lock";

/// Every temporary folder's name begins with this, so that abandoned ones are recognized.
const TEMPORARY_PREFIX: &str = "continuum-dev-";

/// A locked folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
    /// Removes the folder when dropped.
    _temporary: Option<TempDir>,
}

impl Folder {
    /// Opens `path`, creating it if need be, or a temporary folder that is removed at drop.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, DevError> {
        match path {
            Some(path) => Self::lasting(path),
            None => Self::temporary(),
        }
    }

    fn lasting(path: &Path) -> Result<Self, DevError> {
        create_traversable(path)?;
        // Children are started elsewhere and their command lines are searched for this path.
        let path = fs::canonicalize(path).doing("find the data folder", path)?;
        let lock = open_lock(&path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DevError::FolderInUse {
                folder: path.clone(),
                pid: read_pid(&lock),
            },
            TryLockError::Error(source) => DevError::Io {
                action: "lock",
                path: path.join(LOCK),
                source,
            },
        })?;
        Ok(Self {
            path,
            lock,
            _temporary: None,
        })
    }

    /// Creates a temporary folder, and removes those that killed processes left behind.
    pub(super) fn temporary() -> Result<Self, DevError> {
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let temporary = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempdir_in(&parent)
            .doing("create a temporary folder in", &parent)?;
        let path = fs::canonicalize(temporary.path())
            .doing("find the temporary folder", temporary.path())?;
        make_traversable(&path)?;
        // The lock gets its name only once it is held: a folder that has a lock nobody holds is
        // abandoned, and another process may remove it.
        let unnamed = path.join("lock.new");
        let lock = open_lock(&unnamed)?;
        lock.lock().doing("lock", &unnamed)?;
        fs::rename(&unnamed, path.join(LOCK)).doing("rename", &unnamed)?;
        Ok(Self {
            path,
            lock,
            _temporary: Some(temporary),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folder `name` inside this one if it is missing, readable by `user` only.
    pub(super) fn subfolder(&self, name: &str, user: Option<&User>) -> Result<PathBuf, DevError> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).doing("create", &path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700)).doing("protect", &path)?;
        if let Some(user) = user {
            nix::unistd::chown(&path, Some(user.uid), Some(user.gid))
                .map_err(io::Error::from)
                .doing("hand over to the server's user", &path)?;
        }
        Ok(path)
    }

    /// Opens the log `name` for a child's output and error output. It starts empty unless `append`.
    pub(super) fn log_file(&self, name: &str, append: bool) -> Result<(Stdio, Stdio), DevError> {
        let path = self.path.join(name);
        if !append {
            File::create(&path).doing("create", &path)?;
        }
        // Append mode lets the two handles write to one file without overwriting each other.
        let log = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .doing("open", &path)?;
        let twin = log.try_clone().doing("open", &path)?;
        Ok((log.into(), twin.into()))
    }

    /// The last lines of the log `name`; empty when there is none.
    pub(super) fn log_tail(&self, name: &str) -> String {
        read_tail(&self.path.join(name)).unwrap_or_default()
    }

    /// Notes which process serves this folder.
    pub(super) fn record(&self, pid: u32) -> Result<(), DevError> {
        let mut lock = &self.lock;
        lock.set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(lock, "{pid}"))
            .doing("write", &self.path.join(LOCK))
    }

    /// Ends the recorded server if it outlived the process that started it.
    pub(super) async fn end_leftover(&self, stop: Signal) -> Result<(), DevError> {
        let Some(pid) = read_pid(&self.lock).filter(|pid| serves(*pid, &self.path)) else {
            return Ok(());
        };
        info!(pid, folder = %self.path.display(), "stopping a server that outlived its parent");
        for signal in [stop, Signal::SIGKILL] {
            // It may be gone by now, which is what is wanted.
            if let Err(error) = kill(Pid::from_raw(pid.cast_signed()), signal) {
                debug!(pid, %error, "the server was not signalled");
            }
            if self.gone(pid, LEFTOVER_PATIENCE).await {
                return Ok(());
            }
        }
        Err(DevError::FolderInUse {
            folder: self.path.clone(),
            pid: Some(pid),
        })
    }

    /// Waits until process `pid` no longer serves this folder; false if it still does after `patience`.
    pub(super) async fn gone(&self, pid: u32, patience: Duration) -> bool {
        let gone = async {
            while serves(pid, &self.path) {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(patience, gone).await.is_ok()
    }

    /// Refuses with a clear message when `user` cannot reach this folder through its parents.
    pub(super) fn check_reachable(&self, user: &User) -> Result<(), DevError> {
        for parent in self.path.ancestors() {
            let about = fs::metadata(parent).doing("inspect", parent)?;
            let mode = about.mode();
            let reachable = mode & 0o001 != 0
                || (about.uid() == user.uid.as_raw() && mode & 0o100 != 0)
                || (about.gid() == user.gid.as_raw() && mode & 0o010 != 0);
            if !reachable {
                return Err(DevError::FolderUnreachable {
                    folder: self.path.clone(),
                    parent: parent.to_path_buf(),
                    user: user.name.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Creates `path` and its missing parents, each traversable for the user a server may run as.
fn create_traversable(path: &Path) -> Result<(), DevError> {
    if path.is_dir() {
        // The folder itself was given to us; its parents were not and stay as they are.
        return make_traversable(path);
    }
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        && !parent.exists()
    {
        create_traversable(parent)?;
    }
    fs::create_dir_all(path).doing("create", path)?;
    make_traversable(path)
}

fn make_traversable(path: &Path) -> Result<(), DevError> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let mode = fs::metadata(path).doing("inspect", path)?.mode();
    fs::set_permissions(path, Permissions::from_mode(mode | 0o001)).doing("open the way into", path)
}

/// Removes every file in `folder`.
pub(super) fn empty(folder: &Path) -> Result<(), DevError> {
    for entry in fs::read_dir(folder).doing("list", folder)? {
        let path = entry.doing("list", folder)?.path();
        fs::remove_file(&path).doing("remove", &path)?;
    }
    Ok(())
}

fn open_lock(path: &Path) -> Result<File, DevError> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .doing("open", path)
}

fn read_pid(mut lock: &File) -> Option<u32> {
    let mut content = String::new();
    lock.seek(SeekFrom::Start(0)).ok()?;
    lock.read_to_string(&mut content).ok()?;
    content.trim().parse().ok()
}

/// Removes the temporary folders in `parent` that no living process holds.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with(TEMPORARY_PREFIX)
            && entry
                .metadata()
                .is_ok_and(|about| about.is_dir() && about.uid() == geteuid().as_raw());
        if ours && let Err(error) = remove_if_abandoned(&entry.path()) {
            debug!(folder = %entry.path().display(), %error, "an abandoned folder stays");
        }
    }
}

fn remove_if_abandoned(folder: &Path) -> io::Result<()> {
    // Opening without creating: a folder that has no lock yet is being made at this moment.
    let lock = match File::options().read(true).open(folder.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let held = lock.try_lock().is_err();
    let served = read_pid(&lock).is_some_and(|pid| serves(pid, folder));
    if held || served {
        return Ok(());
    }
    fs::remove_dir_all(folder)
}

/// Whether process `pid` is alive and names something inside `folder` on its command line, as every
/// server started here does. A process that merely inherited the pid does not.
pub(super) fn serves(pid: u32, folder: &Path) -> bool {
    let inside = format!("{}/", folder.display());
    command_line(pid).is_some_and(|command_line| command_line.contains(&inside))
}

#[cfg(target_os = "linux")]
fn command_line(pid: u32) -> Option<String> {
    // The command line of a zombie is empty.
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(not(target_os = "linux"))]
fn command_line(pid: u32) -> Option<String> {
    let listing = std::process::Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&listing.stdout).into_owned())
}

fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line was cut somewhere, unless the whole file was read.
    let whole_lines = match text.split_once('\n') {
        Some((_, rest)) if start > 0 => rest,
        _ => &text,
    };
    Ok(whole_lines.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_refused_while_another_holds_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("deep/data");
        let held = Folder::open(Some(&path)).unwrap();
        held.record(4711).unwrap();

        let refused = Folder::open(Some(&path)).unwrap_err();
        assert!(
            matches!(
                refused,
                DevError::FolderInUse {
                    pid: Some(4711),
                    ..
                }
            ),
            "{refused}"
        );

        drop(held);
        Folder::open(Some(&path)).unwrap();
    }

    #[test]
    fn a_temporary_folder_goes_with_its_holder() {
        let folder = Folder::temporary().unwrap();
        let path = folder.path().to_path_buf();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn abandoned_folders_are_removed_and_held_ones_stay() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = parent.path().join(format!("{TEMPORARY_PREFIX}{name}"));
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (abandoned, held, unfinished) = (make("abandoned"), make("held"), make("unfinished"));
        File::create(abandoned.join(LOCK)).unwrap();
        let lock = File::create(held.join(LOCK)).unwrap();
        lock.lock().unwrap();

        remove_abandoned(parent.path());

        assert!(!abandoned.exists());
        assert!(held.exists());
        assert!(unfinished.exists());
    }

    #[test]
    fn the_tail_of_a_log_starts_at_a_line() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("log");
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(read_tail(&path).unwrap(), "one\ntwo");

        fs::write(&path, "x".repeat(5000) + "\nlast words\n").unwrap();
        assert_eq!(read_tail(&path).unwrap(), "last words");
    }
}
