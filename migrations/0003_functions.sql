-- The functions that write the hot tables. Each is one round trip. Its first statements lock, its later statements
-- read: in READ COMMITTED every statement of a volatile plpgsql function takes a new snapshot, so what is read after
-- the lock is what the lock protects. One large statement with CTEs would read an older snapshot, and five faults
-- came of that (docs/failure-model.md).
--
-- The planner settings on each function hold the one plan that is right at every table size: index look-ups from the
-- arrays. Without them a plan made while a table was empty may scan it when it holds a million rows.
--
-- Errors of our own: CTM01 no such run, CTM02 the run has ended, CTM03 the session is closed, CTM04 the key names a
-- run with another input, CTM05 bad input, CTM09 an append that claims what is not there (a stale completion, mail
-- that is gone).

-- Appends events for many runs at once. `r_*` has a place for each run, every other group of arrays names its run by
-- `*_ix`, from 1. A run's part is all or nothing.
--
-- Outcomes: 0 committed, 1 refused, 2 busy (an ending run whose lease somebody has locked: send it again),
-- 3 committed before (this is a repetition of an append whose answer was lost).
CREATE FUNCTION continuum_append(
    p_session uuid,
    r_chain uuid[], r_run uuid[], r_token bigint[], r_first integer[],
    r_end text[], r_result bytea[], r_failure bytea[], r_hash text[],
    e_ix integer[], e_seq integer[], e_kind smallint[], e_at timestamptz[], e_payload bytea[],
    m_ix integer[], m_id bigint[],
    t_ix integer[], t_effect integer[], t_fire_at timestamptz[],
    g_ix integer[], g_effect integer[],
    x_ix integer[], x_effect integer[],
    c_ix integer[], c_effect integer[], c_attempt integer[],
    a_ix integer[], a_effect integer[], a_seq integer[], a_queue text[], a_name text[], a_max integer[],
    a_eager boolean[],
    k_ix integer[], k_name text[], k_key text[], k_result bytea[]
) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET search_path FROM CURRENT
AS $$
DECLARE
    v_ending boolean := cardinality(array_remove(r_end, NULL)) > 0;
    v_found bigint[];
    v_locked boolean[] := array_fill(false, ARRAY[cardinality(r_run)]);
    v_outcome smallint[];
    v_count integer;
    i bigint;
