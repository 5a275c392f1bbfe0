SELECT result FROM continuum_activity_results WHERE namespace = $1 AND name = $2 AND idempotency_key = $3
