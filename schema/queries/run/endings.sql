-- The little that waiters need. The limit keeps it one index look-up a run, whatever the planner thinks of the table.
SELECT u.ix, n.state, n.result, n.failure
FROM unnest($1::uuid[]) WITH ORDINALITY u(run_id, ix)
CROSS JOIN LATERAL (SELECT r.state, r.result, r.failure FROM continuum_runs r WHERE r.run_id = u.run_id LIMIT 1) n
