INSERT INTO continuum_floor (payload) SELECT p.payload FROM unnest($1::bytea[]) p(payload)
