-- Newest first: a run id begins with its birth. Keyset paging by the last id seen.
SELECT n.run_id, n.chain_id, n.namespace, n.workflow, n.key, n.state, ''::bytea AS input, NULL::bytea AS result,
       n.failure,
       coalesce(n.version_hash, CASE WHEN position('@' IN l.claim_key) > 0 THEN split_part(l.claim_key, '@', 2) END)
           AS version_hash,
       n.unread, n.created_at, n.ended_at,
       l.owner, s.worker, l.ticket IS NOT NULL AS due, l.next_timer_at, l.blocked, l.block_detail::text AS block_detail,
       EXISTS (SELECT 1 FROM continuum_sessions o WHERE o.open AND l.claim_key = ANY (o.claim_keys)) AS served,
       0::bigint AS mail
FROM continuum_runs n
LEFT JOIN continuum_leases l ON l.run_id = n.run_id AND l.chain_id = n.chain_id
LEFT JOIN continuum_sessions s ON s.session_id = l.owner
WHERE ($1::text IS NULL OR n.workflow = $1)
  AND ($2::text IS NULL OR n.state = $2)
  AND ($3::text IS NULL OR n.namespace = $3)
  AND ($4::uuid IS NULL OR n.run_id < $4)
  AND (NOT $5 OR l.blocked IS NOT NULL)
ORDER BY n.run_id DESC LIMIT $6
