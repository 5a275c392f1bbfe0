-- Copies of one cold run, each under an id of its own: every row that a worker left of it when it gave it back.
WITH copies AS MATERIALIZED (
    SELECT continuum_new_run_id() AS run_id FROM generate_series(1, $2)
), records AS (
    INSERT INTO continuum_runs (run_id, chain_id, namespace, workflow, request_hash, state, input, created_at)
    SELECT c.run_id, c.run_id, n.namespace, n.workflow, n.request_hash, n.state, n.input, n.created_at
    FROM copies c CROSS JOIN continuum_runs n WHERE n.run_id = $1
), leases AS (
    INSERT INTO continuum_leases (chain_id, run_id, token, wake, next_timer_at, claim_key)
    SELECT c.run_id, c.run_id, continuum_next_token(), l.wake, l.next_timer_at, l.claim_key
    FROM copies c CROSS JOIN continuum_leases l WHERE l.run_id = $1 AND l.owner IS NULL AND l.ticket IS NULL
    RETURNING run_id
), events AS (
    INSERT INTO continuum_events (run_id, seq, token, kind, at, payload)
    SELECT c.run_id, e.seq, e.token, e.kind, e.at, e.payload
    FROM copies c CROSS JOIN continuum_events e WHERE e.run_id = $1
), timers AS (
    INSERT INTO continuum_timers (run_id, effect, fire_at)
    SELECT c.run_id, t.effect, t.fire_at FROM copies c CROSS JOIN continuum_timers t WHERE t.run_id = $1
)
SELECT count(*) FROM leases
