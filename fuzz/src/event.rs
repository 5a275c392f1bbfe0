//! Rows of the journal.

use continuum_schema::Event;

/// The first byte is the row's kind, the others are its payload.
///
/// What decodes is of the kind that the column says, and survives being written and read again. Bytes are compared, not
/// events, so that a retry policy whose factor is not a number equals itself.
pub fn event(data: &[u8]) {
    let Some((kind, column)) = data.split_first() else {
        return;
    };
    let kind = i16::from(kind.cast_signed());
    let event = match Event::decode(kind, column.to_vec()) {
        Ok(event) => event,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(event.kind(), kind, "{event:?}");
    let bytes = event.encode();
    let again = Event::decode(kind, bytes.clone()).expect("what was written can be read");
    assert_eq!(again.encode(), bytes, "{event:?}");
    assert_eq!(again.name(), event.name());
    assert_eq!(again.is_terminal(), (10..=12).contains(&kind));
}
