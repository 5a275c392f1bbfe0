-- What the tables that hold active runs take, their indexes included.
SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint AS tables, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint AS indexes
FROM pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
  AND c.relname ~ '^continuum_(runs|leases|events|timers|mailbox)'
