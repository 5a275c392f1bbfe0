//! Subjects, to which anybody may publish.

use continuum_bus::{Subject, SubjectError, Subjects};
use continuum_schema::Name;

use super::split;

/// The first line is an instance, the rest a subject.
///
/// What parses is built to the same text, but for the case of the digits in its ids; and it says nothing to another
/// instance.
pub fn subject(data: &[u8]) {
    let (instance, text) = split(data, b"\n");
    let (Ok(instance), Ok(text)) = (str::from_utf8(instance), str::from_utf8(text)) else {
        return;
    };
    let Ok(instance) = Name::of("instance", instance) else {
        return;
    };
    let subjects = Subjects::new(&instance);
    let parsed = match subjects.parse(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let built = subjects.build(&parsed);
    assert!(
        built.eq_ignore_ascii_case(text),
        "{text:?} became {built:?}"
    );
    assert_eq!(subjects.parse(&built).as_ref(), Ok(&parsed));
    assert!(is_one_token_each(&parsed, &built), "{built:?}");
    let other =
        Name::new(format!("{}x", &instance.as_str()[1..])).expect("the alphabet is the same");
    if other != instance {
        let foreign = Subjects::new(&other).parse(text);
        assert_eq!(foreign, Err(SubjectError::Foreign));
    }
}

/// Whether no id or name has left its token: the number of tokens depends on the sort of subject alone.
fn is_one_token_each(subject: &Subject, text: &str) -> bool {
    let tokens = match subject {
        Subject::Ready | Subject::Catchup | Subject::Residents => 3,
        Subject::Closed { .. }
        | Subject::Queue { .. }
        | Subject::Api { .. }
        | Subject::Resident { .. } => 4,
        Subject::Wake { .. }
        | Subject::Ping { .. }
        | Subject::Drain { .. }
        | Subject::Signal { .. }
        | Subject::ResidentHolder { .. } => 5,
    };
    text.split('.').count() == tokens && !text.contains([' ', '*', '>', '\r', '\n'])
}
