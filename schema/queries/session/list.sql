-- Sessions for people: the open ones, and with $2 those that were closed and whose rows are still kept. $1 is a
-- session's id or a worker's name. All ages are by the database's clock.
SELECT s.session_id, s.worker, s.build, s.queues, s.claim_keys, s.state, s.open, s.resident, s.activities, s.opened_at,
       extract(epoch FROM clock_timestamp() - s.beat_at)::float8 AS beat_age,
       extract(epoch FROM clock_timestamp() - s.opened_at)::float8 AS age,
       s.closed_at, s.close_reason
FROM continuum_sessions s
WHERE (s.open OR $2) AND ($1::text IS NULL OR s.session_id::text = $1 OR s.worker = $1)
ORDER BY s.open DESC, s.worker, s.opened_at DESC, s.session_id
LIMIT $3
