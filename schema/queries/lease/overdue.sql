-- How many runs with these claim keys have a timer that was due more than $2 seconds ago and are nobody's; counted no
-- further than $3 a key.
SELECT count(*)
FROM unnest($1::text[]) k(key)
CROSS JOIN LATERAL (
    SELECT FROM continuum_leases l
    WHERE l.claim_key = k.key AND l.owner IS NULL
      AND l.next_timer_at <= statement_timestamp() - $2 * interval '1 second'
    LIMIT $3) x
