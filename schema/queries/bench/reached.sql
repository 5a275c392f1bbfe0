SELECT count(*) FROM continuum_events WHERE seq = $1
