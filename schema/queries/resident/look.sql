-- Who holds each of these, and whether it is to be had: never taken, released, or held by a session that is not open.
SELECT n.name, r.session, r.token, r.since,
       NOT EXISTS (SELECT 1 FROM continuum_sessions s WHERE s.session_id = r.session AND s.open) AS is_free
FROM unnest($1::text[]) n(name)
LEFT JOIN continuum_residents r ON r.name = n.name
ORDER BY n.name
