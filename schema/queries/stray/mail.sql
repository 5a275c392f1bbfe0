-- One page of the mailbox, from ($1, $2) on, and which of it has waited for more than $3 seconds though every turn takes
-- such mail: results and cancel requests. Signals may wait for as long as nobody asks for them.
--
-- Mail of a run that is due or blocked is in nobody's way; the rest should have been seen by now.
SELECT p.chain_id, p.mail_id, l.run_id, l.owner,
       l.chain_id IS NOT NULL AND p.kind <> 1 AND p.posted_at < clock_timestamp() - $3 * interval '1 second'
           AND (l.owner IS NOT NULL OR l.ticket IS NULL AND l.blocked IS NULL) AS is_stray
FROM (SELECT m.chain_id, m.mail_id, m.kind, m.posted_at FROM continuum_mailbox m
      WHERE (m.chain_id, m.mail_id) > ($1, $2)
      ORDER BY m.chain_id, m.mail_id LIMIT $4) p
LEFT JOIN continuum_leases l ON l.chain_id = p.chain_id
ORDER BY p.chain_id, p.mail_id
