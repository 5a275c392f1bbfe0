SELECT subject, reason, delivery_id, size, at FROM continuum_rejected_signals ORDER BY rejected_id DESC LIMIT $1
