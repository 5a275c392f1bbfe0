-- The little that waiters need.
SELECT run_id, state, result, failure FROM continuum_runs WHERE run_id = ANY ($1)
