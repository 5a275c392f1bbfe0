SELECT o_ix, o_outcome, o_owner, o_run FROM continuum_post($1, $2, $3, $4, $5, false)
