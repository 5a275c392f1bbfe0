SELECT o_outcome, o_owner, o_run FROM continuum_cancel($1, $2, $3, $4, $5)
