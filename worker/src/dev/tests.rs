//! The servers as their users see them: real programs, real signals.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::folder::{Folder, serves};
use super::{DevError, NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};

/// Names the folder in which the process that [`helper`] runs in starts its servers.
const HELPER_FOLDER: &str = "CONTINUUM_TEST_HELPER_FOLDER";

const PATIENCE: Duration = Duration::from_secs(20);

fn fast_postgres(data_dir: Option<&Path>) -> PostgresOptions {
    PostgresOptions {
        data_dir: data_dir.map(Path::to_path_buf),
        fsync: false,
        ..PostgresOptions::default()
    }
}

fn nats_in(data_dir: &Path) -> NatsOptions {
    NatsOptions {
        data_dir: Some(data_dir.to_path_buf()),
        ..NatsOptions::default()
    }
}

async fn connect(url: &str) -> PgConnection {
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.ping().await.unwrap();
    connection
}

async fn assert_postgres_answers(url: &str) {
    connect(url).await.close().await.unwrap();
}

/// Reads the first line a NATS server sends and the health page of its monitor.
async fn assert_nats_answers(nats: &PrivateNats) {
    let address = nats.url().strip_prefix("nats://").unwrap();
    let mut greeting = [0; 5];
    let mut client = TcpStream::connect(address).await.unwrap();
    client.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"INFO ");

    let address = nats.monitor_url().strip_prefix("http://").unwrap();
    let mut monitor = TcpStream::connect(address).await.unwrap();
    let request = "GET /healthz?js-enabled-only=true HTTP/1.0\r\n\r\n";
    monitor.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    monitor.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
}

#[tokio::test]
async fn postgres_answers_and_stops() {
    let mut postgres = PrivatePostgres::start(fast_postgres(None)).await.unwrap();
    assert_postgres_answers(&postgres.url()).await;
    assert_eq!(postgres.tcp_url(), None);
    assert!(postgres.log_tail().contains("ready to accept connections"));
    let folder = folder_of(&postgres.url());

    postgres.stop().await;
    assert_eq!(postgres.pid(), None);
    assert!(PgConnection::connect(&postgres.url()).await.is_err());
    drop(postgres);
    assert!(!folder.exists(), "the temporary folder should be gone");
}

/// The socket's folder, out of the URL.
fn folder_of(url: &str) -> PathBuf {
    let (_, rest) = url.split_once("host=").unwrap();
    let (host, _) = rest.split_once('&').unwrap();
    PathBuf::from(host.replace("%2F", "/"))
}

#[tokio::test]
async fn postgres_listens_on_tcp_when_asked() {
    let postgres = PrivatePostgres::start(PostgresOptions {
        tcp: true,
        ..fast_postgres(None)
    })
    .await
    .unwrap();
    assert_postgres_answers(&postgres.tcp_url().unwrap()).await;
    assert_postgres_answers(&postgres.url()).await;
}

#[tokio::test]
async fn postgres_comes_back_after_a_kill_with_an_open_connection() {
    let mut postgres = PrivatePostgres::start(fast_postgres(None)).await.unwrap();
    let url = postgres.url();
    let mut open = connect(&url).await;
    let first = postgres.pid();

    postgres.kill().await;
    assert_eq!(postgres.pid(), None);
    postgres.restart().await.unwrap();

    assert!(
        open.ping().await.is_err(),
        "the old connection should be dead"
    );
    assert_ne!(postgres.pid(), first);
    assert_eq!(postgres.url(), url);
    assert_postgres_answers(&url).await;
}

#[tokio::test]
async fn the_end_of_a_server_is_noticed() {
    let postgres = PrivatePostgres::start(fast_postgres(None)).await.unwrap();
    let pid = postgres.pid().unwrap();
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGQUIT).unwrap();
    assert!(postgres.exited().await.is_some());
    assert_eq!(postgres.pid(), None);
}

