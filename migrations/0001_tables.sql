-- The tables of one Continuum instance. An instance is a schema: `continuum migrate` sets search_path to it before
-- it runs this file, so nothing here names a schema.
--
-- Lock order, everywhere: session row, lease rows (one pass, ordered by chain_id), task rows, mailbox and timers,
-- run rows. There are no foreign keys on hot tables: a check of a parent row is a lock on it.

-- Fencing tokens come from a sequence and never from a row that may be deleted: after a fail-over to a lagging
-- replica, tokens counted in the row were given twice.
-- The low 20 bits of a token are drawn by lot. Claims and releases are not flushed, so a crash of Postgres may forget
-- that a number was taken and take it again; the lot keeps the two tokens apart.
CREATE SEQUENCE continuum_tokens AS bigint MAXVALUE 8796093022207;

-- A body of this form is bound to the sequence when it is created, so it needs no search_path of its own and is inlined.
CREATE FUNCTION continuum_next_token() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN (nextval('continuum_tokens') << 20) | floor(random() * 1048576)::bigint;

-- "Due now" is a ticket and not a time, so a step of the database's clock delays nobody.
CREATE SEQUENCE continuum_tickets AS bigint;

-- One row for each life of one worker process. `open` is part of a unique index, so closing a session changes a key
-- and waits for, or is seen by, everything that holds the row FOR KEY SHARE; a heartbeat changes no key and waits
-- for nobody.
CREATE TABLE continuum_sessions (
    session_id   uuid PRIMARY KEY,
    worker       text NOT NULL,
    build        text NOT NULL,
    queues       text[] NOT NULL,
    claim_keys   text[] NOT NULL,
    open         boolean NOT NULL DEFAULT true,
    beat         bigint NOT NULL DEFAULT 0,
    opened_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at    timestamptz,
    close_reason text,
    UNIQUE (session_id, open)
) WITH (fillfactor = 50);
CREATE INDEX continuum_sessions_open ON continuum_sessions (session_id) WHERE open;

