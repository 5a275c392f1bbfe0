SELECT o_run, o_chain, o_effect, o_attempt, o_namespace, o_payload FROM continuum_activity_claim($1, $2, $3, $4)
