-- Months of the journal.

-- The smallest UUIDv7 of a moment.
CREATE FUNCTION continuum_run_id_floor(moment timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- A new UUIDv7 from the database's clock.
CREATE FUNCTION continuum_new_run_id() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Makes sure that the months from the current one to `months` ahead have a partition; returns how many were made.
--
-- A month is made as a plain table and attached: CREATE TABLE … PARTITION OF behind a slow reader stops all appends
-- for as long as the reader takes. The lock time-out bounds the wait; the caller tries again later. Rows of the
-- month that an exhausted horizon sent to the default partition move in the same transaction. Bounds are in UTC
-- whatever the session's time zone.
CREATE FUNCTION continuum_ensure_partitions(months integer) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    this_month timestamp := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC');
    made integer := 0;
    low uuid;
    high uuid;
    partition text;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    FOR i IN 0..months LOOP
        low := continuum_run_id_floor((this_month + make_interval(months => i)) AT TIME ZONE 'UTC');
        high := continuum_run_id_floor((this_month + make_interval(months => i + 1)) AT TIME ZONE 'UTC');
        partition := 'continuum_events_' || to_char(this_month + make_interval(months => i), 'YYYY_MM');
        CONTINUE WHEN to_regclass(partition) IS NOT NULL;
        EXECUTE format('CREATE TABLE %I (LIKE continuum_events INCLUDING ALL)', partition);
        IF EXISTS (SELECT 1 FROM continuum_events_default WHERE run_id >= low AND run_id < high) THEN
            -- Nobody may append to the month between the move and the attach.
            LOCK TABLE continuum_events_default IN SHARE ROW EXCLUSIVE MODE;
            EXECUTE format('WITH moved AS (DELETE FROM continuum_events_default
                                           WHERE run_id >= $1 AND run_id < $2 RETURNING *)
                            INSERT INTO %I SELECT * FROM moved', partition) USING low, high;
        END IF;
        EXECUTE format('ALTER TABLE continuum_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       partition, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

SELECT continuum_ensure_partitions(4);
