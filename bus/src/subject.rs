//! Every subject of an instance, built and parsed in one place.

use std::fmt::Write as _;
use std::sync::Arc;

use continuum_schema::{Name, TextError};
use uuid::Uuid;

const ROOT: &str = "continuum";

/// The subjects of one instance.
///
/// Ids are UUIDs and free words are [`Name`]s, so no text of a user can leave its token.
///
/// ```
/// use continuum_bus::{Subject, Subjects};
/// use continuum_schema::Name;
///
/// let subjects = Subjects::new(&Name::new("prod").unwrap());
/// let text = subjects.queue(&Name::new("payments").unwrap());
/// assert_eq!(text, "continuum.prod.queue.payments");
/// assert_eq!(
///     subjects.parse(&text),
///     Ok(Subject::Queue { queue: Name::new("payments").unwrap() })
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    instance: Name,
    /// `continuum.<instance>.`
    prefix: Arc<str>,
}

/// What a subject says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A run has something to do, and this session owns it.
    Wake {
        /// The owner.
        session: Uuid,
        /// The run.
        run: Uuid,
    },
    /// A run ended.
    Closed {
        /// The run.
        run: Uuid,
    },
    /// Answers while the session's process lives.
    Ping {
        /// The session.
        session: Uuid,
    },
    /// Asks the session's worker to drain.
    Drain {
        /// The session.
        session: Uuid,
    },
    /// An unowned run is due.
    Ready,
    /// An activity waits in this queue.
    Queue {
        /// The queue.
        queue: Name,
    },
    /// A signal for a run, from anybody.
    Signal {
        /// The run, or any run of its chain.
        run: Uuid,
        /// The signal's name.
        name: Name,
    },
    /// Wakes may have been lost: look in the database.
    Catchup,
    /// A request of the remote interface.
    Api {
        /// What is asked for.
        verb: Name,
    },
    /// A request to a resident, whoever holds it.
    Resident {
        /// The resident.
        name: Name,
    },
    /// A request to one holder of a resident.
    ResidentHolder {
        /// The resident.
        name: Name,
        /// The token under which that holder has it.
        token: i64,
    },
    /// A resident may be to be had: look in the database.
    Residents,
}

/// Why a subject says nothing to this instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// It belongs to something else.
    #[error("the subject is not one of this instance")]
    Foreign,
    /// It is under the instance's prefix and has no known shape.
    #[error("the subject has no known shape")]
    Unknown,
    /// A token that should be an id is none.
    #[error("the subject's {what} is not a UUID in hyphenated form")]
    Id {
        /// Which token.
        what: &'static str,
    },
    /// A token that should be a holder's fencing token is none.
    #[error("the subject's token of a holder is not a whole number in its shortest form")]
    HolderToken,
    /// A token that should be a name is none.
    #[error(transparent)]
    Name(#[from] TextError),
}

impl Subjects {
    /// The subjects of `instance`.
    #[must_use]
    pub fn new(instance: &Name) -> Self {
        Self {
            instance: instance.clone(),
            prefix: format!("{ROOT}.{instance}.").into(),
        }
    }

    /// The instance.
    #[must_use]
    pub fn instance(&self) -> &Name {
        &self.instance
    }

    /// The subject that says `subject`.
    #[must_use]
    pub fn build(&self, subject: &Subject) -> String {
        match subject {
            Subject::Wake { session, run } => self.wake(*session, *run),
            Subject::Closed { run } => self.closed(*run),
            Subject::Ping { session } => self.ping(*session),
            Subject::Drain { session } => self.drain(*session),
            Subject::Ready => self.ready(),
            Subject::Queue { queue } => self.queue(queue),
            Subject::Signal { run, name } => self.signal(*run, name),
            Subject::Catchup => self.catchup(),
            Subject::Api { verb } => self.api(verb),
            Subject::Resident { name } => self.resident(name),
            Subject::ResidentHolder { name, token } => self.resident_holder(name, *token),
            Subject::Residents => self.residents(),
        }
    }

    /// `…wake.<session>.<run>`: tells the owner that a run has something to do.
    #[must_use]
    pub fn wake(&self, session: Uuid, run: Uuid) -> String {
        self.tokens(&["wake", &session.to_string(), &run.to_string()])
    }

    /// `…wake.<session>.*`: all wakes of one session.
    #[must_use]
    pub fn wakes_of(&self, session: Uuid) -> String {
        self.tokens(&["wake", &session.to_string(), "*"])
    }

    /// `…closed.<run>`: a run ended.
    #[must_use]
    pub fn closed(&self, run: Uuid) -> String {
        self.tokens(&["closed", &run.to_string()])
    }

