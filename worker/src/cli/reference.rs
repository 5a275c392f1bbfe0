//! The settings as a page of documentation, made from the definitions that the program itself reads.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use super::dev_file::path_here;
use super::error::EXIT_CODES;
use super::{PROGRAM, command};

const HEAD: &str = "\
# Configuration

Every setting is a flag and an environment variable; the flag wins. There is no configuration file. This page is made
from the program's own definitions; `continuum COMMAND --help` shows the same for one command.

- **Times** are written with their units: `500ms`, `2s`, `1m 30s`.
- **Sizes** are bytes or carry a unit: `65536`, `512KiB`, `2MiB`.
- **Secrets** belong into variables rather than flags, which others can see in the list of processes. They are never
  logged.
";

const DEV: &str = "\
## Servers of `continuum dev`

While `continuum dev` runs, its data folder holds a file `dev.json` that says where its servers are. A command without
a database URL looks for it in the current folder, as
`PATH`, and works with these servers. A database URL that is set wins.
";

/// Variables without a flag.
const VARIABLES: [(&str, &str, &str); 3] = [
    (
        "`CONTINUUM_POSTGRES_BIN`",
        "the newest that is installed",
        "The folder that holds `initdb` and `postgres`, for `dev`",
    ),
    (
        "`CONTINUUM_NATS_SERVER`",
        "the one that is installed",
        "The program `nats-server`, for `dev`",
    ),
    ("`NO_COLOR`", "", "Set to anything: no colours"),
];

/// One setting and the commands that have it.
struct Setting {
    flag: String,
    variable: String,
    default: String,
    meaning: String,
    commands: Vec<String>,
}

/// The documentation page of all settings, as Markdown.
#[doc(hidden)]
#[must_use]
pub fn reference() -> String {
    let mut command = command(PROGRAM);
    command.build();
    let mut page = HEAD.to_owned();
    for (heading, settings) in settings(&command) {
        section(&mut page, &heading, &settings);
    }
    page.push_str(
        "\n## Variables without a flag\n\n| Variable | Default | Meaning |\n| --- | --- | --- |\n",
    );
    for (variable, default, meaning) in VARIABLES {
        line(
            &mut page,
            format_args!("| {variable} | {default} | {meaning} |"),
        );
    }
    line(
        &mut page,
        format_args!(
            "\n{}",
            DEV.replace("PATH", &path_here().display().to_string())
                .trim_end()
        ),
    );
    page.push_str("\n## Exit codes\n\n| Code | Meaning |\n| --- | --- |\n");
    for (code, meaning) in EXIT_CODES {
        line(&mut page, format_args!("| {code} | {meaning} |"));
    }
    page
}

fn section(page: &mut String, heading: &str, settings: &[Setting]) {
    line(page, format_args!("\n## {heading}\n"));
    page.push_str(
        "| Flag | Variable | Default | Meaning | Commands |\n| --- | --- | --- | --- | --- |\n",
    );
    for Setting {
        flag,
        variable,
        default,
        meaning,
        commands,
    } in settings
    {
        let commands = commands.join(", ");
        line(
            page,
            format_args!("| {flag} | {variable} | {default} | {meaning} | {commands} |"),
        );
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("a String takes whatever is written to it");
}

/// The settings that have a variable, by heading, in the order of their definitions.
fn settings(root: &Command) -> Vec<(String, Vec<Setting>)> {
    let mut order: Vec<String> = Vec::new();
    let mut found: BTreeMap<String, (String, Setting)> = BTreeMap::new();
    for (path, command) in leaves(root, "") {
        for argument in command
            .get_arguments()
            .filter(|argument| argument.get_env().is_some())
        {
            let id = argument.get_id().to_string();
            let (_, setting) = found.entry(id.clone()).or_insert_with(|| {
                order.push(id);
                (heading(argument), Setting::new(argument))
            });
            setting.commands.push(format!("`{path}`"));
        }
    }
    let every: Vec<String> = leaves(root, "")
        .into_iter()
        .map(|(path, _)| format!("`{path}`"))
        .collect();
    let mut sections: Vec<(String, Vec<Setting>)> = Vec::new();
    for (heading, mut setting) in order.into_iter().filter_map(|id| found.remove(&id)) {
        setting.shorten_commands(&every);
        match sections.iter_mut().find(|(title, _)| *title == heading) {
            Some((_, settings)) => settings.push(setting),
            None => sections.push((heading, vec![setting])),
        }
    }
    sections
}

/// The commands that do something, with their paths.
fn leaves<'c>(command: &'c Command, path: &str) -> Vec<(String, &'c Command)> {
    let subcommands = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help");
    subcommands
        .flat_map(|sub| {
            let path = format!("{path} {}", sub.get_name()).trim().to_owned();
            match sub.has_subcommands() {
                true => leaves(sub, &path),
                false => vec![(path, sub)],
            }
        })
        .collect()
}

