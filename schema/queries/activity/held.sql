-- Which of these attempts a session still holds; the rest were dropped, ended or taken over.
SELECT t.run_id, t.effect, t.attempt FROM continuum_activity_tasks t WHERE t.owner = $1
