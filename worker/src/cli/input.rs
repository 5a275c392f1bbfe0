//! JSON that users write, on the command line or in a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use continuum_schema::{Payload, PayloadError};

use super::error::CliError;

/// The JSON text of an argument or of a file, as a payload that keeps the text as it is. `null` if neither is given.
/// `argument` and `file` are named in errors.
pub(super) fn payload(
    (argument, text): (&str, Option<&str>),
    (option, file): (&str, Option<&Path>),
    bytes_max: usize,
) -> Result<Payload, CliError> {
    match (text, file) {
        (Some(text), _) => parse(argument, text.as_bytes(), bytes_max),
        (None, Some(path)) => parse(option, &read(option, path, bytes_max)?, bytes_max),
        (None, None) => Ok(Payload::unit()),
    }
}

/// A file's content; `-` is standard input. One byte more than allowed is enough to know.
fn read(what: &str, path: &Path, bytes_max: usize) -> Result<Vec<u8>, CliError> {
    let enough = u64::try_from(bytes_max)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut text = Vec::new();
    let outcome = match path == Path::new("-") {
        true => io::stdin().lock().take(enough).read_to_end(&mut text),
        false => File::open(path).and_then(|file| file.take(enough).read_to_end(&mut text)),
    };
    outcome
        .map_err(|e| CliError::usage(format!("{what} {} can't be read: {e}", path.display())))?;
    Ok(text)
}

fn parse(what: &str, text: &[u8], bytes_max: usize) -> Result<Payload, CliError> {
    let refuse = |fault: String| Err(CliError::usage(format!("{what} {fault}")));
    if text.iter().all(u8::is_ascii_whitespace) {
        return refuse("is empty; JSON is wanted, for example null".to_owned());
    }
    // One byte goes to the payload's format.
    if text.len() >= bytes_max {
        return refuse(format!(
            "is larger than {} bytes, the limit of the setting CONTINUUM_PAYLOAD_LIMIT",
            bytes_max.saturating_sub(1)
        ));
    }
    if let Err(error) = std::str::from_utf8(text) {
        let (line, column) = position(&text[..error.valid_up_to()]);
        return refuse(format!("is not UTF-8 at line {line} column {column}"));
    }
    Payload::from_json(text).or_else(|error| match error {
        PayloadError::Decode { reason, .. } => refuse(format!("is not JSON: {reason}")),
        error => refuse(format!("can't be taken: {error}")),
    })
}

/// The line and column, from 1, of the byte after `before`.
fn position(before: &[u8]) -> (usize, usize) {
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before
        .iter()
        .rev()
        .take_while(|byte| **byte != b'\n')
        .count()
        + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &[u8]) -> String {
        parse("--input", text, 64).unwrap_err().message().to_owned()
    }

    #[test]
    fn json_keeps_its_text() {
        let text = r#" {"n" : 18446744073709551615} "#;
        assert_eq!(
            parse("--input", text.as_bytes(), 64).unwrap().body(),
            text.as_bytes()
        );
    }

    #[test]
    fn bad_input_is_refused_with_its_place() {
        assert_eq!(
            fault(b"{\n  \"a\": }"),
            "--input is not JSON: expected value at line 2 column 8"
        );
        assert_eq!(
            fault(b"1 2"),
            "--input is not JSON: trailing characters at line 1 column 3"
        );
        assert_eq!(
            fault(b"{\n\"\xff\"}"),
            "--input is not UTF-8 at line 2 column 2"
        );
        assert_eq!(
            fault(b" \n"),
            "--input is empty; JSON is wanted, for example null"
        );
        assert!(fault(&[b'1'; 64]).contains("larger than 63 bytes"));
        let deep = parse("--input", &[[b'['; 128], [b']'; 128]].concat(), 1_000).unwrap_err();
        assert_eq!(
            deep.message(),
            "--input can't be taken: the value is nested more than 127 levels deep"
        );
        assert!(parse("--input", &[b'1'; 63], 64).is_ok());
    }

    #[test]
    fn a_file_is_read_no_further_than_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![b'1'; 1_000]).unwrap();
        assert_eq!(read("--input-file", file.path(), 64).unwrap().len(), 65);
        let missing = read("--input-file", Path::new("/nowhere.json"), 64).unwrap_err();
        assert!(
            missing
                .message()
                .starts_with("--input-file /nowhere.json can't be read")
        );
    }
}