#[tokio::test]
async fn a_wrong_setting_is_reported_with_the_server_s_own_words() {
    let error = PrivatePostgres::start(PostgresOptions {
        settings: vec![("no_such_setting".to_owned(), "1".to_owned())],
        ..fast_postgres(None)
    })
    .await
    .unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[tokio::test]
async fn a_kept_folder_serves_one_process_and_survives_a_crash() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("kept");
    let mut postgres = PrivatePostgres::start(fast_postgres(Some(&folder)))
        .await
        .unwrap_or_else(|error| panic!("{error}"));

    let refused = PrivatePostgres::start(fast_postgres(Some(&folder)))
        .await
        .unwrap_err();
    let pid = postgres.pid();
    assert!(
        matches!(&refused, DevError::FolderInUse { pid: named, .. } if *named == pid),
        "{refused}"
    );

    postgres.kill().await;
    drop(postgres);
    // A crash leaves the pid file behind, and by now its pid may be that of another process.
    let other = PrivatePostgres::start(fast_postgres(None)).await.unwrap();
    let pid_file = folder.join("data/postmaster.pid");
    let stale = std::fs::read_to_string(&pid_file).unwrap();
    let (_, rest) = stale.split_once('\n').unwrap();
    std::fs::write(&pid_file, format!("{}\n{rest}", other.pid().unwrap())).unwrap();

    let postgres = PrivatePostgres::start(fast_postgres(Some(&folder)))
        .await
        .unwrap();
    assert_postgres_answers(&postgres.url()).await;
}

