-- A new life of a worker. Runs that were parked for a fault of the code are tried again by code that says it can take
-- them; the due times are spread so that a deploy does not replay all of them at once.
WITH opened AS (
    INSERT INTO continuum_sessions (session_id, worker, build, queues, claim_keys)
    VALUES (gen_random_uuid(), $1, $2, $3, $4)
    RETURNING session_id
), parked AS (
    SELECT l.chain_id FROM continuum_leases l
    WHERE l.blocked IN ('drift', 'panicked', 'foreign') AND l.owner IS NULL AND l.claim_key = ANY ($4)
    ORDER BY l.chain_id LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
), due AS (
    UPDATE continuum_leases l SET next_timer_at = clock_timestamp() + random() * interval '5 seconds'
    FROM parked WHERE l.chain_id = parked.chain_id
)
SELECT session_id FROM opened
