-- The little that a waiter needs.
SELECT state, result, failure FROM continuum_runs WHERE run_id = $1
