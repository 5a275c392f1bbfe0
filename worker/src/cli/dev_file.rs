//! The file through which `dev` tells the other commands where its servers are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use continuum_schema::Name;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::error::{CliError, Code};

/// The folder that `dev` keeps its data in, unless it is told another, and where the other commands look.
pub(super) const DEFAULT_FOLDER: &str = ".continuum";

const FILE: &str = "dev.json";

/// Where the servers of a `dev` are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DevFile {
    /// The process that the servers live and die with.
    pub(super) pid: i32,
    pub(super) instance: Name,
    pub(super) database_url: String,
    /// Nothing where no nats-server is installed.
    pub(super) nats_url: Option<String>,
}

/// Where the other commands look.
pub(super) fn path_here() -> PathBuf {
    Path::new(".").join(DEFAULT_FOLDER).join(FILE)
}

impl DevFile {
    /// The `dev` that runs in the current folder, if there is one.
    pub(super) fn find() -> Result<Option<Self>, CliError> {
        let path = path_here();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&path, &error)),
        };
        let file: Self = serde_json::from_slice(&text).map_err(|error| unusable(&path, &error))?;
        if file.is_over() {
            return Err(CliError::new(
                Code::Unavailable,
                format!(
                    "the `continuum dev` of {} (process {}) has ended; start it again, or set CONTINUUM_DATABASE_URL",
                    path.display(),
                    file.pid
                ),
            ));
        }
        Ok(Some(file))
    }

    /// A killed `dev` leaves its file behind.
    fn is_over(&self) -> bool {
        kill(Pid::from_raw(self.pid), None) == Err(Errno::ESRCH)
    }

    /// Writes the file into the data folder; it is removed when the guard is dropped.
    pub(super) fn publish(&self, folder: &Path) -> Result<Published, CliError> {
        let path = folder.join(FILE);
        let text = serde_json::to_vec_pretty(self).expect("the file holds text and numbers only");
        // Another name first, so that nobody reads half a file.
        let unfinished = folder.join("dev.json.new");
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|error| unusable(&path, &error))?;
        Ok(Published { path })
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> CliError {
    CliError::usage(format!("{} can't be used: {error}", path.display()))
}

/// A file that is there for as long as this value.
pub(super) struct Published {
    path: PathBuf,
}

impl Drop for Published {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(file = %self.path.display(), %error, "the file stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_file_goes_with_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        let file = DevFile {
            pid: i32::try_from(std::process::id()).unwrap(),
            instance: Name::new("default").unwrap(),
            database_url: "postgres:///".into(),
            nats_url: None,
        };
        let published = file.publish(folder.path()).unwrap();
        let text = fs::read(folder.path().join(FILE)).unwrap();
        assert_eq!(serde_json::from_slice::<DevFile>(&text).unwrap(), file);
        assert!(!file.is_over());
        drop(published);
        assert!(!folder.path().join(FILE).exists());
        assert!(
            DevFile {
                pid: i32::MAX,
                ..file
            }
            .is_over()
        );
    }
}
