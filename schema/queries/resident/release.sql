-- Compare-and-set on session and token: whoever has lost it releases nothing. The new token makes late writes of the old
-- holder recognisable to whoever takes it next.
UPDATE continuum_residents SET session = NULL, token = continuum_next_token(), since = clock_timestamp()
WHERE name = $1 AND session = $2 AND token = $3
