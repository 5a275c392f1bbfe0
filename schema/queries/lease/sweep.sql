SELECT continuum_sweep($1, $2)
