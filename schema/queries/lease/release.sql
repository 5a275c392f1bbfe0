SELECT continuum_release($1, $2, $3, $4)