    /// `…session.<session>.ping`: answers while the process lives.
    #[must_use]
    pub fn ping(&self, session: Uuid) -> String {
        self.tokens(&["session", &session.to_string(), "ping"])
    }

    /// `…session.<session>.drain`: asks the session's worker to drain.
    #[must_use]
    pub fn drain(&self, session: Uuid) -> String {
        self.tokens(&["session", &session.to_string(), "drain"])
    }

    /// `…ready`: an unowned run is due, somebody claim.
    #[must_use]
    pub fn ready(&self) -> String {
        self.tokens(&["ready"])
    }

    /// `…queue.<queue>`: an activity is available.
    #[must_use]
    pub fn queue(&self, queue: &Name) -> String {
        self.tokens(&["queue", queue.as_str()])
    }

    /// `…signal.<run>.<name>`: a signal.
    #[must_use]
    pub fn signal(&self, run: Uuid, name: &Name) -> String {
        self.tokens(&["signal", &run.to_string(), name.as_str()])
    }

    /// `…signal.>`: all signals, well-formed or not.
    #[must_use]
    pub fn signals(&self) -> String {
        self.tokens(&["signal", ">"])
    }

    /// `…catchup`: wakes may have been lost.
    #[must_use]
    pub fn catchup(&self) -> String {
        self.tokens(&["catchup"])
    }

    /// `…api.<verb>`: a request of the remote interface.
    #[must_use]
    pub fn api(&self, verb: &Name) -> String {
        self.tokens(&["api", verb.as_str()])
    }

    /// `…resident.<name>`: a request to a resident, whoever holds it.
    #[must_use]
    pub fn resident(&self, name: &Name) -> String {
        self.tokens(&["resident", name.as_str()])
    }

    /// `…resident.<name>.<token>`: a request to the one holder that has the resident under this token.
    #[must_use]
    pub fn resident_holder(&self, name: &Name, token: i64) -> String {
        self.tokens(&["resident", name.as_str(), &token.to_string()])
    }

    /// `…residents`: a resident may be to be had.
    #[must_use]
    pub fn residents(&self) -> String {
        self.tokens(&["residents"])
    }

    /// The name of the instance's signal stream. A stream's name may hold no dot, so it is no subject.
    #[must_use]
    pub fn signal_stream(&self) -> String {
        format!("CONTINUUM_{}_SIGNALS", self.instance)
    }

    /// What `text` says.
    ///
    /// # Errors
    /// [`SubjectError`] names the token at fault.
    pub fn parse(&self, text: &str) -> Result<Subject, SubjectError> {
        let rest = text
            .strip_prefix(&*self.prefix)
            .ok_or(SubjectError::Foreign)?;
        let tokens: Vec<&str> = rest.split('.').collect();
        Ok(match tokens[..] {
            ["wake", session, run] => Subject::Wake {
                session: id("session id", session)?,
                run: id("run id", run)?,
            },
            ["closed", run] => Subject::Closed {
                run: id("run id", run)?,
            },
            ["session", session, "ping"] => Subject::Ping {
                session: id("session id", session)?,
            },
            ["session", session, "drain"] => Subject::Drain {
                session: id("session id", session)?,
            },
            ["ready"] => Subject::Ready,
            ["queue", queue] => Subject::Queue {
                queue: Name::of("queue", queue)?,
            },
            ["signal", run, name] => Subject::Signal {
                run: id("run id", run)?,
                name: Name::of("signal name", name)?,
            },
            ["catchup"] => Subject::Catchup,
            ["api", verb] => Subject::Api {
                verb: Name::of("verb", verb)?,
            },
            ["resident", name] => Subject::Resident {
                name: Name::of("resident", name)?,
            },
            ["resident", name, token] => Subject::ResidentHolder {
                name: Name::of("resident", name)?,
                token: holder_token(token)?,
            },
            ["residents"] => Subject::Residents,
            _ => return Err(SubjectError::Unknown),
        })
    }

    fn tokens(&self, tokens: &[&str]) -> String {
        let mut text = String::with_capacity(self.prefix.len() + 80);
        text.push_str(&self.prefix);
        for (at, token) in tokens.iter().enumerate() {
            let dot = if at == 0 { "" } else { "." };
            write!(text, "{dot}{token}").expect("writing to a String cannot fail");
        }
        text
    }
}

/// One spelling only: a run whose wakes could come under four subjects would be four runs to a subscriber.
fn id(what: &'static str, token: &str) -> Result<Uuid, SubjectError> {
    match Uuid::try_parse(token) {
        Ok(id) if token.len() == uuid::fmt::Hyphenated::LENGTH => Ok(id),
        _ => Err(SubjectError::Id { what }),
    }
}

/// One spelling only, as of ids.
fn holder_token(text: &str) -> Result<i64, SubjectError> {
    match text.parse::<i64>() {
        Ok(token) if token.to_string() == text => Ok(token),
        _ => Err(SubjectError::HolderToken),
    }
}

