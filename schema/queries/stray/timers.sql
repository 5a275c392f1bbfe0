-- One page of the timers, from ($1, $2) on, and which of them were due more than $3 seconds ago though nothing would
-- wake their run: it is nobody's, not due, not blocked, and its lease names no timer as early as this one.
SELECT p.run_id, p.effect, l.chain_id,
       l.chain_id IS NOT NULL AND p.fire_at < clock_timestamp() - $3 * interval '1 second'
           AND l.owner IS NULL AND l.ticket IS NULL AND l.blocked IS NULL
           AND (l.next_timer_at IS NULL OR l.next_timer_at > p.fire_at) AS is_stray
FROM (SELECT t.run_id, t.effect, t.fire_at FROM continuum_timers t
      WHERE (t.run_id, t.effect) > ($1, $2)
      ORDER BY t.run_id, t.effect LIMIT $4) p
LEFT JOIN continuum_runs n ON n.run_id = p.run_id
LEFT JOIN continuum_leases l ON l.chain_id = n.chain_id
ORDER BY p.run_id, p.effect