BEGIN
    -- Session row first. A task born leased needs its session open; a plain append is fenced by the token alone.
    IF true = ANY (a_eager) THEN
        PERFORM 1 FROM continuum_sessions s WHERE s.session_id = p_session AND s.open FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'session % is closed', p_session USING ERRCODE = 'CTM03';
        END IF;
    END IF;

    -- Then lease rows. A take-over changes a key column and waits for us or is seen by us; a wake bump does neither.
    -- They are locked one by one from the sorted arrays. In a plain join with ORDER BY the planner may begin with all
    -- that the session owns and compare each of these with the whole batch (seen: 2.9 ms for eight ends).
    SELECT array_agg(q.ix) INTO v_found FROM (
        SELECT r.ix
        FROM (SELECT u.* FROM unnest(r_chain, r_run, r_token, r_end)
                  WITH ORDINALITY u(chain_id, run_id, token, ending, ix)
              WHERE u.ending IS NULL ORDER BY u.chain_id) r
        CROSS JOIN LATERAL (
            SELECT 1 FROM continuum_leases l
            WHERE l.chain_id = r.chain_id AND l.run_id = r.run_id AND l.owner = p_session AND l.token = r.token
            FOR KEY SHARE) held
    ) q;
    FOREACH i IN ARRAY coalesce(v_found, '{}') LOOP
        v_locked[i] := true;
    END LOOP;
    -- An end excludes posts, so that none is accepted by a chain that is gone. It never waits for one run: a row that
    -- a poster holds is set aside.
    IF v_ending THEN
        SELECT array_agg(q.ix) INTO v_found FROM (
            SELECT r.ix
            FROM (SELECT u.* FROM unnest(r_chain, r_run, r_token, r_end)
                      WITH ORDINALITY u(chain_id, run_id, token, ending, ix)
                  WHERE u.ending IS NOT NULL ORDER BY u.chain_id) r
            CROSS JOIN LATERAL (
                SELECT 1 FROM continuum_leases l
                WHERE l.chain_id = r.chain_id AND l.run_id = r.run_id AND l.owner = p_session AND l.token = r.token
                FOR UPDATE SKIP LOCKED) held
        ) q;
        FOREACH i IN ARRAY coalesce(v_found, '{}') LOOP
            v_locked[i] := true;
        END LOOP;
    END IF;

    -- Now read: is my first position mine already, somebody else's, or the next free one?
    SELECT array_agg(
        CASE
            WHEN p.mine THEN 3
            WHEN p.taken THEN 1
            WHEN v_locked[r.ix] THEN CASE WHEN r.first = 1 OR p.prior THEN 0 ELSE 1 END
            WHEN r.ending IS NOT NULL AND EXISTS (
                SELECT 1 FROM continuum_leases l
                WHERE l.chain_id = r.chain_id AND l.run_id = r.run_id AND l.owner = p_session AND l.token = r.token)
                THEN 2
            ELSE 1
        END::smallint ORDER BY r.ix) INTO v_outcome
    FROM unnest(r_chain, r_run, r_token, r_first, r_end)
        WITH ORDINALITY r(chain_id, run_id, token, first, ending, ix)
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(e.seq = r.first - 1), false) AS prior,
               coalesce(bool_or(e.seq = r.first), false) AS taken,
               coalesce(bool_or(e.seq = r.first AND e.token = r.token), false) AS mine
        FROM continuum_events e
        WHERE e.run_id = r.run_id AND e.seq BETWEEN r.first - 1 AND r.first
    ) p;

    -- The events come before everything that is checked below: a repetition that races with the same append, sent
    -- earlier and still at work, waits here for its outcome and fails on the key, which says "send it again". Behind the
    -- task rows or the mail it would find them gone and be told that it is stale.
    INSERT INTO continuum_events (run_id, seq, token, kind, at, payload)
    SELECT r_run[e.ix], e.seq, r_token[e.ix], e.kind, e.at, e.payload
    FROM unnest(e_ix, e_seq, e_kind, e_at, e_payload) e(ix, seq, kind, at, payload)
    WHERE v_outcome[e.ix] = 0;

    -- Task rows: what this worker completed must still be its own attempt. A mismatch fails the whole call; the
    -- writer halves its batch until the guilty run stands alone, and takes that as refused.
    IF cardinality(c_ix) > 0 THEN
        DELETE FROM continuum_activity_tasks t
        USING unnest(c_ix, c_effect, c_attempt) c(ix, effect, attempt)
        WHERE v_outcome[c.ix] = 0 AND t.run_id = r_run[c.ix] AND t.effect = c.effect
          AND t.owner = p_session AND t.attempt = c.attempt;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> (SELECT count(*) FROM unnest(c_ix) c(ix) WHERE v_outcome[c.ix] = 0) THEN
            RAISE EXCEPTION 'a completed activity is no longer this session''s attempt' USING ERRCODE = 'CTM09';
        END IF;
    END IF;
    IF cardinality(x_ix) > 0 THEN
        DELETE FROM continuum_activity_tasks t USING unnest(x_ix, x_effect) x(ix, effect)
        WHERE v_outcome[x.ix] = 0 AND t.run_id = r_run[x.ix] AND t.effect = x.effect;
    END IF;

    IF cardinality(a_ix) > 0 THEN
        INSERT INTO continuum_activity_tasks (run_id, effect, chain_id, seq, queue, name, attempt, max_attempts,
                                              owner, ticket, started_at)
        SELECT r_run[a.ix], a.effect, r_chain[a.ix], a.seq, a.queue, a.name,
               CASE WHEN a.eager THEN 1 ELSE 0 END, a.max_attempts,
               CASE WHEN a.eager THEN p_session END,
               CASE WHEN NOT a.eager THEN nextval('continuum_tickets') END,
               CASE WHEN a.eager THEN clock_timestamp() END
        FROM unnest(a_ix, a_effect, a_seq, a_queue, a_name, a_max, a_eager)
            a(ix, effect, seq, queue, name, max_attempts, eager)
        WHERE v_outcome[a.ix] = 0;
    END IF;
    IF cardinality(k_ix) > 0 THEN
        INSERT INTO continuum_activity_results (namespace, name, idempotency_key, result, run_id)
        SELECT n.namespace, k.name, k.key, k.result, r_run[k.ix]
        FROM unnest(k_ix, k_name, k_key, k_result) k(ix, name, key, result)
        JOIN continuum_runs n ON n.run_id = r_run[k.ix]
        WHERE v_outcome[k.ix] = 0
        ON CONFLICT DO NOTHING;
    END IF;

    -- Mailbox and timers.
    IF cardinality(m_ix) > 0 THEN
        DELETE FROM continuum_mailbox m USING unnest(m_ix, m_id) d(ix, mail_id)
        WHERE v_outcome[d.ix] = 0 AND m.chain_id = r_chain[d.ix] AND m.mail_id = d.mail_id;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> (SELECT count(*) FROM unnest(m_ix) d(ix) WHERE v_outcome[d.ix] = 0) THEN
            RAISE EXCEPTION 'the append consumes mail that is not there' USING ERRCODE = 'CTM09';
        END IF;
    END IF;
    IF cardinality(g_ix) > 0 THEN
        DELETE FROM continuum_timers t USING unnest(g_ix, g_effect) g(ix, effect)
        WHERE v_outcome[g.ix] = 0 AND t.run_id = r_run[g.ix] AND t.effect = g.effect;
    END IF;
    IF cardinality(t_ix) > 0 THEN
        INSERT INTO continuum_timers (run_id, effect, fire_at)
        SELECT r_run[t.ix], t.effect, t.fire_at FROM unnest(t_ix, t_effect, t_fire_at) t(ix, effect, fire_at)
        WHERE v_outcome[t.ix] = 0;
    END IF;

    IF v_ending THEN
        PERFORM continuum_end_runs(array_agg(r_chain[r.ix]), array_agg(r.run_id), array_agg(r.ending),
                                   array_agg(r_result[r.ix]), array_agg(r_failure[r.ix]), array_agg(r_hash[r.ix]))
        FROM unnest(r_run, r_end) WITH ORDINALITY r(run_id, ending, ix)
        WHERE r.ending IS NOT NULL AND v_outcome[r.ix] = 0;
    END IF;
    RETURN v_outcome;
END $$;

