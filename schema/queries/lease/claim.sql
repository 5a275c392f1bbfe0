SELECT o_item, o_chain, o_run, o_token, o_number, o_seq, o_kind, o_at, o_name, o_key, o_namespace, o_pin, o_payload
FROM continuum_claim($1, $2, $3, $4, $5)
