SELECT continuum_signal_deferred($1, $2, $3, $4)
