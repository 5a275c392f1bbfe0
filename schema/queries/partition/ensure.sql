SELECT continuum_ensure_partitions($1)
