//! How to reach the servers, checked once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::ServerAddr;

use crate::error::ConfigError;

/// How to reach the NATS servers. Start from [`BusConfig::new`].
#[derive(Clone)]
pub struct BusConfig {
    /// Addresses such as `nats://host:4222` or `tls://host:4222`; several may also stand in one text, separated by
    /// commas. Credentials in an address count as if they were given below; one name without a password is a token.
    pub urls: Vec<String>,
    /// User, with `password`.
    pub user: Option<String>,
    /// Password, with `user`.
    pub password: Option<String>,
    /// Token.
    pub token: Option<String>,
    /// File with a JWT and its key, as `nsc` writes it.
    pub credentials_file: Option<PathBuf>,
    /// TLS.
    pub tls: TlsConfig,
    /// Name under which the server lists this connection. Default: `continuum`.
    pub connection_name: String,
    /// Prefix of the subjects on which answers are awaited. Default: `_INBOX`.
    pub inbox_prefix: String,
    /// Further prefixes that may be answered, for example `_R_` where another account imports the API subjects.
    /// Default: none.
    pub more_reply_prefixes: Vec<String>,
    /// Longest wait for the server itself: a round trip, an acknowledgement, an orderly close. Default: 5 s.
    pub request_timeout: Duration,
    /// Messages that a subscription holds before it drops some and the generation rises. Default: 65,536.
    pub subscription_capacity: usize,
    /// The signal stream.
    pub signals: SignalSettings,
}

/// TLS settings. `tls://` in an address switches TLS on too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Refuse a connection without TLS. Default: no.
    pub require: bool,
    /// Certificate authorities in PEM form, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Client certificate in PEM form, with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Key of the client certificate.
    pub key_file: Option<PathBuf>,
}

/// Settings of the signal stream and its consumer. All workers of an instance must agree on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSettings {
    /// Copies of the stream in a cluster, 1 to 5. With fewer than 3, a power loss may take signals that were
    /// acknowledged and not yet ingested. Default: 1.
    pub replicas: usize,
    /// Largest signal, headers included, in bytes. Default: 1 MiB, which is also the default of the server.
    pub max_message_bytes: usize,
    /// A signal that is neither acknowledged nor refused for so long is delivered again, so it is also how long a signal
    /// waits that a worker had fetched when it died. Default: 5 s.
    pub ack_wait: Duration,
    /// Signals that may be on their way at once, over all workers. Default: 10,000.
    pub max_ack_pending: u32,
}

impl Default for SignalSettings {
    fn default() -> Self {
        Self {
            replicas: 1,
            max_message_bytes: 1 << 20,
            ack_wait: Duration::from_secs(5),
            max_ack_pending: 10_000,
        }
    }
}

/// How to log in, after all the ways to say it were brought together.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    Nobody,
    Password { user: String, password: String },
    Token(String),
    File(PathBuf),
}

/// A configuration that keeps every rule.
pub(crate) struct Checked {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) login: Login,
}

