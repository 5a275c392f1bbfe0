//! A clock that a test sets, for one process and its children.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

/// The wall clock of one process, which libfaketime takes from a file. Waits stay real: they are measured by another
/// clock.
pub struct FakeClock {
    folder: TempDir,
}

impl FakeClock {
    /// A clock that shows the true time until it is [set](Self::set).
    ///
    /// # Panics
    /// If there is no room for a file.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Postgres runs as another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let clock = Self { folder };
        clock.set(0);
        clock
    }

    /// What a process is started with to have this clock. It looks at the file each time that it looks at the clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let offset = self.folder.path().join("offset");
        [
            ("LD_PRELOAD", library().display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// The clock shows so many seconds more than the true time.
    ///
    /// # Panics
    /// If there is no room for a file.
    pub fn set(&self, seconds: i64) {
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{seconds:+}\n")).expect("room for a file");
        // Nobody ever reads half a number.
        fs::rename(new, self.folder.path().join("offset")).expect("it is ours");
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Debian's package `faketime` brings it.
fn library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("every system has it");
    let found = folders
        .flatten()
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
        .find(|library| library.is_file());
    found.expect("libfaketime is installed")
}
