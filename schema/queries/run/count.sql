SELECT state, count(*) FROM continuum_runs WHERE ($1::text IS NULL OR workflow = $1) GROUP BY state
