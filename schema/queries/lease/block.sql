SELECT continuum_block($1, $2, $3, $4, $5, $6::jsonb, $7)
