-- One migration at a time in this database; the lock ends with the transaction, so no pooler can strand it.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))
