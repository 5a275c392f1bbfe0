//! `migrate`: bring the database to this build's version.

use clap::Args;
use continuum_schema::migration::{self, Migrated};
use continuum_schema::{Database, Key};
use serde::Serialize;

use super::error::CliError;
use super::settings::{DatabaseArgs, InstanceArgs};
use super::{Context, examples};

const EXAMPLES: &str = "\
continuum migrate                                            create or bring up to date
continuum migrate --check || echo 'migrate first'            look, and change nothing
continuum migrate --print-grants --role app | psql           the rights of workers and clients";

/// Bring the database to this build's version
///
/// Run it before the first worker of a new build. It may run in many places at once, and older workers may go on
/// meanwhile.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct MigrateArgs {
    /// Change nothing; exit with 0 if the database is at this build's version, else with 5
    #[arg(long, conflicts_with = "print_grants")]
    check: bool,

    /// Print the statements that give a role what workers and clients need; nothing is sent to the database
    #[arg(long, requires = "role")]
    print_grants: bool,

    /// The role that the statements are for
    #[arg(long, value_name = "NAME", requires = "print_grants")]
    role: Option<String>,

    #[command(flatten)]
    instance: InstanceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// The answer for programs.
#[derive(Serialize)]
struct Answer {
    schema: String,
    from: i64,
    to: i64,
    partitions_made: i32,
}

/// The answer of `--print-grants` for programs.
#[derive(Serialize)]
struct Grants {
    schema: String,
    role: String,
    sql: String,
}

pub(super) async fn run(args: MigrateArgs, context: Context<'_>) -> Result<(), CliError> {
    if let Some(role) = args.role {
        let role = Key::of("role", role)?.to_string();
        let schema = match args.database.schema()? {
            Some(schema) => schema.to_owned(),
            None => args.instance.name().to_string(),
        };
        let sql = migration::grants(&schema, &role);
        return context.output.answer(
            || Grants {
                schema,
                role,
                sql: sql.clone(),
            },
            || sql.clone(),
        );
    }
    let target = args.database.target(&args.instance)?;
    let database = Database::new(target.database.clone())?;
    let done = match args.check {
        true => migration::check(&database).await.map(checked),
        false => migration::migrate(&database).await,
    };
    let done = done.map_err(|error| target.reached(error))?;
    let schema = database.schema().to_owned();
    database.close().await;
    let text = describe(&schema, &done, args.check);
    context.output.answer(
        || Answer {
            schema,
            from: done.from,
            to: done.to,
            partitions_made: done.partitions,
        },
        || text,
    )
}

/// A check finds what a migration would leave.
fn checked(version: i64) -> Migrated {
    Migrated {
        from: version,
        to: version,
        partitions: 0,
    }
}

fn describe(schema: &str, done: &Migrated, check: bool) -> String {
    let Migrated {
        from,
        to,
        partitions,
    } = done;
    let months = match partitions {
        0 => String::new(),
        count => format!("; {count} months of the journal were made"),
    };
    match from {
        _ if check => format!("schema {schema:?} is at version {to}, as this build needs"),
        0 => format!("schema {schema:?} was created at version {to}{months}"),
        from if from == to => format!("schema {schema:?} was at version {to} already{months}"),
        from => format!("schema {schema:?} was brought from version {from} to {to}{months}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_says_what_it_did() {
        let done = |from, partitions| Migrated {
            from,
            to: 3,
            partitions,
        };
        assert_eq!(
            describe("a", &done(0, 4), false),
            "schema \"a\" was created at version 3; 4 months of the journal were made"
        );
        assert_eq!(
            describe("a", &done(3, 0), false),
            "schema \"a\" was at version 3 already"
        );
        assert_eq!(
            describe("a", &done(2, 0), false),
            "schema \"a\" was brought from version 2 to 3"
        );
        assert_eq!(
            describe("a", &checked(3), true),
            "schema \"a\" is at version 3, as this build needs"
        );
    }
}
