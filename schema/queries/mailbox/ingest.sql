SELECT o_ix, o_outcome, o_owner, o_run FROM continuum_ingest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
