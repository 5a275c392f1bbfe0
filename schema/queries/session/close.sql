-- Compare-and-set on the heartbeat counter: a session that has beaten since the watcher looked is alive.
UPDATE continuum_sessions SET open = false, closed_at = clock_timestamp(), close_reason = $3
WHERE session_id = $1 AND open AND ($2::bigint IS NULL OR beat = $2)
