INSERT INTO continuum_migrations (version, description, success, checksum, execution_time)
VALUES ($1, $2, true, $3, -1)
