# The cluster, and what is done to its workers; sourced by run.sh.

project=continuum-test-$$

compose() { $COMPOSE -p "$project" -f "$root/docker-compose.yml" "$@"; }

cluster_settings() {
    export CONTINUUM_IMAGE POSTGRES_IMAGE NATS_IMAGE
    export POSTGRES_PORT=$(free_port) NATS_PORT=$(free_port)
    # For the commands that the test itself runs, as somebody on this machine would.
    export CONTINUUM_DATABASE_URL=postgres://continuum:change-me-postgres@127.0.0.1:$POSTGRES_PORT/continuum
    export CONTINUUM_NATS_URL=nats://127.0.0.1:$NATS_PORT CONTINUUM_NATS_USER=workers
    export CONTINUUM_NATS_PASSWORD=change-me-workers CONTINUUM_NATS_INBOX_PREFIX=_INBOX_workers
    unset CONTINUUM_INSTANCE CONTINUUM_NAMESPACE CONTINUUM_FORMAT CONTINUUM_LOG CONTINUUM_LOG_FORMAT
}

# Below those that the system gives to clients.
free_port() {
    local port
    while port=$((20000 + RANDOM % 10000)); do
        { : <"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || break
    done
    echo "$port"
}

cluster_up() {
    : >"$work/up"
    say "up, with $1 workers"
    compose up -d --no-build --scale worker="$1" >"$work/up.log" 2>&1 || fail "up: $(tail -15 "$work/up.log")"
    until_true 90 "$1 workers are healthy" healthy_count "$1"
}

cluster_remove() {
    [[ -f $work/up ]] || return 0
    say "down"
    compose down -v --remove-orphans -t 30 >"$work/down.log" 2>&1 || tail -5 "$work/down.log" >&2
}

# For whoever has to find out what went wrong.
cluster_tell() {
    compose ps
    compose logs --no-color --tail=15
} >&2

workers() { docker ps -aq --no-trunc --filter label=com.docker.compose.project="$project" --filter label=com.docker.compose.service=worker; }

service() { docker ps -aq --filter label=com.docker.compose.project="$project" --filter label=com.docker.compose.service="$1"; }

named() { docker inspect -f '{{.Name}}' "$1" | sed "s#^/$project[-_]##"; }

health() { docker inspect -f '{{.State.Status}} {{.State.Health.Status}}' "$1"; }

is_healthy() { [[ $(health "$1") == "running healthy" ]]; }

healthy_count() { [[ $(for worker in $(workers); do health "$worker"; done | grep -c '^running healthy$') -eq $1 ]]; }

# The worker's own word, as `continuum health` has it from the worker's port: its session. Fails while it is not ready.
session() {
    docker exec "$1" continuum health --format json 2>/dev/null | sed -n 's/.*"session": *"\([0-9a-f-]*\)".*/\1/p'
}

# Newer than the engine's opinion, which is as old as the last health check.
all_are_ready() {
    local worker
    for worker in $(workers); do session "$worker" >/dev/null || return 1; done
}

# Whether some other worker has noticed the end of a session.
is_missed() { compose logs --no-color worker 2>/dev/null | grep -F "$1" | grep -q 'reconciler.closed'; }

# Whether the worker is ready under another session than this one.
is_ready_anew() {
    local now
    now=$(session "$1") && [[ $now && $now != "$2" ]]
}

exit_code() { docker inspect -f '{{.State.ExitCode}}' "$1"; }

restarts() { docker inspect -f '{{.RestartCount}}' "$1"; }

# kill -9 of the process: the engine starts it again. Then of the whole container, which somebody has to start again.
drill_kill() {
    local victims other before
    mapfile -t victims < <(workers)
    before=$(session "${victims[0]}")
    say "kill -9 of the process in $(named "${victims[0]}")"
    docker exec "${victims[0]}" sh -c 'kill -9 $(cat /proc/1/task/1/children)'
    until_true 60 "the engine starts the killed worker again" is_ready_anew "${victims[0]}" "$before"
    [[ $(restarts "${victims[0]}") -eq 1 ]] || fail "$(named "${victims[0]}") was restarted $(restarts "${victims[0]}") times"
    is_missed "$before" || until_true 60 "the others miss the killed worker" is_missed "$before"

    other=${victims[1]}
    before=$(session "$other")
    say "docker kill of $(named "$other")"
    docker kill "$other" >/dev/null
    until_true 60 "the others miss the killed container" is_missed "$before"
    docker start "$other" >/dev/null
    until_true 60 "the killed container is healthy" is_healthy "$other"
}

# Postgres and NATS die and return; no worker needs a restart for it.
drill_restart_servers() {
    local server
    for server in nats postgres; do
        say "docker kill of $server"
        docker kill "$(service "$server")" >/dev/null
        docker start "$(service "$server")" >/dev/null
        until_true 60 "$server is healthy" is_healthy "$(service "$server")"
        until_true 60 "the workers are ready again" all_are_ready
    done
}

# Two at once, since both are given up only when their time is over: one that is frozen, and one that has no network.
drill_cut_and_freeze() {
    local victims network frozen cut
    mapfile -t victims < <(workers)
    network=$(docker network ls -q --filter label=com.docker.compose.project="$project")
    frozen=$(session "${victims[2]}") cut=$(session "${victims[3]}")
    say "pause of $(named "${victims[2]}"), and $(named "${victims[3]}") is cut off the network"
    docker pause "${victims[2]}" >/dev/null
    docker network disconnect "$network" "${victims[3]}"
    until_true 60 "the others miss the frozen worker" is_missed "$frozen"
    until_true 60 "the others miss the worker without a network" is_missed "$cut"
    say "both were missed; they return"
    docker unpause "${victims[2]}" >/dev/null
    docker network connect --alias worker "$network" "${victims[3]}"
    until_true 60 "the frozen worker has a new session" is_ready_anew "${victims[2]}" "$frozen"
    until_true 60 "the worker that was cut off has a new session" is_ready_anew "${victims[3]}" "$cut"
    until_true 60 "all workers are healthy" healthy_count 5
}

# What a new version does: each worker drains, goes, and a new container takes its place.
drill_roll() {
    local worker name
    for worker in $(workers); do
        name=$(named "$worker")
        docker stop -t 30 "$worker" >/dev/null
        [[ $(exit_code "$worker") -eq 0 ]] || fail "$name ended with $(exit_code "$worker") instead of a clean drain"
        docker rm "$worker" >/dev/null
        compose up -d --no-build --no-recreate --no-deps --scale worker=5 worker >"$work/roll.log" 2>&1 ||
            fail "roll: $(tail -5 "$work/roll.log")"
        until_true 60 "five workers are healthy again" healthy_count 5
        say "$name has drained and was replaced"
    done
}

# The invariants of the database, by the checker of all integration tests.
cluster_check() {
    say "checking the invariants"
    COMPOSE_TEST_DATABASE=$CONTINUUM_DATABASE_URL cargo test -q --locked --manifest-path "$root/Cargo.toml" \
        -p continuum-tests --test it -- --ignored --exact compose::the_cluster_keeps_every_invariant >"$work/check.log" 2>&1 ||
        fail "an invariant is broken: $(tail -30 "$work/check.log")"
    grep -q '1 passed' "$work/check.log" || fail "the checker did not run: $(cat "$work/check.log")"
}

# Everything stops in order when the cluster is told to: the workers drain while Postgres and NATS are still there.
cluster_stop() {
    local began=$SECONDS worker
    compose stop >"$work/stop.log" 2>&1
    for worker in $(workers); do
        [[ $(exit_code "$worker") -eq 0 ]] || fail "$(named "$worker") ended with $(exit_code "$worker") at the stop"
    done
    [[ $(exit_code "$(service postgres)") -eq 0 ]] || fail "Postgres ended with $(exit_code "$(service postgres)")"
    say "stopped in $((SECONDS - began)) s, every worker with 0"
}
