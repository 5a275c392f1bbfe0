-- What was applied, and when. The shape is that of sqlx, whose migrator can't be used behind a pooler.
CREATE TABLE IF NOT EXISTS continuum_migrations (
    version        bigint PRIMARY KEY,
    description    text NOT NULL,
    installed_on   timestamptz NOT NULL DEFAULT now(),
    success        boolean NOT NULL,
    checksum       bytea NOT NULL,
    execution_time bigint NOT NULL
)
