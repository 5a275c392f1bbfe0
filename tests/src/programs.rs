//! Programs of the machine that only tests run.

use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};
use tokio::process::Command;

/// A command that runs as the user that Postgres runs as, since neither Postgres's programs nor PgBouncer run as root.
/// The process ends with the test that started it, however that ends.
///
/// # Panics
/// If a test runs as root on a machine without a user for servers.
#[must_use]
pub(crate) fn as_server_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = server_user() {
        command.args(["--reuid", &user.uid.to_string()]).args([
            "--regid",
            &user.gid.to_string(),
            "--clear-groups",
        ]);
    }
    command.arg("--").arg(program).kill_on_drop(true);
    command
}

/// Gives a folder to the user that Postgres runs as.
///
/// # Panics
/// If that is not possible.
pub(crate) fn give_to_server_user(folder: &Path) {
    if let Some(user) = server_user() {
        nix::unistd::chown(folder, Some(user.uid), Some(user.gid)).expect("root may give it away");
    }
}

fn server_user() -> Option<User> {
    geteuid().is_root().then(|| {
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .expect("there is a user for servers")
    })
}

/// One of Postgres's own programs, of the newest version that is installed.
///
/// # Panics
/// If there is none.
#[must_use]
pub(crate) fn postgres_program(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("CONTINUUM_POSTGRES_BIN") {
        return Path::new(&folder).join(name);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|folder| {
        ["initdb", "postgres", name]
            .iter()
            .all(|program| folder.join(program).is_file())
    });
    let folder = on_path.unwrap_or_else(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("Postgres is installed");
        versions
            .flatten()
            .filter_map(|version| {
                Some((
                    version.file_name().to_str()?.parse::<u32>().ok()?,
                    version.path(),
                ))
            })
            .max()
            .map(|(_, folder)| folder.join("bin"))
            .expect("Postgres is installed")
    });
    folder.join(name)
}
