//! The database of the compose cluster, once tests/compose/run.sh is done with its workers.

use continuum_schema::{Database, DatabaseConfig, Name};
use continuum_tests::check;

#[tokio::test]
#[ignore = "tests/compose/run.sh runs it, against its cluster"]
async fn the_cluster_keeps_every_invariant() {
    let url =
        std::env::var("COMPOSE_TEST_DATABASE").expect("the script says where its database is");
    let instance = Name::new("default").unwrap();
    let database = Database::new(DatabaseConfig::new(url, &instance)).unwrap();
    check(&database).await;
}