#[tokio::test]
async fn a_folder_behind_a_closed_door_is_refused_by_name() {
    if !geteuid().is_root() {
        return; // Only root starts servers as somebody else.
    }
    let door = tempfile::tempdir().unwrap();
    std::fs::set_permissions(door.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let refused = PrivatePostgres::start(fast_postgres(Some(&door.path().join("data"))))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, DevError::FolderUnreachable { .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_long_path_is_no_obstacle() {
    let parent = open_tempdir();
    let folder = parent.path().join("long".repeat(30));
    let postgres = PrivatePostgres::start(fast_postgres(Some(&folder)))
        .await
        .unwrap();
    assert_postgres_answers(&postgres.url()).await;
}

#[tokio::test]
async fn nats_answers_and_comes_back_on_the_same_ports() {
    let mut nats = PrivateNats::start(NatsOptions::default()).await.unwrap();
    assert_nats_answers(&nats).await;
    let (url, monitor_url) = (nats.url().to_owned(), nats.monitor_url().to_owned());

    nats.kill().await;
    assert_eq!(nats.pid(), None);
    nats.restart().await.unwrap();
    assert_eq!((nats.url(), nats.monitor_url()), (&*url, &*monitor_url));
    assert_nats_answers(&nats).await;

    nats.restart().await.unwrap();
    assert_nats_answers(&nats).await;
    nats.stop().await;
    assert!(
        TcpStream::connect(url.strip_prefix("nats://").unwrap())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn nats_obeys_its_configuration_file_and_arguments() {
    let folder = open_tempdir();
    let config_file = folder.path().join("nats.conf");
    std::fs::write(&config_file, "max_payload: 4321\n").unwrap();
    let nats = PrivateNats::start(NatsOptions {
        config_file: Some(config_file),
        extra_args: vec!["--name".to_owned(), "named-by-the-test".to_owned()],
        ..NatsOptions::default()
    })
    .await
    .unwrap();

    let mut client = TcpStream::connect(nats.url().strip_prefix("nats://").unwrap())
        .await
        .unwrap();
    let mut greeting = vec![0; 2048];
    let length = client.read(&mut greeting).await.unwrap();
    let greeting = String::from_utf8_lossy(&greeting[..length]);
    assert!(greeting.contains("named-by-the-test"), "{greeting}");
    assert!(greeting.contains("4321"), "{greeting}");
}

/// Not a test of its own: what the tests below run in another process. It starts both servers, says
/// so, and waits until its input ends.
#[tokio::test]
async fn helper() {
    let Some(folder) = env::var_os(HELPER_FOLDER).map(PathBuf::from) else {
        return;
    };
    let postgres = PrivatePostgres::start(fast_postgres(Some(&folder.join("postgres"))))
        .await
        .unwrap();
    assert_postgres_answers(&postgres.url()).await;
    let nats = PrivateNats::start(nats_in(&folder.join("nats")))
        .await
        .unwrap();
    let (postgres, nats) = (postgres.pid().unwrap(), nats.pid().unwrap());
    println!("\nservers {postgres} {nats}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A process that runs [`helper`].
struct Helper {
    process: std::process::Child,
    /// Kept open, because the helper fails when nobody reads its output.
    _output: BufReader<ChildStdout>,
    postgres: u32,
    nats: u32,
}

impl Helper {
    fn start(program: &Path, folder: &Path, user: Option<&User>) -> Self {
        let mut command = Command::new(program);
        command
            .args(["--exact", "dev::tests::helper", "--nocapture"])
            .env(HELPER_FOLDER, folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let line = (&mut output)
            .lines()
            .map(Result::unwrap)
            .find(|line| line.starts_with("servers "))
            .expect("the helper names its servers; its own output above says why it did not");
        let mut pids = line.split(' ').skip(1).map(|pid| pid.parse().unwrap());
        let (postgres, nats) = (pids.next().unwrap(), pids.next().unwrap());
        Self {
            process,
            _output: output,
            postgres,
            nats,
        }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn open_tempdir() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[tokio::test]
async fn servers_die_with_a_killed_parent_and_their_folders_start_again() {
    let folder = open_tempdir();
    let mut helper = Helper::start(&env::current_exe().unwrap(), folder.path(), None);
    let servers = [helper.postgres, helper.nats];
    assert!(servers.iter().all(|pid| serves(*pid, folder.path())));

    helper.kill();
    if cfg!(target_os = "linux") {
        let watched = Folder::open(Some(folder.path())).unwrap();
        for pid in servers {
            assert!(
                watched.gone(pid, PATIENCE).await,
                "{pid} outlived its parent"
            );
        }
    }

    let postgres = PrivatePostgres::start(fast_postgres(Some(&folder.path().join("postgres"))))
        .await
        .unwrap();
    assert_postgres_answers(&postgres.url()).await;
    let nats = PrivateNats::start(nats_in(&folder.path().join("nats")))
        .await
        .unwrap();
    assert_nats_answers(&nats).await;
}

#[tokio::test]
async fn the_next_start_waits_for_a_server_that_still_dies() {
    let folder = open_tempdir();
    let mut helper = Helper::start(&env::current_exe().unwrap(), folder.path(), None);
    let server = Pid::from_raw(helper.postgres.cast_signed());
    // A paused process cannot follow the kernel's request, so it outlives its parent.
    kill(server, Signal::SIGSTOP).unwrap();
    helper.kill();
    kill(server, Signal::SIGCONT).unwrap();

    let again = PrivatePostgres::start(fast_postgres(Some(&folder.path().join("postgres"))))
        .await
        .unwrap();
    assert!(!serves(helper.postgres, folder.path()));
    assert_postgres_answers(&again.url()).await;
}

#[tokio::test]
async fn ordinary_users_start_servers_as_themselves() {
    if !geteuid().is_root() {
        return; // Then all the other tests have shown it.
    }
    let user = User::from_name("nobody").unwrap().unwrap();
    let folder = open_tempdir();
    let program = folder.path().join("helper");
    std::fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    nix::unistd::chown(&data, Some(user.uid), Some(user.gid)).unwrap();

    let mut helper = Helper::start(&program, &data, Some(&user));
    for pid in [helper.postgres, helper.nats] {
        let about = std::fs::metadata(format!("/proc/{pid}")).unwrap();
        assert_eq!(about.uid(), user.uid.as_raw());
    }
    drop(helper.process.stdin.take());
    assert!(helper.process.wait().unwrap().success());
}
