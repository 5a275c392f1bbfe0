//! The doors into a caller's own transaction. Its connection has its own search path, so the functions are called by
//! their full names; each sets the path it needs by itself.

use sqlx::AssertSqlSafe;

/// A call of `continuum_…` with the instance's schema in front.
pub(crate) fn qualified(sql: &'static str, schema: &str) -> AssertSqlSafe<String> {
    let quoted = schema.replace('"', "\"\"");
    AssertSqlSafe(sql.replace("continuum_", &format!("\"{quoted}\".continuum_")))
}

#[cfg(test)]
mod tests {
    use sqlx::SqlSafeStr;

    use super::*;

    #[test]
    fn odd_schema_names_are_quoted() {
        let sql = qualified("SELECT continuum_f($1)", "Dur \"x\" %s");
        assert_eq!(
            sql.into_sql_str().as_str(),
            "SELECT \"Dur \"\"x\"\" %s\".continuum_f($1)"
        );
    }
}
