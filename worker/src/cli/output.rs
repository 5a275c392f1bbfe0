//! What goes to the terminal: text with tables and colours, or one JSON document.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use continuum_schema::run::RunState;
use serde::Serialize;
use time::OffsetDateTime;

use super::error::CliError;

/// The last column of a table is never narrower than this, in characters.
const LAST_COLUMN_WIDTH_MIN: u16 = 30;

/// How a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people
    Text,
    /// For programs: one document on standard output, errors as a document on standard error
    Json,
}

/// Where a command's answer goes.
pub(super) struct Output {
    format: OutputFormat,
    colored: bool,
}

impl Output {
    pub(super) fn new(format: OutputFormat) -> Self {
        let colored = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        Self { format, colored }
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Prints the answer in the form that was asked for. Only that one is made.
    pub(super) fn answer<D: Serialize>(
        &self,
        document: impl FnOnce() -> D,
        text: impl FnOnce() -> String,
    ) -> Result<(), CliError> {
        if self.is_json() {
            let document = serde_json::to_string_pretty(&document()).map_err(io::Error::from)?;
            return self.write(&document);
        }
        self.write(&text())
    }

    /// Prints lines to standard output, without their colours where nobody would see them.
    pub(super) fn write(&self, text: &str) -> Result<(), CliError> {
        let text = text.trim_end_matches('\n');
        if text.is_empty() {
            return Ok(());
        }
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{text}")?;
        Ok(stdout.flush()?)
    }

    /// A remark beside the answer. A program gets its remarks inside the document.
    pub(super) fn remark(&self, word: &str, text: &str) {
        if !self.is_json() {
            let style = AnsiColor::Yellow.on_default().bold();
            note(&format!("{style}{word}:{style:#} {text}"));
        }
    }

    /// Reports the failure of the command.
    pub(super) fn error(&self, error: &CliError) {
        if self.is_json() {
            return note(&error.to_json());
        }
        let style = AnsiColor::Red.on_default().bold();
        note(&format!("{style}error:{style:#} {}", error.message()));
    }

    /// A table without lines; on a terminal its cells are wrapped to fit.
    /// Without rows it is empty, header included.
    pub(super) fn table(
        &self,
        header: &[&str],
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> String {
        let mut table = Table::new();
        table.add_rows(rows);
        if table.is_empty() {
            return String::new();
        }
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic);
        if self.colored {
            table.enforce_styling();
        }
        table.set_header(header.iter().map(|title| self.title_cell(title)));
        fit(&mut table);
        table.trim_fmt()
    }

    fn title_cell(&self, title: &str) -> Cell {
        match self.colored {
            true => Cell::new(title).add_attribute(Attribute::Bold),
            false => Cell::new(title),
        }
    }

    /// A cell with the state of a run.
    pub(super) fn state_cell(&self, state: RunState) -> Cell {
        self.toned_cell(state.name(), tone(state))
    }

    /// A cell with a word whose tone tells how good it is.
    pub(super) fn toned_cell(&self, word: &str, tone: Tone) -> Cell {
        let cell = Cell::new(word);
        match tone.colors() {
            Some(Colors { cell: color, .. }) if self.colored => cell.fg(color),
            _ => cell,
        }
    }
}

/// Only the last column is wrapped: ids and names must stay whole to be copied.
fn fit(table: &mut Table) {
    let last = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    // Without a terminal there is no width, and nothing is wrapped.
    if let Some(width) = table.width() {
        let whole = table.column_max_content_widths();
        let whole: u16 = whole.iter().take(last).map(|width| width + 2).sum();
        table.set_width(width.max(whole + LAST_COLUMN_WIDTH_MIN));
    }
}

/// Standard error may be closed; then nobody is there to be told.
fn note(text: &str) {
    let mut stderr = anstream::stderr().lock();
    drop(writeln!(stderr, "{text}"));
}

/// One colour in the words of both crates.
struct Colors {
    cell: Color,
    text: AnsiColor,
}

/// How good a state is, for the eye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Busy,
    Warning,
    Bad,
    Plain,
}

impl Tone {
    fn colors(self) -> Option<Colors> {
        let (cell, text) = match self {
            Self::Good => (Color::DarkGreen, AnsiColor::Green),
            Self::Busy => (Color::DarkCyan, AnsiColor::Cyan),
            Self::Warning => (Color::DarkYellow, AnsiColor::Yellow),
            Self::Bad => (Color::DarkRed, AnsiColor::Red),
            Self::Plain => return None,
        };
        Some(Colors { cell, text })
    }
}

fn tone(state: RunState) -> Tone {
    match state {
        RunState::Completed => Tone::Good,
        RunState::Failed | RunState::Blocked => Tone::Bad,
        RunState::Unserved | RunState::Cancelled => Tone::Warning,
        RunState::Running => Tone::Busy,
        RunState::Pending | RunState::Waiting => Tone::Plain,
    }
}

/// The state of a run in its colour.
pub(super) fn state_text(state: RunState) -> String {
    toned_text(state.name(), tone(state))
}

/// A word in the colour of its tone.
pub(super) fn toned_text(word: &str, tone: Tone) -> String {
    let style = tone
        .colors()
        .map_or_else(Style::new, |colors| colors.text.on_default());
    format!("{style}{word}{style:#}")
}

/// Lines of a label and a value.
#[derive(Default)]
pub(super) struct Page {
    pub(super) text: String,
}

impl Page {
    pub(super) fn line(&mut self, label: &str, value: impl std::fmt::Display) {
        // Further lines of a value stand below the first.
        let value = value.to_string().replace('\n', &format!("\n{:11}", ""));
        writeln!(self.text, "{label:<10} {value}")
            .expect("a String takes whatever is written to it");
    }

    pub(super) fn optional(&mut self, label: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.line(label, value);
        }
    }

    /// Adds a table below the lines.
    pub(super) fn table(&mut self, table: &str) {
        if !table.is_empty() {
            self.text.push('\n');
            self.text.push_str(table);
        }
    }
}

/// An age as its two largest units: `3m 20s`, `5d 4h`.
pub(super) fn age_text(age: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(age.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// The time between two moments, to the millisecond.
pub(super) fn span(from: OffsetDateTime, to: OffsetDateTime) -> String {
    let millis = u64::try_from((to - from).whole_milliseconds()).unwrap_or(0);
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_utc_and_spans_never_negative() {
        let at = OffsetDateTime::UNIX_EPOCH;
        assert_eq!(crate::view::moment(at), "1970-01-01 00:00:00Z");
        assert_eq!(
            span(at, at + time::Duration::milliseconds(1_500)),
            "1s 500ms"
        );
        assert_eq!(span(at + time::Duration::HOUR, at), "0s");
    }

    #[test]
    fn a_table_without_a_terminal_is_plain() {
        let output = Output {
            format: OutputFormat::Text,
            colored: false,
        };
        let text = output.table(
            &["A", "B"],
            [vec![Cell::new("1").fg(Color::Red), Cell::new("two words")]],
        );
        assert_eq!(text, "A  B\n1  two words");
    }
}
