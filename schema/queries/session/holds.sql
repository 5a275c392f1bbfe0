-- What Postgres says that a session owns, and what is due for its code. No count goes beyond $2, so none reads a whole
-- index: a million waiting runs are counted no further than that.
--
-- The lag is that of the timers that are due and unowned: a ticket tells an order and no time.
SELECT (SELECT count(*) FROM (SELECT FROM continuum_leases l WHERE l.owner = s.session_id LIMIT $2) q),
       (SELECT count(*) FROM (SELECT FROM continuum_activity_tasks t WHERE t.owner = s.session_id LIMIT $2) q),
       (SELECT count(*) FROM (
           SELECT FROM unnest(s.claim_keys) k(key)
           CROSS JOIN LATERAL (
               SELECT FROM continuum_leases l
               WHERE l.claim_key = k.key AND l.owner IS NULL AND l.ticket IS NOT NULL LIMIT $2) l
           LIMIT $2) q),
       (SELECT extract(epoch FROM clock_timestamp() - min(l.next_timer_at))::float8
        FROM unnest(s.claim_keys) k(key)
        CROSS JOIN LATERAL (
            SELECT l.next_timer_at FROM continuum_leases l
            WHERE l.claim_key = k.key AND l.owner IS NULL AND l.next_timer_at <= clock_timestamp()
            ORDER BY l.next_timer_at LIMIT 1) l)
FROM continuum_sessions s
WHERE s.session_id = $1
