SELECT continuum_resident_claim($1, $2)