-- The cold record of a run: written when it starts and when it ends, and by nothing in between.
CREATE TABLE continuum_runs (
    run_id        uuid PRIMARY KEY,
    chain_id      uuid NOT NULL,
    namespace     text NOT NULL CHECK (octet_length(namespace) BETWEEN 1 AND 128 AND namespace !~ '[^A-Za-z0-9_-]'),
    workflow      text NOT NULL CHECK (octet_length(workflow) BETWEEN 1 AND 128 AND workflow !~ '[^A-Za-z0-9_-]'),
    -- The idempotency key: unique in its namespace for as long as the row is kept.
    key           text CHECK (octet_length(key) BETWEEN 1 AND 512),
    request_hash  bytea NOT NULL,
    -- active, completed, failed or cancelled; what an active run is doing is told by its lease row.
    state         text NOT NULL DEFAULT 'active',
    input         bytea NOT NULL,
    result        bytea,
    failure       bytea,
    version_hash  text,
    parent_run_id uuid,
    attributes    jsonb NOT NULL DEFAULT '{}',
    trace_context text,
    unread        integer NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL,
    ended_at      timestamptz
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX continuum_runs_key ON continuum_runs (namespace, key) WHERE key IS NOT NULL;
CREATE INDEX continuum_runs_chain ON continuum_runs (chain_id) WHERE chain_id <> run_id;

-- The hot record: one narrow row for each chain with an active run, deleted when the chain ends. A take-over
-- changes the token, which is a key through the unique index, so it conflicts with an append's FOR KEY SHARE; a
-- wake bump changes no key and does not.
CREATE TABLE continuum_leases (
    chain_id      uuid PRIMARY KEY,
    run_id        uuid NOT NULL,
    owner         uuid,
    token         bigint NOT NULL,
    wake          bigint NOT NULL DEFAULT 0,
    -- Set while the run is due and nobody owns it.
    ticket        bigint,
    -- The earliest pending timer of a cold run.
    next_timer_at timestamptz,
    -- What a worker must have loaded to take this run: `workflow` until the first worker takes it, then
    -- `workflow@hash`.
    claim_key     text NOT NULL,
    -- Why nobody may take the run at present: drift, panicked, quarantined, …
    blocked       text,
    block_detail  jsonb,
    block_count   integer NOT NULL DEFAULT 0,
    -- How often an owner died without a new event since `crash_seq`.
    crashes       integer NOT NULL DEFAULT 0,
    crash_seq     integer NOT NULL DEFAULT 0,
    UNIQUE (chain_id, token)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX continuum_leases_due ON continuum_leases (claim_key, ticket)
    WHERE owner IS NULL AND ticket IS NOT NULL;
CREATE INDEX continuum_leases_timer ON continuum_leases (claim_key, next_timer_at)
    WHERE owner IS NULL AND next_timer_at IS NOT NULL;
CREATE INDEX continuum_leases_owner ON continuum_leases (owner, chain_id) WHERE owner IS NOT NULL;
CREATE INDEX continuum_leases_blocked ON continuum_leases (chain_id) WHERE blocked IS NOT NULL;

-- The journal. Partitioned by run id, which is a UUIDv7: a month a partition, a run's whole history in one of them,
-- and the primary key unique over all.
CREATE TABLE continuum_events (
    run_id  uuid NOT NULL,
    seq     integer NOT NULL,
    token   bigint NOT NULL,
    kind    smallint NOT NULL,
    at      timestamptz NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (run_id, seq)
) PARTITION BY RANGE (run_id);
CREATE TABLE continuum_events_default PARTITION OF continuum_events DEFAULT;

-- Inputs that wait for a chain. Kinds: 1 signal, 2 activity result, 3 cancel request.
CREATE TABLE continuum_mailbox (
    chain_id    uuid NOT NULL,
    mail_id     bigint GENERATED ALWAYS AS IDENTITY,
    kind        smallint NOT NULL,
    name        text,
    payload     bytea NOT NULL,
    delivery_id text,
    posted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, mail_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01);

-- Which deliveries a chain has accepted, so that a sender's retry or a broker's redelivery counts once.
CREATE TABLE continuum_ingress_keys (
    chain_id    uuid NOT NULL,
    name        text NOT NULL,
    delivery_id text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, name, delivery_id)
);

-- Signals that a run had not read when it ended. Kept, so that nothing is dropped in silence.
CREATE TABLE continuum_unread_signals (
    run_id      uuid NOT NULL,
    mail_id     bigint NOT NULL,
    name        text,
    payload     bytea NOT NULL,
    delivery_id text,
    posted_at   timestamptz NOT NULL,
    PRIMARY KEY (run_id, mail_id)
);

-- Messages on signal subjects that could not be taken, with the reason.
CREATE TABLE continuum_rejected_signals (
    rejected_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject     text NOT NULL,
    reason      text NOT NULL,
    delivery_id text,
    payload     bytea NOT NULL,
    size        bigint NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (subject, delivery_id)
);

-- Posts made inside a caller's own transaction; a deferred trigger turns each into mail at its commit.
CREATE TABLE continuum_deferred_posts (
    post_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id      uuid NOT NULL,
    name        text NOT NULL,
    payload     bytea NOT NULL,
    delivery_id text
);

-- Pending timers, of resident and cold runs alike.
CREATE TABLE continuum_timers (
    run_id  uuid NOT NULL,
    effect  integer NOT NULL,
    fire_at timestamptz NOT NULL,
    PRIMARY KEY (run_id, effect)
);

-- Open activities. The input is in the journal, at (run_id, seq); it is stored once.
CREATE TABLE continuum_activity_tasks (
    run_id       uuid NOT NULL,
    effect       integer NOT NULL,
    chain_id     uuid NOT NULL,
    seq          integer NOT NULL,
    queue        text NOT NULL,
    name         text NOT NULL,
    attempt      integer NOT NULL,
    max_attempts integer NOT NULL,
    owner        uuid,
    ticket       bigint,
    due_at       timestamptz,
    scheduled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,
    PRIMARY KEY (run_id, effect)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX continuum_activity_tasks_ready ON continuum_activity_tasks (queue, name, ticket)
    WHERE owner IS NULL AND ticket IS NOT NULL;
CREATE INDEX continuum_activity_tasks_due ON continuum_activity_tasks (queue, name, due_at)
    WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX continuum_activity_tasks_owner ON continuum_activity_tasks (owner) WHERE owner IS NOT NULL;

-- Attempts that did not end an activity: failed ones that are tried again, and those whose worker died (outcome
-- `unknown`). The attempt that ends an activity is told by the journal's completion event.
CREATE TABLE continuum_activity_attempts (
    run_id   uuid NOT NULL,
    effect   integer NOT NULL,
    attempt  integer NOT NULL,
    session  uuid NOT NULL,
    outcome  text NOT NULL,
    failure  bytea,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, effect, attempt)
);

-- Committed results by idempotency key.
CREATE TABLE continuum_activity_results (
    namespace       text NOT NULL,
    name            text NOT NULL,
    idempotency_key text NOT NULL,
    result          bytea NOT NULL,
    run_id          uuid NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, name, idempotency_key)
);
