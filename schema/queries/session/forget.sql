-- Rows of closed sessions are kept a while for people to look at. A session that still owns something stays.
DELETE FROM continuum_sessions s
WHERE s.session_id IN (
    SELECT c.session_id FROM continuum_sessions c
    WHERE NOT c.open AND c.closed_at < clock_timestamp() - $1 * interval '1 second'
      AND NOT EXISTS (SELECT 1 FROM continuum_leases l WHERE l.owner = c.session_id)
      AND NOT EXISTS (SELECT 1 FROM continuum_activity_tasks t WHERE t.owner = c.session_id)
    LIMIT 100)