impl BusConfig {
    /// The defaults, with these addresses.
    #[must_use]
    pub fn new<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            user: None,
            password: None,
            token: None,
            credentials_file: None,
            tls: TlsConfig::default(),
            connection_name: "continuum".to_owned(),
            inbox_prefix: "_INBOX".to_owned(),
            more_reply_prefixes: Vec::new(),
            request_timeout: Duration::from_secs(5),
            subscription_capacity: 65_536,
            signals: SignalSettings::default(),
        }
    }

    /// Checks every rule, also that the named files can be read.
    ///
    /// # Errors
    /// [`ConfigError`] names the first rule that is broken.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check().map(drop)
    }

    pub(crate) fn check(&self) -> Result<Checked, ConfigError> {
        let (servers, in_urls) = self.addresses()?;
        let login = self.login(in_urls)?;
        self.check_files(&login)?;
        self.check_prefixes()?;
        self.check_numbers()?;
        Ok(Checked { servers, login })
    }

    fn addresses(&self) -> Result<(Vec<ServerAddr>, Login), ConfigError> {
        let mut servers = Vec::new();
        let mut login = Login::Nobody;
        let texts = self.urls.iter().flat_map(|text| text.split(','));
        for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
            let (server, found) = address(text)?;
            servers.push(server);
            if found == Login::Nobody || found == login {
                continue;
            }
            if login != Login::Nobody {
                return Err(ConfigError::CredentialsTwice {
                    first: "in one address",
                    second: "in another address",
                });
            }
            login = found;
        }
        if servers.is_empty() {
            return Err(ConfigError::NoServer);
        }
        Ok((servers, login))
    }

    fn login(&self, in_urls: Login) -> Result<Login, ConfigError> {
        let password = match (&self.user, &self.password) {
            (Some(user), Some(password)) => Login::Password {
                user: user.clone(),
                password: password.clone(),
            },
            (None, None) => Login::Nobody,
            (Some(_), None) => return Err(incomplete("user", "password")),
            (None, Some(_)) => return Err(incomplete("password", "user")),
        };
        let token = self.token.clone().map_or(Login::Nobody, Login::Token);
        let file = self
            .credentials_file
            .clone()
            .map_or(Login::Nobody, Login::File);
        let ways = [
            ("in the address", in_urls),
            ("as user and password", password),
            ("as token", token),
            ("as credentials file", file),
        ];
        let mut given = ways.into_iter().filter(|(_, way)| *way != Login::Nobody);
        match (given.next(), given.next()) {
            (None, _) => Ok(Login::Nobody),
            (Some((_, login)), None) => Ok(login),
            (Some((first, _)), Some((second, _))) => {
                Err(ConfigError::CredentialsTwice { first, second })
            }
        }
    }

    fn check_files(&self, login: &Login) -> Result<(), ConfigError> {
        if self.tls.cert_file.is_some() != self.tls.key_file.is_some() {
            return Err(if self.tls.cert_file.is_some() {
                incomplete("TLS certificate", "key")
            } else {
                incomplete("TLS key", "certificate")
            });
        }
        let credentials = match login {
            Login::File(path) => Some(path),
            _ => None,
        };
        let files = [
            ("NATS credentials file", credentials),
            ("TLS authority file", self.tls.ca_file.as_ref()),
            ("TLS certificate", self.tls.cert_file.as_ref()),
            ("TLS key", self.tls.key_file.as_ref()),
        ];
        for (what, path) in files {
            path.map_or(Ok(()), |path| check_readable(what, path))?;
        }
        Ok(())
    }

    fn check_prefixes(&self) -> Result<(), ConfigError> {
        let prefixes = std::iter::once(&self.inbox_prefix).chain(&self.more_reply_prefixes);
        for prefix in prefixes {
            let plain = |token: &str| {
                !token.is_empty()
                    && token
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            };
            // `$JS` and `$SYS` fall to the alphabet.
            if !prefix.split('.').all(plain) || prefix.split('.').next() == Some("continuum") {
                return Err(ConfigError::InboxPrefix(prefix.clone()));
            }
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let range = |what, ok, value: &dyn fmt::Debug, allowed| {
            if ok {
                return Ok(());
            }
            Err(ConfigError::Range {
                what,
                value: format!("{value:?}"),
                allowed,
            })
        };
        let signals = &self.signals;
        let within = |value: Duration, low, high| {
            (Duration::from_millis(low)..=Duration::from_secs(high)).contains(&value)
        };
        range(
            "request timeout",
            within(self.request_timeout, 10, 300),
            &self.request_timeout,
            "10 ms to 5 min",
        )?;
        range(
            "subscription capacity",
            (1..=1 << 24).contains(&self.subscription_capacity),
            &self.subscription_capacity,
            "1 to 16,777,216",
        )?;
        range(
            "signal replicas",
            (1..=5).contains(&signals.replicas),
            &signals.replicas,
            "1 to 5",
        )?;
        range(
            "largest signal",
            (1024..=64 << 20).contains(&signals.max_message_bytes),
            &signals.max_message_bytes,
            "1 KiB to 64 MiB",
        )?;
        range(
            "signal acknowledgement wait",
            within(signals.ack_wait, 100, 3600),
            &signals.ack_wait,
            "100 ms to 1 h",
        )?;
        range(
            "signals in flight",
            (1..=1_000_000).contains(&signals.max_ack_pending),
            &signals.max_ack_pending,
            "1 to 1,000,000",
        )
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for BusConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "…");
        let urls: Vec<&str> = self.urls.iter().map(|url| without_login(url)).collect();
        f.debug_struct("BusConfig")
            .field("urls", &urls)
            .field("user", &self.user)
            .field("password", &hidden(&self.password))
            .field("token", &hidden(&self.token))
            .field("credentials_file", &self.credentials_file)
            .field("tls", &self.tls)
            .field("connection_name", &self.connection_name)
            .field("inbox_prefix", &self.inbox_prefix)
            .field("more_reply_prefixes", &self.more_reply_prefixes)
            .field("request_timeout", &self.request_timeout)
            .field("subscription_capacity", &self.subscription_capacity)
            .field("signals", &self.signals)
            .finish()
    }
}

fn incomplete(given: &'static str, missing: &'static str) -> ConfigError {
    ConfigError::Incomplete { given, missing }
}

fn check_readable(what: &'static str, path: &Path) -> Result<(), ConfigError> {
    std::fs::File::open(path)
        .map(drop)
        .map_err(|source| ConfigError::File {
            what,
            path: path.to_owned(),
            source,
        })
}

/// The part of an address after its last `@`: safe to show.
fn without_login(text: &str) -> &str {
    text.rsplit_once('@').map_or(text, |(_, host)| host)
}

