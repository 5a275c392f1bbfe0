#!/bin/bash
# What of the official image's entry point docker-compose.yml relies on: a first start makes the user and the database,
# while the server listens on a socket only.
set -euo pipefail

if [[ $(id -u) -eq 0 ]]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chown -R postgres:postgres "$PGDATA" /var/run/postgresql
    exec setpriv --reuid postgres --regid postgres --init-groups -- "$0" "$@"
fi

if [[ ! -s $PGDATA/PG_VERSION ]]; then
    initdb -D "$PGDATA" --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") \
        --auth-local=trust --auth-host=scram-sha-256
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -o "-c listen_addresses=" -w start
    createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec postgres -c listen_addresses='*'
