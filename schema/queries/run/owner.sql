-- Whom to wake for a run of a chain.
SELECT l.run_id, l.owner FROM continuum_runs n JOIN continuum_leases l ON l.chain_id = n.chain_id WHERE n.run_id = $1
