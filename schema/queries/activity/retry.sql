SELECT continuum_activity_retry($1, $2, $3, $4, $5, $6, $7)
