-- The open activities of a run, for people.
SELECT t.effect, t.name, t.queue, t.attempt, t.max_attempts, t.owner IS NOT NULL AS running, t.due_at,
       (SELECT a.failure FROM continuum_activity_attempts a
        WHERE a.run_id = t.run_id AND a.effect = t.effect ORDER BY a.attempt DESC LIMIT 1) AS failure
FROM continuum_activity_tasks t WHERE t.run_id = $1 ORDER BY t.effect