/// Whether `subject` may be published to: tokens without white space or control characters, none empty, no wildcard.
pub(crate) fn is_literal(subject: &str) -> bool {
    is_filter(subject) && subject.split('.').all(|token| token != "*" && token != ">")
}

/// Whether `filter` may be subscribed to: as [`is_literal`], with `*` for a token and `>` for the rest.
pub(crate) fn is_filter(filter: &str) -> bool {
    let last = filter.split('.').count() - 1;
    filter.split('.').enumerate().all(|(at, token)| {
        !token.is_empty()
            && (token != ">" || at == last)
            && !token.chars().any(|c| c.is_whitespace() || c.is_control())
    })
}

/// Whether `filter` takes in `subject`, by the rules of NATS.
pub(crate) fn matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in filter.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn any_id() -> impl Strategy<Value = Uuid> {
        any::<u128>().prop_map(Uuid::from_u128)
    }

    fn any_name() -> impl Strategy<Value = Name> {
        "[A-Za-z0-9_-]{1,128}".prop_map(|text| name(&text))
    }

    fn any_subject() -> impl Strategy<Value = Subject> {
        prop_oneof![
            (any_id(), any_id()).prop_map(|(session, run)| Subject::Wake { session, run }),
            any_id().prop_map(|run| Subject::Closed { run }),
            any_id().prop_map(|session| Subject::Ping { session }),
            any_id().prop_map(|session| Subject::Drain { session }),
            Just(Subject::Ready),
            any_name().prop_map(|queue| Subject::Queue { queue }),
            (any_id(), any_name()).prop_map(|(run, name)| Subject::Signal { run, name }),
            Just(Subject::Catchup),
            any_name().prop_map(|verb| Subject::Api { verb }),
            any_name().prop_map(|name| Subject::Resident { name }),
            (any_name(), any::<i64>())
                .prop_map(|(name, token)| Subject::ResidentHolder { name, token }),
            Just(Subject::Residents),
        ]
    }

    proptest! {
        #[test]
        fn parsing_undoes_building(instance in any_name(), subject in any_subject()) {
            let subjects = Subjects::new(&instance);
            let text = subjects.build(&subject);
            prop_assert!(is_literal(&text));
            prop_assert_eq!(subjects.parse(&text), Ok(subject));
        }

        #[test]
        fn a_subject_of_another_instance_is_foreign(a in any_name(), b in any_name(), subject in any_subject()) {
            prop_assume!(a != b);
            let text = Subjects::new(&a).build(&subject);
            prop_assert_eq!(Subjects::new(&b).parse(&text), Err(SubjectError::Foreign));
        }

        #[test]
        fn a_hostile_name_is_refused(text in "\\PC{0,8}[. *>\t\r\n\u{0}é$/:]\\PC{0,8}") {
            prop_assert!(Name::new(text.clone()).is_err());
            let subjects = Subjects::new(&name("i"));
            for shape in ["queue", "api", "signal.00000000-0000-0000-0000-000000000001"] {
                let subject = format!("continuum.i.{shape}.{text}");
                prop_assert!(subjects.parse(&subject).is_err());
            }
        }

        #[test]
        fn whatever_parses_builds_the_same_text(text in "continuum\\.i\\.[a-z]{1,8}(\\.[A-Za-z0-9*>{} -]{0,40}){0,3}") {
            let subjects = Subjects::new(&name("i"));
            if let Ok(subject) = subjects.parse(&text) {
                prop_assert_eq!(subjects.build(&subject).to_lowercase(), text.to_lowercase());
            }
        }
    }

    #[test]
    fn only_the_hyphenated_spelling_of_an_id_is_taken() {
        let subjects = Subjects::new(&name("i"));
        let id = Uuid::from_u128(7);
        for spelling in [
            id.simple().to_string(),
            id.braced().to_string(),
            id.urn().to_string(),
        ] {
            let text = format!("continuum.i.closed.{spelling}");
            assert_eq!(
                subjects.parse(&text),
                Err(SubjectError::Id { what: "run id" })
            );
        }
    }

    #[test]
    fn filters_take_in_what_they_should() {
        for (filter, subject, wanted) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("*.b", "a.b", true),
            (">", "a", true),
        ] {
            assert_eq!(matches(filter, subject), wanted, "{filter} and {subject}");
        }
    }

    #[test]
    fn subjects_that_break_the_protocol_are_refused() {
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB b", "a.>.b"] {
            assert!(!is_filter(bad), "{bad:?}");
        }
        assert!(is_filter("a.*.>"));
        assert!(!is_literal("a.*") && !is_literal("a.>"));
    }
}
