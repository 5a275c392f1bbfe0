SELECT session_id, beat FROM continuum_sessions WHERE open ORDER BY session_id
