-- What a session's heartbeat tells of its worker, for people who look at the fleet. Nothing in the engine relies on it.
ALTER TABLE continuum_sessions
    -- ready, degraded or draining: starting has no session yet, drained none any more.
    ADD COLUMN state      text NOT NULL DEFAULT 'ready',
    -- Runs in the worker's memory, and attempts of activities that it runs, at its last heartbeat.
    ADD COLUMN resident   bigint NOT NULL DEFAULT 0,
    ADD COLUMN activities bigint NOT NULL DEFAULT 0;
