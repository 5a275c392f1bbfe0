SELECT e.seq, e.token, e.kind, e.at, e.payload FROM continuum_events e
WHERE e.run_id = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3
