SELECT continuum_next_timer($1)
