-- One page of what a session owns, for the comparison with what it has in memory.
SELECT l.chain_id, l.run_id, l.token, l.wake FROM continuum_leases l
WHERE l.owner = $1 AND l.chain_id > $2
ORDER BY l.chain_id LIMIT $3
