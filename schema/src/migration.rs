//! Migrations: plain numbered SQL, embedded, applied in one transaction.

use std::collections::HashMap;

use sha2::{Digest, Sha384};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::database::{Statement, statement};
use crate::error::VersionError;
use crate::{Database, Error, partition};

const LOCK: Statement = statement!("instance/lock");
const VERSION: Statement = statement!("instance/version");
const EXISTS: Statement = statement!("instance/exists");
const SCHEMA: Statement = statement!("instance/schema");
const CREATE: Statement = statement!("instance/create");
const GRANTS: Statement = statement!("instance/grants");
const MIGRATIONS_TABLE: Statement = statement!("instance/migrations");
const APPLIED: Statement = statement!("instance/applied");
const RECORD: Statement = statement!("instance/record");

/// Every migration of this build, in order. A test compares the list with the folder.
pub const MIGRATIONS: &[(i64, &str, &str)] = &[
    (
        1,
        "tables",
        include_str!("../../migrations/0001_tables.sql"),
    ),
    (
        2,
        "partitions",
        include_str!("../../migrations/0002_partitions.sql"),
    ),
    (
        3,
        "functions",
        include_str!("../../migrations/0003_functions.sql"),
    ),
    (
        4,
        "residents",
        include_str!("../../migrations/0004_residents.sql"),
    ),
    (5, "fleet", include_str!("../../migrations/0005_fleet.sql")),
];

/// What a migration did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version before; 0 if the instance was new.
    pub from: i64,
    /// The version now.
    pub to: i64,
    /// Months of the journal that were made.
    pub partitions: i32,
}

/// The version that this build needs.
#[must_use]
pub fn wanted() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, _, _)| *version)
}

/// Brings the instance's schema to this build's version, and makes the months ahead. Safe to run from many processes
/// at once: one does the work, the others find it done. The lock belongs to the transaction, so no pooler can strand
/// it, and a process that dies leaves nothing half done.
///
/// # Errors
/// [`Error::Refused`] if the role may not create what is missing, [`Error::Version`] if the database is newer.
pub async fn migrate(database: &Database) -> Result<Migrated, Error> {
    let mut transaction = database.transaction().await?;
    let from = bring_up(database, transaction.as_mut()).await?;
    transaction.finish(Ok(())).await?;
    let partitions = partition::ensure(database, partition::MONTHS_AHEAD).await?;
    Ok(Migrated {
        from,
        to: wanted(),
        partitions,
    })
}

/// Applies what is missing, inside of the caller's transaction; the version before. Nothing is prepared under a name:
/// a pooler would give the name to others.
async fn bring_up(database: &Database, connection: &mut PgConnection) -> Result<i64, Error> {
    sqlx::query(LOCK.sql)
        .bind(format!("continuum migrate {}", database.schema()))
        .persistent(false)
        .execute(&mut *connection)
        .await?;
    create_schema(connection, database.schema()).await?;
    let from = applied(connection).await?;
    if from > wanted() {
        return Err(newer(database, from).into());
    }
    if from == 0 {
        sqlx::raw_sql(MIGRATIONS_TABLE.sql)
            .execute(&mut *connection)
            .await?;
    }
    let checksums = checksums(connection).await?;
    for (version, name, sql) in MIGRATIONS {
        let checksum = Sha384::digest(sql).to_vec();
        match checksums.get(version) {
            Some(found) if *found == checksum => {}
            Some(_) => {
                return Err(Error::Config(format!(
                    "the migrations can't be applied: migration {version} was applied in another form than this \
                     build's"
                )));
            }
            None => apply(connection, *version, name, sql, checksum).await?,
        }
    }
    Ok(from)
}

/// What was applied, and in which form.
async fn checksums(connection: &mut PgConnection) -> Result<HashMap<i64, Vec<u8>>, Error> {
    let rows = sqlx::query(APPLIED.sql)
        .persistent(false)
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

async fn apply(
    connection: &mut PgConnection,
    version: i64,
    name: &str,
    sql: &'static str,
    checksum: Vec<u8>,
) -> Result<(), Error> {
    sqlx::raw_sql(sql).execute(&mut *connection).await?;
    sqlx::query(RECORD.sql)
        .bind(version)
        .bind(name)
        .bind(checksum)
        .persistent(false)
        .execute(connection)
        .await?;
    Ok(())
}

/// Refuses a database that is not at this build's version, with the command to run.
///
/// # Errors
/// [`Error::Version`] says how it differs.
pub async fn check(database: &Database) -> Result<i64, Error> {
    let mut connection = database.connection().await?;
    let found = applied(connection.as_mut()).await?;
    connection.finish(Ok(())).await?;
    let schema = database.schema().to_owned();
    let wanted = wanted();
    match found {
        0 => Err(VersionError::Missing { schema }.into()),
        found if found < wanted => Err(VersionError::Older {
            schema,
            found,
            wanted,
        }
        .into()),
        found if found > wanted => Err(newer(database, found).into()),
        found => Ok(found),
    }
}

/// The statements that give `role` what a worker and a client need, and no right to change the schema.
#[must_use]
pub fn grants(schema: &str, role: &str) -> String {
    GRANTS
        .sql
        .replace("{schema}", &quote(schema))
        .replace("{role}", &quote(role))
}

fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

fn newer(database: &Database, found: i64) -> VersionError {
    VersionError::Newer {
        schema: database.schema().to_owned(),
        found,
        wanted: wanted(),
    }
}

async fn create_schema(connection: &mut PgConnection, schema: &str) -> Result<(), Error> {
    let exists = sqlx::query(SCHEMA.sql)
        .bind(schema)
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?
        .try_get::<bool, _>(0)?;
    // `IF NOT EXISTS` asks for the right to create even where there is nothing to create.
    if !exists {
        let create = CREATE.sql.replace("{schema}", &quote(schema));
        sqlx::query(AssertSqlSafe(create))
            .persistent(false)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// The newest migration that was applied; 0 if there is none.
async fn applied(connection: &mut PgConnection) -> Result<i64, Error> {
    let exists = sqlx::query(EXISTS.sql)
        .bind("continuum_migrations")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?
        .try_get::<bool, _>(0)?;
    if !exists {
        return Ok(0);
    }
    let rows = sqlx::query(VERSION.sql)
        .persistent(false)
        .fetch_all(connection)
        .await?;
    rows.last().map_or(Ok(0), |row| Ok(row.try_get(0)?))
}
