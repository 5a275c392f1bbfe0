-- The runs that have been due longest for each of these claim keys, at most $2 a key. A ticket tells an order and no time:
-- whoever wants to know for how long looks twice.
SELECT x.chain_id, x.run_id, x.ticket
FROM unnest($1::text[]) k(key)
CROSS JOIN LATERAL (
    SELECT l.chain_id, l.run_id, l.ticket FROM continuum_leases l
    WHERE l.claim_key = k.key AND l.owner IS NULL AND l.ticket IS NOT NULL
    ORDER BY l.ticket LIMIT $2) x
