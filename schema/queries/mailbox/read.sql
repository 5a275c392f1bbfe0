-- One snapshot brings the wake counter and the mail that it counts; a bump and its mail commit together.
SELECT l.chain_id, l.wake, m.mail_id, m.kind, m.name, m.payload, m.delivery_id
FROM unnest($2::uuid[]) c(chain_id)
JOIN continuum_leases l ON l.chain_id = c.chain_id AND l.owner = $1
LEFT JOIN continuum_mailbox m ON m.chain_id = c.chain_id
ORDER BY l.chain_id, m.mail_id
