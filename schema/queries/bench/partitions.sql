-- How often each month of the journal was looked into. The counters arrive up to a second late.
SELECT s.relname::text AS partition, coalesce(s.seq_scan, 0) + coalesce(s.idx_scan, 0) AS scans
FROM pg_stat_user_tables s
WHERE s.schemaname = current_schema() AND s.relname ~ '^continuum_events_'
ORDER BY s.relname
