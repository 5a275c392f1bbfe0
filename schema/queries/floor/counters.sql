-- The position in the WAL is exact. The other two reach shared memory up to a second late, at both ends of a measurement
-- alike.
SELECT d.xact_commit, w.wal_sync, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal_bytes
FROM pg_stat_database d CROSS JOIN pg_stat_wal w
WHERE d.datname = current_database()
