//! The folder that the demo works in.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

/// A folder that lasts, or one that goes away if all went well.
pub(super) enum Folder {
    Lasting(PathBuf),
    Temporary(TempDir),
}

impl Folder {
    /// Opens the empty folder `lasting`, creating it if need be; without one, a temporary folder.
    pub(super) fn open(lasting: Option<&Path>) -> anyhow::Result<Self> {
        match lasting {
            Some(path) => Self::lasting(path).with_context(|| path.display().to_string()),
            None => {
                // Started by root, Postgres runs as another user, who must get through to its data.
                let temporary = tempfile::Builder::new()
                    .prefix("continuum-demo-")
                    .permissions(Permissions::from_mode(0o711))
                    .tempdir()
                    .context("there is no room for a temporary folder")?;
                Ok(Self::Temporary(temporary))
            }
        }
    }

    fn lasting(path: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(path)?;
        let is_empty = fs::read_dir(path)?.next().is_none();
        ensure!(
            is_empty,
            "the folder is not empty; an earlier ledger would be counted too"
        );
        Ok(Self::Lasting(fs::canonicalize(path)?))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Lasting(path) => path,
            Self::Temporary(temporary) => temporary.path(),
        }
    }

    /// Removes the folder if it is temporary and all went `well`; says where it is if it stays.
    pub(super) fn close(self, well: bool) -> Option<PathBuf> {
        match self {
            Self::Lasting(path) => Some(path),
            Self::Temporary(temporary) if well => {
                if let Err(error) = temporary.close() {
                    eprintln!("demo: the temporary folder was not removed: {error}");
                }
                None
            }
            Self::Temporary(temporary) => Some(temporary.keep()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_stays_only_after_a_failure() {
        let folder = Folder::open(None).unwrap();
        let path = folder.path().to_owned();
        assert_eq!(folder.close(true), None);
        assert!(!path.exists());

        let kept = Folder::open(None).unwrap().close(false).unwrap();
        assert!(kept.exists());
        fs::remove_dir(kept).unwrap();
    }

    #[test]
    fn a_folder_with_an_earlier_ledger_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("demo");
        assert!(Folder::open(Some(&path)).is_ok());
        fs::write(path.join("effects.jsonl"), "").unwrap();
        assert!(Folder::open(Some(&path)).is_err());
    }
}
