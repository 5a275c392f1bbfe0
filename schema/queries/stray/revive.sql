-- Makes runs due that are nobody's and that nothing would wake. A locked row is in somebody's hands and set aside.
WITH locked AS (
    SELECT l.chain_id FROM continuum_leases l
    WHERE l.chain_id = ANY ($1) AND l.owner IS NULL AND l.ticket IS NULL AND l.blocked IS NULL
    ORDER BY l.chain_id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE continuum_leases l SET ticket = nextval('continuum_tickets')
FROM locked WHERE l.chain_id = locked.chain_id AND l.owner IS NULL AND l.ticket IS NULL
RETURNING l.run_id
