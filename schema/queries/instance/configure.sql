-- Everything that a connection must have, set and read back in one round trip. $5 is true where the settings must end
-- with the transaction (a pooler in transaction mode).
SELECT set_config('search_path', $1, $5), set_config('TimeZone', 'UTC', $5),
       set_config('default_transaction_isolation', 'read committed', $5),
       set_config('statement_timeout', $2, $5), set_config('lock_timeout', $3, $5),
       set_config('client_connection_check_interval', $4, $5), set_config('tcp_user_timeout', $4, $5),
       set_config('idle_in_transaction_session_timeout', $2, $5)
