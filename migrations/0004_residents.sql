-- Residents: pieces of in-memory state of which the fleet holds one each. A row says who; it is made by the first claim
-- and never deleted, so that a name's tokens only grow.
--
-- A row is free while its session is not open. Nothing sweeps it: who looks compares it with the session. A holder
-- proves nothing by holding it in memory; what it writes elsewhere is fenced by the token.
--
-- Lock order: session row, then this.
CREATE TABLE continuum_residents (
    name    text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 128 AND name !~ '[^A-Za-z0-9_-]'),
    -- Nobody since the last release.
    session uuid,
    token   bigint NOT NULL,
    -- Since when it is as it is.
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- Gives a resident that nobody holds to a session, under a new token; NULL if somebody holds it or is just taking it. A
-- session that holds it already gets it again: it lost the answer of an earlier claim, or what it had built.
--
-- The commit is flushed, unlike that of a run's claim: a token that was handed out is written to stores that know
-- nothing of this one's crash, and none may come after it that is lower.
CREATE FUNCTION continuum_resident_claim(p_session uuid, p_name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    v_owner uuid;
    v_token bigint;
BEGIN
    PERFORM 1 FROM continuum_sessions s WHERE s.session_id = p_session AND s.open FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'session % is closed', p_session USING ERRCODE = 'CTM03';
    END IF;
    INSERT INTO continuum_residents (name, token) VALUES (p_name, continuum_next_token()) ON CONFLICT DO NOTHING;
    SELECT r.session INTO v_owner FROM continuum_residents r WHERE r.name = p_name FOR UPDATE SKIP LOCKED;
    -- A session that is seen closed stays so; one that closes in this moment is seen by the next look.
    IF NOT FOUND OR v_owner <> p_session AND EXISTS (
        SELECT 1 FROM continuum_sessions s WHERE s.session_id = v_owner AND s.open)
    THEN
        RETURN NULL;
    END IF;
    UPDATE continuum_residents r
    SET session = p_session, token = continuum_next_token(), since = clock_timestamp()
    WHERE r.name = p_name
    RETURNING r.token INTO v_token;
    RETURN v_token;
END $$;
