//! Reading the options in an attribute's parentheses, with errors at the word that is wrong.

use std::time::Duration;

use syn::meta::ParseNestedMeta;
use syn::parse::Parse;
use syn::punctuated::Punctuated;
use syn::{Error, LitStr, Result, Token, parenthesized};

/// Sets an option, which may stand only once.
pub(crate) fn set<T>(slot: &mut Option<T>, value: T, meta: &ParseNestedMeta<'_>) -> Result<()> {
    if slot.replace(value).is_some() {
        let name = meta.path.require_ident()?;
        return Err(meta.error(format!("`{name}` stands here twice")));
    }
    Ok(())
}

/// The error for a word that is not an option.
pub(crate) fn unknown(meta: &ParseNestedMeta<'_>, known: &str) -> Error {
    let word = meta.path.get_ident().map(ToString::to_string);
    let word = word.unwrap_or_else(|| "this".to_owned());
    meta.error(format!(
        "`{word}` is not an option here; there are: {known}"
    ))
}

/// Reads `(a, b)`.
pub(crate) fn list<T: Parse>(meta: &ParseNestedMeta<'_>) -> Result<Vec<T>> {
    let content;
    parenthesized!(content in meta.input);
    let list = Punctuated::<T, Token![,]>::parse_terminated(&content)?;
    Ok(list.into_iter().collect())
}

/// Reads `= "30s"` as milliseconds.
pub(crate) fn millis(meta: &ParseNestedMeta<'_>) -> Result<u64> {
    let text: LitStr = meta.value()?.parse()?;
    let duration = humantime::parse_duration(&text.value()).map_err(|e| {
        Error::new(
            text.span(),
            format!("not a duration: {e}; write for example \"200ms\", \"30s\" or \"1h 30m\""),
        )
    })?;
    whole_millis(duration).ok_or_else(|| {
        let message = "a duration must be at least 1 ms and fit into 64 bits of milliseconds";
        Error::new(text.span(), message)
    })
}

fn whole_millis(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_millis())
        .ok()
        .filter(|ms| *ms > 0)
}
