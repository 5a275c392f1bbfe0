-- How many seconds ago the oldest mail of these chains was posted, by the database's clock.
SELECT max(extract(epoch FROM clock_timestamp() - m.posted_at))::float8
FROM unnest($1::uuid[]) c(chain_id) JOIN continuum_mailbox m ON m.chain_id = c.chain_id
