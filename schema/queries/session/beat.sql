-- Shows that the session lives and how its worker is, and brings the database's clock and WAL timeline (the first eight
-- characters of a WAL file's name; it changes when a replica is promoted).
UPDATE continuum_sessions
SET beat = beat + 1, beat_at = clock_timestamp(),
    state = coalesce($2, state), resident = coalesce($3, resident), activities = coalesce($4, activities)
WHERE session_id = $1 AND open
RETURNING clock_timestamp(), substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
