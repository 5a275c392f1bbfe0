-- Attempts whose session is closed.
SELECT t.run_id, t.effect, t.attempt, t.max_attempts, t.owner, t.queue
FROM continuum_sessions s JOIN continuum_activity_tasks t ON t.owner = s.session_id
WHERE NOT s.open
LIMIT $1
