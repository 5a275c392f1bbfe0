-- What must never be seen once a database is at rest. $1: how long, in seconds, something may be due and unowned.
SELECT 'I1 the events of a run are gap-free' AS rule, run_id::text AS subject
FROM continuum_events GROUP BY run_id HAVING count(*) <> max(seq) OR min(seq) <> 1
UNION ALL
SELECT 'I2 no event follows the last one', e.run_id::text
FROM continuum_events e JOIN continuum_events t ON t.run_id = e.run_id AND t.kind IN (10, 11, 12) AND e.seq > t.seq
UNION ALL
SELECT 'I2 an ended run has a last event, an active one has none', n.run_id::text
FROM continuum_runs n
WHERE (n.state <> 'active') <> EXISTS (SELECT 1 FROM continuum_events t WHERE t.run_id = n.run_id AND t.kind IN (10, 11, 12))
UNION ALL
SELECT 'I3 mail waits only for an active chain', m.chain_id::text
FROM continuum_mailbox m WHERE NOT EXISTS (SELECT 1 FROM continuum_leases l WHERE l.chain_id = m.chain_id)
UNION ALL
SELECT 'I3 a deferred post does not outlive its transaction', p.post_id::text FROM continuum_deferred_posts p
UNION ALL
SELECT 'I4 an activity is open only in an active run', t.run_id::text || '/' || t.effect
FROM continuum_activity_tasks t WHERE NOT EXISTS (SELECT 1 FROM continuum_leases l WHERE l.run_id = t.run_id)
UNION ALL
SELECT 'I5 a due run is claimed in time', l.chain_id::text
FROM continuum_leases l
WHERE l.owner IS NULL AND l.ticket IS NOT NULL
  AND EXISTS (SELECT 1 FROM continuum_sessions s WHERE s.open AND l.claim_key = ANY (s.claim_keys)
              AND s.opened_at < clock_timestamp() - $1 * interval '1 second')
  AND EXISTS (SELECT 1 FROM continuum_runs n WHERE n.run_id = l.run_id
              AND n.created_at < clock_timestamp() - $1 * interval '1 second')
UNION ALL
SELECT 'I6 a lease has a live holder', l.chain_id::text
FROM continuum_leases l WHERE l.owner IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM continuum_sessions s WHERE s.session_id = l.owner AND (s.open OR s.closed_at > clock_timestamp() - $1 * interval '1 second'))
UNION ALL
SELECT 'I6 an attempt has a live holder', t.run_id::text || '/' || t.effect
FROM continuum_activity_tasks t WHERE t.owner IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM continuum_sessions s WHERE s.session_id = t.owner AND (s.open OR s.closed_at > clock_timestamp() - $1 * interval '1 second'))
UNION ALL
SELECT 'an active run has a lease and an ended one has none', n.run_id::text
FROM continuum_runs n
WHERE (n.state = 'active') <> EXISTS (SELECT 1 FROM continuum_leases l WHERE l.run_id = n.run_id)
UNION ALL
SELECT 'a timer belongs to an active run', t.run_id::text || '/' || t.effect
FROM continuum_timers t WHERE NOT EXISTS (SELECT 1 FROM continuum_leases l WHERE l.run_id = t.run_id)
UNION ALL
SELECT 'I8 no transaction is left open', a.pid::text
FROM pg_stat_activity a WHERE a.application_name = 'continuum' AND a.state = 'idle in transaction'
  AND a.state_change < clock_timestamp() - interval '1 second'