fn heading(argument: &Arg) -> String {
    argument.get_help_heading().unwrap_or("Commands").to_owned()
}

impl Setting {
    fn new(argument: &Arg) -> Self {
        let flag = argument
            .get_long()
            .map(|long| format!("--{long}"))
            .unwrap_or_default();
        let value = argument
            .get_value_names()
            .and_then(<[_]>::first)
            .map(|name| format!(" {name}"));
        let value = value.filter(|_| !matches!(argument.get_action(), ArgAction::SetTrue));
        let help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let (meaning, told) = split_default(&help);
        let values: Vec<String> = argument
            .get_default_values()
            .iter()
            .map(|v| v.to_string_lossy().into_owned())
            .collect();
        let default = match (told, values.is_empty()) {
            (Some(told), _) => told.to_owned(),
            (None, true) => String::new(),
            (None, false) => format!("`{}`", values.join(",")),
        };
        Self {
            flag: format!("`{flag}{}`", value.unwrap_or_default()),
            variable: argument
                .get_env()
                .map(|name| format!("`{}`", name.to_string_lossy()))
                .unwrap_or_default(),
            default,
            meaning: format!("{}{}", escape(meaning), choices(argument)),
            commands: Vec::new(),
        }
    }
}

impl Setting {
    /// Where most commands have the setting, the others are named.
    fn shorten_commands(&mut self, every: &[String]) {
        let without: Vec<&str> = every
            .iter()
            .filter(|command| !self.commands.contains(command))
            .map(String::as_str)
            .collect();
        self.commands = match without.len() {
            0 => vec!["all".to_owned()],
            1 => vec![format!("all but {}", without[0])],
            _ => return,
        };
    }
}

/// A default that is no fixed value is told at the end of the help text, as `[default: …]`.
fn split_default(help: &str) -> (&str, Option<&str>) {
    match help.split_once("[default: ") {
        Some((meaning, told)) => (meaning.trim_end(), Some(told.trim_end_matches(']'))),
        None => (help, None),
    }
}

fn choices(argument: &Arg) -> String {
    let choices: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|_| !matches!(argument.get_action(), ArgAction::SetTrue))
        .map(|choice| match choice.get_help() {
            Some(help) => format!("`{}` ({help})", choice.get_name()),
            None => format!("`{}`", choice.get_name()),
        })
        .collect();
    match choices.is_empty() {
        true => String::new(),
        false => format!(": {}", escape(&choices.join(", "))),
    }
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_documented_once_with_a_variable_of_its_own() {
        let command = {
            let mut command = command(PROGRAM);
            command.build();
            command
        };
        let sections = settings(&command);
        let all: Vec<&Setting> = sections.iter().flat_map(|(_, settings)| settings).collect();
        assert!(all.len() > 40, "{}", all.len());
        for setting in &all {
            assert!(
                setting.variable.starts_with("`CONTINUUM_"),
                "{}",
                setting.variable
            );
            assert!(!setting.meaning.is_empty(), "{}", setting.flag);
            assert_eq!(
                all.iter()
                    .filter(|other| other.variable == setting.variable)
                    .count(),
                1,
                "{}",
                setting.variable
            );
        }
    }

    #[test]
    fn the_page_has_a_table_of_exit_codes_and_no_line_that_breaks_one() {
        let page = reference();
        assert!(page.contains("| 6 | the time given with --timeout has passed |"));
        for line in page.lines().filter(|line| line.starts_with("| `--")) {
            assert_eq!(line.replace("\\|", "").matches('|').count(), 6, "{line}");
        }
    }
}
