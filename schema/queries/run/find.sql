SELECT run_id FROM continuum_runs WHERE namespace = $1 AND key = $2