/// The client passes over credentials in an address, so they are taken out here.
fn address(text: &str) -> Result<(ServerAddr, Login), ConfigError> {
    let fault = |reason: String| ConfigError::Address {
        address: without_login(text).to_owned(),
        reason,
    };
    let parsed: ServerAddr = text
        .parse()
        .map_err(|error: std::io::Error| fault(error.to_string()))?;
    if !matches!(parsed.scheme(), "nats" | "tls") {
        return Err(fault("the scheme must be nats or tls".to_owned()));
    }
    if parsed.host().is_empty() {
        return Err(fault("there is no host".to_owned()));
    }
    let not_text = || fault("the credentials are not valid text".to_owned());
    let user = parsed
        .username()
        .map(|user| percent_decoded(user).ok_or_else(not_text))
        .transpose()?;
    let password = parsed
        .password()
        .map(|password| percent_decoded(password).ok_or_else(not_text))
        .transpose()?;
    let login = match (user, password) {
        (Some(user), Some(password)) => Login::Password { user, password },
        (Some(token), None) => Login::Token(token),
        (None, Some(_)) => return Err(incomplete("password in the address", "user")),
        (None, None) => Login::Nobody,
    };
    let mut url = parsed.into_inner();
    let cleared = url.set_username("").and_then(|()| url.set_password(None));
    cleared.map_err(|()| fault("the credentials can't be taken out".to_owned()))?;
    let server = ServerAddr::from_url(url).map_err(|error| fault(error.to_string()))?;
    Ok((server, login))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit = |b: &u8| char::from(*b).to_digit(16);
                let code = digit(high)? * 16 + digit(low)?;
                bytes.push(u8::try_from(code).ok()?);
                tail
            }
            (byte, tail) => {
                bytes.push(*byte);
                tail
            }
        };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login_of(config: &BusConfig) -> Login {
        config.check().map(|checked| checked.login).ok().unwrap()
    }

    #[test]
    fn credentials_in_an_address_are_taken_out_and_used() {
        let config = BusConfig::new([
            "nats://ann:p%40ss@one:4222, nats://ann:p%40ss@two",
            "three:99",
        ]);
        let checked = config.check().ok().unwrap();
        let hosts: Vec<_> = checked
            .servers
            .iter()
            .map(|server| (server.host(), server.port(), server.username()))
            .collect();
        assert_eq!(
            hosts,
            [
                ("one", 4222, None),
                ("two", 4222, None),
                ("three", 99, None)
            ]
        );
        assert!(
            checked.login
                == Login::Password {
                    user: "ann".into(),
                    password: "p@ss".into()
                }
        );
        assert!(login_of(&BusConfig::new(["nats://t0ken@one"])) == Login::Token("t0ken".into()));
    }

    type Change<'c> = &'c dyn Fn(&mut BusConfig);

    #[test]
    fn each_broken_rule_is_named() {
        let good = || BusConfig::new(["nats://one"]);
        let fault = |change: Change| {
            let mut config = good();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(good().validate().is_ok());
        let cases: [(Change, &str); 10] = [
            (&|c| c.urls.clear(), "no NATS server"),
            (&|c| c.urls = vec!["http://a:b@one".into()], "scheme"),
            (&|c| c.urls = vec!["ws://one".into()], "nats or tls"),
            (&|c| c.user = Some("ann".into()), "without password"),
            (
                &|c| {
                    c.token = Some("t".into());
                    c.urls = vec!["nats://u:p@one".into()];
                },
                "given twice",
            ),
            (
                &|c| c.urls = vec!["nats://a:b@one".into(), "nats://c:d@two".into()],
                "another address",
            ),
            (
                &|c| c.tls.cert_file = Some("/nowhere".into()),
                "without key",
            ),
            (
                &|c| c.tls.ca_file = Some("/nowhere".into()),
                "can't be read",
            ),
            (&|c| c.inbox_prefix = "$JS.API".into(), "inbox prefix"),
            (&|c| c.signals.replicas = 0, "signal replicas is 0"),
        ];
        for (change, wanted) in cases {
            let text = fault(change);
            assert!(text.contains(wanted), "{text:?} lacks {wanted:?}");
        }
        assert!(fault(&|c| c.inbox_prefix = "continuum.x".into()).contains("may not begin"),);
    }

    #[test]
    fn secrets_show_neither_in_debug_text_nor_in_errors() {
        let mut config = BusConfig::new(["nats://ann:hush@one"]);
        config.token = Some("hush".into());
        config.password = Some("hush".into());
        assert!(!format!("{config:?}").contains("hush"));
        assert!(!config.validate().unwrap_err().to_string().contains("hush"));
        let bad = BusConfig::new(["http://ann:hush@one"]);
        assert!(!bad.validate().unwrap_err().to_string().contains("hush"));
    }
}