-- The part of an end that follows its last event: whatever is left in the mailbox is kept where people can see it,
-- open activities and timers go, the run's record is closed and its lease deleted. The caller holds the lease rows
-- FOR UPDATE.
CREATE FUNCTION continuum_end_runs(
    p_chain uuid[], p_run uuid[], p_state text[], p_result bytea[], p_failure bytea[], p_hash text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET search_path FROM CURRENT
AS $$
BEGIN
    IF p_run IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM continuum_activity_tasks t USING unnest(p_run) r(run_id) WHERE t.run_id = r.run_id;
    WITH rest AS (
        DELETE FROM continuum_mailbox m USING unnest(p_chain, p_run) r(chain_id, run_id)
        WHERE m.chain_id = r.chain_id
        RETURNING r.run_id, m.mail_id, m.kind, m.name, m.payload, m.delivery_id, m.posted_at
    )
    INSERT INTO continuum_unread_signals (run_id, mail_id, name, payload, delivery_id, posted_at)
    SELECT rest.run_id, rest.mail_id, rest.name, rest.payload, rest.delivery_id, rest.posted_at
    FROM rest WHERE rest.kind = 1;
    DELETE FROM continuum_timers t USING unnest(p_run) r(run_id) WHERE t.run_id = r.run_id;
    UPDATE continuum_runs n
    SET state = r.state, result = r.result, failure = r.failure, version_hash = r.hash,
        ended_at = clock_timestamp(),
        unread = (SELECT count(*) FROM continuum_unread_signals u WHERE u.run_id = r.run_id)
    FROM unnest(p_run, p_state, p_result, p_failure, p_hash) r(run_id, state, result, failure, hash)
    WHERE n.run_id = r.run_id;
    DELETE FROM continuum_leases l USING unnest(p_chain) r(chain_id) WHERE l.chain_id = r.chain_id;
END $$;

-- Starts runs. Outcomes: 0 started, 1 a run with this key and the same workflow and input exists, 2 a run with this
-- key and another workflow or input exists. Keys are inserted in one order, so that two batches can't deadlock.
CREATE FUNCTION continuum_start(
    p_namespace text[], p_workflow text[], p_key text[], p_input bytea[], p_trace text[]
) RETURNS TABLE (o_ix integer, o_outcome smallint, o_run uuid)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET search_path FROM CURRENT
AS $$
DECLARE
    v_run uuid[];
    v_hash bytea[];
    v_started uuid[];
BEGIN
    SELECT array_agg(continuum_new_run_id() ORDER BY s.ix),
           array_agg(sha256(convert_to(s.workflow, 'UTF8') || '\x00'::bytea || s.input) ORDER BY s.ix)
    INTO v_run, v_hash
    FROM unnest(p_workflow, p_input) WITH ORDINALITY s(workflow, input, ix);

    WITH stored AS (
        INSERT INTO continuum_runs (run_id, chain_id, namespace, workflow, key, request_hash, input, trace_context,
                                    created_at)
        SELECT s.run_id, s.run_id, s.namespace, s.workflow, s.key, s.hash, s.input, s.trace, clock_timestamp()
        FROM unnest(v_run, p_namespace, p_workflow, p_key, v_hash, p_input, p_trace)
            WITH ORDINALITY s(run_id, namespace, workflow, key, hash, input, trace, ix)
        ORDER BY s.namespace, s.key, s.ix
        ON CONFLICT (namespace, key) WHERE key IS NOT NULL DO NOTHING
        RETURNING run_id, workflow
    ), leased AS (
        INSERT INTO continuum_leases (chain_id, run_id, token, ticket, claim_key)
        SELECT s.run_id, s.run_id, continuum_next_token(), nextval('continuum_tickets'), s.workflow FROM stored s
        RETURNING run_id
    )
    SELECT array_agg(l.run_id) INTO v_started FROM leased l;

    IF cardinality(v_started) = cardinality(v_run) THEN
        RETURN QUERY SELECT s.ix::integer, 0::smallint, s.run_id FROM unnest(v_run) WITH ORDINALITY s(run_id, ix);
        RETURN;
    END IF;
    -- A later statement sees the runs that others committed while the insert waited for their keys.
    RETURN QUERY
    SELECT s.ix::integer,
           CASE WHEN s.run_id = ANY (v_started) THEN 0 WHEN n.request_hash = s.hash THEN 1 ELSE 2 END::smallint,
           CASE WHEN s.run_id = ANY (v_started) THEN s.run_id ELSE n.run_id END
    FROM unnest(v_run, p_namespace, p_key, v_hash) WITH ORDINALITY s(run_id, namespace, key, hash, ix)
    LEFT JOIN continuum_runs n ON n.namespace = s.namespace AND n.key = s.key;
END $$;

-- Posts mail. Kinds as in continuum_mailbox. Outcomes: 0 posted, 1 this delivery was accepted before, 2 no such run,
-- 3 the run has ended, 4 somebody holds the chain (only with p_skip_locked). o_owner tells whom to wake; when nobody
-- owns the chain, ring `ready`.
--
-- The wake counter is bumped before the mail is inserted, so mail ids follow commit order within a chain.
CREATE FUNCTION continuum_post(
    p_run uuid[], p_kind smallint[], p_name text[], p_payload bytea[], p_delivery text[], p_skip_locked boolean
) RETURNS TABLE (o_ix integer, o_outcome smallint, o_owner uuid, o_run uuid)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path FROM CURRENT
AS $$
DECLARE
    v_locked uuid[];
    p record;
BEGIN
    IF p_skip_locked THEN
        SELECT array_agg(q.chain_id) INTO v_locked FROM (
            SELECT l.chain_id FROM continuum_leases l
            WHERE l.chain_id IN (SELECT n.chain_id FROM unnest(p_run) u(run_id)
                                 JOIN continuum_runs n ON n.run_id = u.run_id)
            ORDER BY l.chain_id FOR NO KEY UPDATE SKIP LOCKED) q;
    ELSE
        SELECT array_agg(q.chain_id) INTO v_locked FROM (
            SELECT l.chain_id FROM continuum_leases l
            WHERE l.chain_id IN (SELECT n.chain_id FROM unnest(p_run) u(run_id)
                                 JOIN continuum_runs n ON n.run_id = u.run_id)
            ORDER BY l.chain_id FOR NO KEY UPDATE) q;
    END IF;
    FOR p IN
        SELECT u.*, n.chain_id, l.run_id AS current_run FROM unnest(p_run, p_kind, p_name, p_payload, p_delivery)
            WITH ORDINALITY u(run_id, kind, name, payload, delivery, ix)
        LEFT JOIN continuum_runs n ON n.run_id = u.run_id
        LEFT JOIN continuum_leases l ON l.chain_id = n.chain_id
        ORDER BY u.ix
    LOOP
        o_ix := p.ix;
        o_owner := NULL;
        o_run := p.current_run;
        IF p.chain_id IS NULL THEN
            o_outcome := 2;
        ELSIF p.current_run IS NULL THEN
            -- Whoever repeats a signal whose answer was lost may have ended the run by it.
            o_outcome := CASE WHEN EXISTS (SELECT 1 FROM continuum_ingress_keys k
                                           WHERE k.chain_id = p.chain_id AND k.name = coalesce(p.name, '')
                                             AND k.delivery_id = p.delivery)
                              THEN 1 ELSE 3 END;
        ELSIF NOT p.chain_id = ANY (coalesce(v_locked, '{}')) THEN
            o_outcome := 4;
        ELSE
            o_outcome := 0;
            IF p.delivery IS NOT NULL THEN
                INSERT INTO continuum_ingress_keys (chain_id, name, delivery_id)
                VALUES (p.chain_id, coalesce(p.name, ''), p.delivery) ON CONFLICT DO NOTHING;
                IF NOT FOUND THEN
                    o_outcome := 1;
                END IF;
            END IF;
            IF o_outcome = 0 THEN
                -- A blocked run stays parked, unless somebody asks it to stop.
                UPDATE continuum_leases l
                SET wake = l.wake + 1,
                    ticket = CASE WHEN l.owner IS NULL AND l.ticket IS NULL AND (l.blocked IS NULL OR p.kind = 3)
                                  THEN nextval('continuum_tickets') ELSE l.ticket END
                WHERE l.chain_id = p.chain_id
                RETURNING l.owner INTO o_owner;
                INSERT INTO continuum_mailbox (chain_id, kind, name, payload, delivery_id)
                VALUES (p.chain_id, p.kind, p.name, p.payload, p.delivery);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Stores a batch of messages from the signal stream in one commit: what can be posted is posted, the rest is kept as
-- rejected with its reason. Outcomes as of continuum_post; 4 means "deliver again".
CREATE FUNCTION continuum_ingest(
    p_run uuid[], p_name text[], p_payload bytea[], p_delivery text[], p_subject text[],
    b_subject text[], b_reason text[], b_delivery text[], b_payload bytea[], b_size bigint[]
) RETURNS TABLE (o_ix integer, o_outcome smallint, o_owner uuid, o_run uuid)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    p record;
BEGIN
    FOR p IN
        SELECT c.* FROM continuum_post(p_run, array_fill(1::smallint, ARRAY[cardinality(p_run)]), p_name, p_payload,
                                       p_delivery, true) c
    LOOP
        IF p.o_outcome IN (2, 3) THEN
            INSERT INTO continuum_rejected_signals (subject, reason, delivery_id, payload, size)
            VALUES (p_subject[p.o_ix],
                    CASE p.o_outcome WHEN 2 THEN 'there is no such run' ELSE 'the run has ended' END,
                    p_delivery[p.o_ix], p_payload[p.o_ix], octet_length(p_payload[p.o_ix]) - 1)
            ON CONFLICT DO NOTHING;
        END IF;
        o_ix := p.o_ix;
        o_outcome := p.o_outcome;
        o_owner := p.o_owner;
        o_run := p.o_run;
        RETURN NEXT;
    END LOOP;
    INSERT INTO continuum_rejected_signals (subject, reason, delivery_id, payload, size)
    SELECT b.* FROM unnest(b_subject, b_reason, b_delivery, b_payload, b_size) b
    ON CONFLICT DO NOTHING;
END $$;

-- Claims due runs for a session and returns all that an engine needs to take them up, in one round trip.
--
-- p_keys are what the worker has loaded, p_pins what each is to be claimed as: `workflow` becomes `workflow@hash`.
-- Items: 1 a claimed run, 2 an event of its history in order, 3 its mail. History and mailbox are read after the
-- claim, so no event and no post can fall between. The claim itself is not flushed to disk: an append that builds on
-- it flushes everything before it, and a claim lost in a crash was never used.
CREATE FUNCTION continuum_claim(
    p_session uuid, p_keys text[], p_pins text[], p_limit integer, p_floor bigint
) RETURNS TABLE (
    o_item smallint, o_chain uuid, o_run uuid, o_token bigint, o_number bigint, o_seq integer, o_kind smallint,
    o_at timestamptz, o_name text, o_key text, o_namespace text, o_pin text, o_payload bytea
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET search_path FROM CURRENT
AS $$
DECLARE
    v_chains uuid[];
    v_ixs bigint[];
    v_more uuid[];
    v_more_ixs bigint[];
    v_with_history uuid[];
    v_quarantined uuid[];
    v_run uuid;
    -- The clock is read once: a volatile function in its place would keep the index from ending the scan, and an empty
    -- claim would pass over every sleeping run.
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM 1 FROM continuum_sessions s WHERE s.session_id = p_session AND s.open FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'session % is closed', p_session USING ERRCODE = 'CTM03';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);

    SELECT array_agg(q.chain_id), array_agg(q.ix) INTO v_chains, v_ixs FROM (
        SELECT x.chain_id, k.ix
        FROM unnest(p_keys) WITH ORDINALITY k(key, ix)
        CROSS JOIN LATERAL (
            SELECT l.chain_id FROM continuum_leases l
            WHERE l.claim_key = k.key AND l.owner IS NULL AND l.ticket IS NOT NULL AND l.ticket >= p_floor
            ORDER BY l.ticket LIMIT p_limit FOR UPDATE SKIP LOCKED) x
        LIMIT p_limit) q;
    IF coalesce(cardinality(v_chains), 0) < p_limit THEN
        SELECT array_agg(q.chain_id), array_agg(q.ix) INTO v_more, v_more_ixs FROM (
            SELECT x.chain_id, k.ix
            FROM unnest(p_keys) WITH ORDINALITY k(key, ix)
            CROSS JOIN LATERAL (
                SELECT l.chain_id FROM continuum_leases l
                WHERE l.claim_key = k.key AND l.owner IS NULL AND l.next_timer_at <= v_now
                  AND NOT l.chain_id = ANY (coalesce(v_chains, '{}'))
                ORDER BY l.next_timer_at LIMIT p_limit FOR UPDATE SKIP LOCKED) x
            LIMIT p_limit - coalesce(cardinality(v_chains), 0)) q;
        v_chains := v_chains || v_more;
        v_ixs := v_ixs || v_more_ixs;
    END IF;
    IF v_chains IS NULL THEN
        RETURN;
    END IF;

    SELECT array_agg(l.run_id) FILTER (WHERE position('@' IN l.claim_key) > 0),
           array_agg(l.run_id) FILTER (WHERE l.blocked = 'quarantined')
    INTO v_with_history, v_quarantined
    FROM unnest(v_chains, v_ixs) c(chain_id, ix) JOIN continuum_leases l ON l.chain_id = c.chain_id;

    RETURN QUERY
    WITH claimed AS (
        UPDATE continuum_leases l
        SET owner = p_session, token = continuum_next_token(), ticket = NULL, next_timer_at = NULL,
            claim_key = p_pins[c.ix], blocked = NULL, block_detail = NULL
        FROM unnest(v_chains, v_ixs) c(chain_id, ix)
        WHERE l.chain_id = c.chain_id
        RETURNING l.chain_id, l.run_id, l.token, l.wake, l.claim_key, l.block_count
    )
    SELECT 1::smallint, c.chain_id, c.run_id, c.token, c.wake, c.block_count,
           (c.run_id = ANY (coalesce(v_quarantined, '{}')))::integer::smallint,
           n.created_at, n.workflow, n.key, n.namespace, c.claim_key, n.input
    FROM claimed c JOIN continuum_runs n ON n.run_id = c.run_id;

    FOREACH v_run IN ARRAY coalesce(v_with_history, '{}') LOOP
        RETURN QUERY
        SELECT 2::smallint, NULL::uuid, v_run, NULL::bigint, NULL::bigint, e.seq, e.kind, e.at,
               NULL::text, NULL::text, NULL::text, NULL::text, e.payload
        FROM continuum_events e WHERE e.run_id = v_run ORDER BY e.seq;
    END LOOP;
    RETURN QUERY
    SELECT 3::smallint, m.chain_id, NULL::uuid, NULL::bigint, m.mail_id, NULL::integer, m.kind, m.posted_at,
           m.name, m.delivery_id, NULL::text, NULL::text, m.payload
    FROM unnest(v_chains) c(chain_id) JOIN continuum_mailbox m ON m.chain_id = c.chain_id
    ORDER BY m.mail_id;
END $$;

-- In how many microseconds the first cold run with one of these claim keys comes due; null if none will. Timers that are
-- due already are a claim's. The index is entered at the present, so entries of timers that are over don't matter.
CREATE FUNCTION continuum_next_timer(p_keys text[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET search_path FROM CURRENT
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN (
        SELECT ceil(extract(epoch FROM min(x.next_timer_at) - v_now) * 1000000)
        FROM unnest(p_keys) k(key)
        CROSS JOIN LATERAL (
            SELECT l.next_timer_at FROM continuum_leases l
            WHERE l.claim_key = k.key AND l.owner IS NULL AND l.next_timer_at > v_now
            ORDER BY l.next_timer_at LIMIT 1) x);
END $$;

-- Gives runs back. p_wake is the counter that came with the mail last read: if it has moved since, the run stays due.
-- Outcomes: 0 released, 1 released and due, 2 not mine any more, 3 busy (set aside, ask again).
CREATE FUNCTION continuum_release(
    p_session uuid, p_chain uuid[], p_token bigint[], p_wake bigint[]
) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path FROM CURRENT
AS $$
DECLARE
    v_outcome smallint[] := array_fill(2::smallint, ARRAY[cardinality(p_chain)]);
    r record;
    v_due boolean;
    v_empty boolean;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR r IN
        SELECT l.chain_id, l.run_id, l.wake, u.wake AS seen, u.ix
        FROM unnest(p_chain, p_token, p_wake) WITH ORDINALITY u(chain_id, token, wake, ix)
        JOIN continuum_leases l ON l.chain_id = u.chain_id
        WHERE l.owner = p_session AND l.token = u.token
        ORDER BY l.chain_id FOR UPDATE OF l SKIP LOCKED
    LOOP
        v_due := r.wake <> r.seen;
        v_empty := NOT EXISTS (SELECT 1 FROM continuum_events e WHERE e.run_id = r.run_id AND e.seq = 1);
        UPDATE continuum_leases l
        SET owner = NULL, token = continuum_next_token(), crashes = 0,
            claim_key = CASE WHEN v_empty THEN split_part(l.claim_key, '@', 1) ELSE l.claim_key END,
            ticket = CASE WHEN v_due OR v_empty THEN nextval('continuum_tickets') END,
            next_timer_at = (SELECT min(t.fire_at) FROM continuum_timers t WHERE t.run_id = r.run_id)
        WHERE l.chain_id = r.chain_id;
        v_outcome[r.ix] := CASE WHEN v_due OR v_empty THEN 1 ELSE 0 END;
    END LOOP;
    FOR r IN
        SELECT u.ix FROM unnest(p_chain, p_token) WITH ORDINALITY u(chain_id, token, ix)
        JOIN continuum_leases l ON l.chain_id = u.chain_id
        WHERE l.owner = p_session AND l.token = u.token
    LOOP
        v_outcome[r.ix] := 3;
    END LOOP;
    RETURN v_outcome;
END $$;

-- Parks a run that can't go on: it is nobody's, not due, and its reason is on its lease row. With p_retry_ms it is
-- tried again after that time; without, it waits for an operator. p_wake as of continuum_release. Outcomes: 0 parked,
-- 1 parked and due, 2 not mine any more.
--
-- A request to stop that came while the run was held woke its owner, who parks it without having seen the request. The
-- run stays due for it. One that the owner has seen is no reason: code that breaks down over a request to stop would
-- break down over it again and again.
--
-- A run without a history is bound to no code: nothing of the turn that went wrong was written, so any other code may
-- begin it.
CREATE FUNCTION continuum_block(
    p_session uuid, p_chain uuid, p_token bigint, p_wake bigint, p_reason text, p_detail jsonb, p_retry_ms bigint
) RETURNS smallint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_lease record;
    v_due boolean;
    v_empty boolean;
BEGIN
    SELECT l.run_id, l.wake INTO v_lease FROM continuum_leases l
    WHERE l.chain_id = p_chain AND l.owner = p_session AND l.token = p_token FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 2;
    END IF;
    v_due := v_lease.wake <> p_wake
        AND EXISTS (SELECT 1 FROM continuum_mailbox m WHERE m.chain_id = p_chain AND m.kind = 3);
    v_empty := NOT EXISTS (SELECT 1 FROM continuum_events e WHERE e.run_id = v_lease.run_id AND e.seq = 1);
    UPDATE continuum_leases l
    SET owner = NULL, token = continuum_next_token(),
        claim_key = CASE WHEN v_empty THEN split_part(l.claim_key, '@', 1) ELSE l.claim_key END,
        ticket = CASE WHEN v_due THEN nextval('continuum_tickets') END,
        blocked = p_reason, block_detail = p_detail, block_count = l.block_count + 1,
        next_timer_at = clock_timestamp() + p_retry_ms * interval '1 millisecond'
    WHERE l.chain_id = p_chain;
    RETURN CASE WHEN v_due THEN 1 ELSE 0 END;
END $$;

-- Cancels a run that no worker has begun, at once and without a worker; for any other, posts the request.
-- p_event is the encoded last event, p_failure what the run's record says. Outcomes as of continuum_post, and 5: ended here and now.
CREATE FUNCTION continuum_cancel(
    p_run uuid, p_reason bytea, p_event bytea, p_event_kind smallint, p_failure bytea
)
RETURNS TABLE (o_outcome smallint, o_owner uuid, o_run uuid)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_lease record;
    v_token bigint;
BEGIN
    SELECT l.* INTO v_lease FROM continuum_leases l
    WHERE l.chain_id = (SELECT n.chain_id FROM continuum_runs n WHERE n.run_id = p_run)
    FOR UPDATE;
    IF FOUND AND v_lease.owner IS NULL
       AND NOT EXISTS (SELECT 1 FROM continuum_events e WHERE e.run_id = v_lease.run_id AND e.seq = 1) THEN
        v_token := continuum_next_token();
        INSERT INTO continuum_events (run_id, seq, token, kind, at, payload)
        VALUES (v_lease.run_id, 1, v_token, p_event_kind, clock_timestamp(), p_event);
        PERFORM continuum_end_runs(ARRAY[v_lease.chain_id], ARRAY[v_lease.run_id], ARRAY['cancelled'],
                                   ARRAY[NULL::bytea], ARRAY[p_failure], ARRAY[NULL::text]);
        o_outcome := 5;
        o_run := v_lease.run_id;
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY SELECT c.o_outcome, c.o_owner, c.o_run
    FROM continuum_post(ARRAY[p_run], ARRAY[3::smallint], ARRAY[NULL::text], ARRAY[p_reason], ARRAY[NULL::text], false) c;
END $$;

-- Claims open activities that this worker has code for, from the queues that it serves.
CREATE FUNCTION continuum_activity_claim(
    p_session uuid, p_queues text[], p_names text[], p_limit integer
) RETURNS TABLE (
    o_run uuid, o_chain uuid, o_effect integer, o_attempt integer, o_namespace text, o_payload bytea
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET search_path FROM CURRENT
AS $$
DECLARE
    v_runs uuid[];
    v_effects integer[];
    -- Read once, so that the index can end the scan.
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM 1 FROM continuum_sessions s WHERE s.session_id = p_session AND s.open FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'session % is closed', p_session USING ERRCODE = 'CTM03';
    END IF;
    SELECT array_agg(q.run_id), array_agg(q.effect) INTO v_runs, v_effects FROM (
        SELECT x.run_id, x.effect
        FROM unnest(p_queues) q(queue) CROSS JOIN unnest(p_names) n(name)
        CROSS JOIN LATERAL (
            (SELECT t.run_id, t.effect FROM continuum_activity_tasks t
             WHERE t.queue = q.queue AND t.name = n.name AND t.owner IS NULL AND t.ticket IS NOT NULL
             ORDER BY t.ticket LIMIT p_limit FOR UPDATE SKIP LOCKED)
        ) x
        LIMIT p_limit) q;
    IF coalesce(cardinality(v_runs), 0) < p_limit THEN
        SELECT v_runs || array_agg(q.run_id), v_effects || array_agg(q.effect) INTO v_runs, v_effects FROM (
            SELECT x.run_id, x.effect
            FROM unnest(p_queues) q(queue) CROSS JOIN unnest(p_names) n(name)
            CROSS JOIN LATERAL (
                (SELECT t.run_id, t.effect FROM continuum_activity_tasks t
                 WHERE t.queue = q.queue AND t.name = n.name AND t.owner IS NULL AND t.ticket IS NULL
                   AND t.due_at <= v_now
                 ORDER BY t.due_at LIMIT p_limit FOR UPDATE SKIP LOCKED)
            ) x
            LIMIT p_limit - coalesce(cardinality(v_runs), 0)) q;
    END IF;
    IF v_runs IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH taken AS (
        UPDATE continuum_activity_tasks t
        SET owner = p_session, attempt = t.attempt + 1, ticket = NULL, due_at = NULL, started_at = clock_timestamp()
        FROM unnest(v_runs, v_effects) u(run_id, effect)
        WHERE t.run_id = u.run_id AND t.effect = u.effect
        RETURNING t.run_id, t.chain_id, t.effect, t.attempt, t.seq
    )
    SELECT k.run_id, k.chain_id, k.effect, k.attempt, n.namespace, e.payload
    FROM taken k
    JOIN continuum_runs n ON n.run_id = k.run_id
    CROSS JOIN LATERAL (
        -- The limit keeps the position in the index condition. In a plain join the planner may read a run's whole
        -- history for each of its activities (seen: 5 ms a claim for a run that joins 1,000).
        SELECT v.payload FROM continuum_events v WHERE v.run_id = k.run_id AND v.seq = k.seq LIMIT 1) e;
END $$;

-- Ends activities: the attempt must still be this session's, then the encoded completion event goes to the chain's
-- mailbox. Outcomes: 0 accepted, 1 discarded (another attempt, a dropped activity, an ended run).
CREATE FUNCTION continuum_activity_complete(
    p_session uuid, p_run uuid[], p_effect integer[], p_attempt integer[], p_event bytea[],
    p_name text[], p_key text[], p_result bytea[]
) RETURNS TABLE (o_ix integer, o_outcome smallint, o_owner uuid, o_run uuid)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path FROM CURRENT
AS $$
DECLARE
    p record;
BEGIN
    -- Lease rows before task rows.
    PERFORM 1 FROM continuum_leases l
    WHERE l.chain_id IN (SELECT n.chain_id FROM unnest(p_run) u(run_id) JOIN continuum_runs n ON n.run_id = u.run_id)
    ORDER BY l.chain_id FOR NO KEY UPDATE;
    FOR p IN
        SELECT u.* FROM unnest(p_run, p_effect, p_attempt, p_event, p_name, p_key, p_result)
            WITH ORDINALITY u(run_id, effect, attempt, event, name, key, result, ix)
        ORDER BY u.run_id, u.effect
    LOOP
        o_ix := p.ix;
        o_owner := NULL;
        o_run := p.run_id;
        DELETE FROM continuum_activity_tasks t
        WHERE t.run_id = p.run_id AND t.effect = p.effect AND t.owner = p_session AND t.attempt = p.attempt;
        IF NOT FOUND THEN
            o_outcome := 1;
        ELSE
            IF p.key IS NOT NULL THEN
                INSERT INTO continuum_activity_results (namespace, name, idempotency_key, result, run_id)
                SELECT n.namespace, p.name, p.key, p.result, p.run_id FROM continuum_runs n WHERE n.run_id = p.run_id
                ON CONFLICT DO NOTHING;
            END IF;
            SELECT CASE c.o_outcome WHEN 0 THEN 0 ELSE 1 END, c.o_owner INTO o_outcome, o_owner
            FROM continuum_post(ARRAY[p.run_id], ARRAY[2::smallint], ARRAY[NULL::text], ARRAY[p.event],
                                ARRAY[NULL::text], false) c;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Records an attempt that did not end its activity, and makes the activity available again after p_delay_ms.
-- p_outcome: `failed`; `unknown` when its worker died; `released` when it was handed back unstarted or cleanly, which
-- gives the attempt back. Returns false when the attempt was not p_session's any more.
CREATE FUNCTION continuum_activity_retry(
    p_session uuid, p_run uuid, p_effect integer, p_attempt integer, p_outcome text, p_failure bytea,
    p_delay_ms bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE continuum_activity_tasks t
    SET owner = NULL, started_at = NULL,
        attempt = CASE WHEN p_outcome = 'released' THEN t.attempt - 1 ELSE t.attempt END,
        ticket = CASE WHEN p_delay_ms <= 0 THEN nextval('continuum_tickets') END,
        due_at = CASE WHEN p_delay_ms > 0 THEN clock_timestamp() + p_delay_ms * interval '1 millisecond' END
    WHERE t.run_id = p_run AND t.effect = p_effect AND t.owner = p_session AND t.attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_outcome <> 'released' THEN
        INSERT INTO continuum_activity_attempts (run_id, effect, attempt, session, outcome, failure)
        VALUES (p_run, p_effect, p_attempt, p_session, p_outcome, p_failure);
    END IF;
    RETURN true;
END $$;

-- Makes the runs of closed sessions claimable, at most p_limit a call, and returns how many. Level-triggered: it
-- looks at what is, so a claim that slipped in beside the close is found by the next pass. A run whose owners died
-- p_crash_limit times without one new event is quarantined.
CREATE FUNCTION continuum_sweep(p_limit integer, p_crash_limit integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path FROM CURRENT
AS $$
DECLARE
    r record;
    v_seq integer;
    v_crashes integer;
    v_swept integer := 0;
BEGIN
    FOR r IN
        SELECT l.chain_id, l.run_id, l.crashes, l.crash_seq, l.claim_key
        FROM continuum_sessions s JOIN continuum_leases l ON l.owner = s.session_id
        WHERE NOT s.open
        ORDER BY l.chain_id LIMIT p_limit FOR UPDATE OF l SKIP LOCKED
    LOOP
        SELECT coalesce(max(e.seq), 0) INTO v_seq FROM continuum_events e WHERE e.run_id = r.run_id;
        v_crashes := CASE WHEN v_seq > r.crash_seq THEN 1 ELSE r.crashes + 1 END;
        UPDATE continuum_leases l
        SET owner = NULL, token = continuum_next_token(), crashes = v_crashes, crash_seq = v_seq,
            claim_key = CASE WHEN v_seq = 0 THEN split_part(l.claim_key, '@', 1) ELSE l.claim_key END,
            ticket = CASE WHEN v_crashes < p_crash_limit THEN nextval('continuum_tickets') END,
            blocked = CASE WHEN v_crashes >= p_crash_limit THEN 'quarantined' END,
            block_detail = CASE WHEN v_crashes >= p_crash_limit THEN
                jsonb_build_object('message', format('%s workers died while they held this run', v_crashes)) END
        WHERE l.chain_id = r.chain_id;
        v_swept := v_swept + 1;
    END LOOP;
    RETURN v_swept;
END $$;

-- The public door for any language: starts a run inside the caller's own transaction. The run exists when the caller
-- commits and never if it rolls back.
CREATE FUNCTION continuum_start_run(
    workflow text, input json, key text DEFAULT NULL, namespace text DEFAULT 'default'
) RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v record;
BEGIN
    SELECT * INTO v FROM continuum_start(ARRAY[namespace], ARRAY[workflow], ARRAY[key],
        ARRAY['\x02'::bytea || convert_to(input::text, 'UTF8')], ARRAY[NULL::text]);
    IF v.o_outcome = 2 THEN
        RAISE EXCEPTION 'the key % names run %, which has another workflow or input', quote_literal(key), v.o_run
            USING ERRCODE = 'CTM04';
    END IF;
    RETURN v.o_run;
END $$;

-- The public door for any language: signals a run inside the caller's own transaction. The signal is delivered at the
-- caller's commit; if the run has ended by then, the commit fails with CTM02. Until then no lock is held, so an open
-- transaction delays neither the run nor its neighbours.
CREATE FUNCTION continuum_signal_run(run uuid, name text, payload json, delivery_id text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF name !~ '^[A-Za-z0-9_-]{1,128}$' THEN
        RAISE EXCEPTION 'signal name % is not 1 to 128 characters of A-Z a-z 0-9 _ -', quote_literal(name)
            USING ERRCODE = 'CTM05';
    END IF;
    PERFORM continuum_signal_deferred(run, name, '\x02'::bytea || convert_to(payload::text, 'UTF8'), delivery_id);
END $$;

-- The same with an encoded payload.
CREATE FUNCTION continuum_signal_deferred(p_run uuid, p_name text, p_payload bytea, p_delivery text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM continuum_runs n WHERE n.run_id = p_run) THEN
        RAISE EXCEPTION 'there is no run %', p_run USING ERRCODE = 'CTM01';
    END IF;
    INSERT INTO continuum_deferred_posts (run_id, name, payload, delivery_id)
    VALUES (p_run, p_name, p_payload, p_delivery);
END $$;

CREATE FUNCTION continuum_deliver_deferred_post() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_outcome smallint;
BEGIN
    -- A visible row is this transaction's own, since none outlives its transaction. All chains of the transaction are
    -- locked in one pass, or two callers that signal the same runs in opposite orders would deadlock.
    PERFORM 1 FROM continuum_leases l
    WHERE l.chain_id IN (SELECT n.chain_id FROM continuum_deferred_posts d JOIN continuum_runs n ON n.run_id = d.run_id)
    ORDER BY l.chain_id FOR NO KEY UPDATE;
    DELETE FROM continuum_deferred_posts d WHERE d.post_id = NEW.post_id;
    SELECT c.o_outcome INTO v_outcome
    FROM continuum_post(ARRAY[NEW.run_id], ARRAY[1::smallint], ARRAY[NEW.name], ARRAY[NEW.payload],
                        ARRAY[NEW.delivery_id], false) c;
    IF v_outcome = 3 THEN
        RAISE EXCEPTION 'run % has ended; the signal % was not stored', NEW.run_id, NEW.name
            USING ERRCODE = 'CTM02';
    END IF;
    RETURN NULL;
END $$;

-- Deferred to the caller's commit: the bump of the wake counter is the only lock that a post holds, and it is held
-- for the length of the commit instead of the caller's transaction.
CREATE CONSTRAINT TRIGGER continuum_deferred_posts_deliver
AFTER INSERT ON continuum_deferred_posts
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION continuum_deliver_deferred_post();
