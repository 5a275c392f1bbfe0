SELECT key, state, ended_at FROM continuum_runs WHERE key IS NOT NULL AND ended_at IS NOT NULL
