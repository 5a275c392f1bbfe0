-- What an active run is doing is told by its lease row: nothing is written while it runs.
SELECT n.run_id, n.chain_id, n.namespace, n.workflow, n.key, n.state, n.input, n.result, n.failure,
       coalesce(n.version_hash, CASE WHEN position('@' IN l.claim_key) > 0 THEN split_part(l.claim_key, '@', 2) END)
           AS version_hash,
       n.unread, n.created_at, n.ended_at,
       l.owner, s.worker, l.ticket IS NOT NULL AS due, l.next_timer_at, l.blocked, l.block_detail::text AS block_detail,
       EXISTS (SELECT 1 FROM continuum_sessions o WHERE o.open AND l.claim_key = ANY (o.claim_keys)) AS served,
       (SELECT count(*) FROM continuum_mailbox m WHERE m.chain_id = n.chain_id) AS mail
FROM continuum_runs n
LEFT JOIN continuum_leases l ON l.run_id = n.run_id AND l.chain_id = n.chain_id
LEFT JOIN continuum_sessions s ON s.session_id = l.owner
WHERE n.run_id = $1
