-- The identity of the process that serves this statement: its number, and the server it belongs to.
SELECT pg_backend_pid() || ' ' || pg_postmaster_start_time()
