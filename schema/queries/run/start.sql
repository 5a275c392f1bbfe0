SELECT o_ix, o_outcome, o_run FROM continuum_start($1, $2, $3, $4, $5)
