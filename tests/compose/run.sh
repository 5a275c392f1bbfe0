#!/usr/bin/env bash
# The cluster of docker-compose.yml on a real engine, under fire: five workers, orders that keep coming, and workers that
# are killed, frozen, cut off and replaced. In the end every order has ended, and nothing was done twice.
#
#   tests/compose/run.sh                 as it is; where no engine can run, this is a failure
#   tests/compose/run.sh --may-skip      ... and here it is only said
#   OFFICIAL=1 tests/compose/run.sh      the official images, and the whole Dockerfile
#   COMPOSE=docker-compose tests/compose/run.sh    that program instead of `docker compose`
#   KEEP=1 tests/compose/run.sh          leave the cluster running, to look at it
#
# It starts an engine if none runs, and removes whatever it made.
set -Eeuo pipefail
trap '[[ $BASH_SUBSHELL -gt 0 ]] || echo "compose: FAILED at ${BASH_SOURCE[0]}:$LINENO: $BASH_COMMAND" >&2' ERR

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
no_engine=

say() { printf 'compose: %4d s  %s\n' "$SECONDS" "$*"; }

fail() {
    echo "compose: FAILED: $*" >&2
    exit 1
}

# Waits until a command succeeds.
until_true() {
    local limit=$(($1 + SECONDS)) what=$2
    shift 2
    until "$@"; do
        [[ $SECONDS -lt $limit ]] || {
            echo "compose: this did not come about in time: $what" >&2
            return 1
        }
        sleep 0.2
    done
}

source "$here/engine.sh"
source "$here/images.sh"
source "$here/cluster.sh"
source "$here/orders.sh"

skip() {
    if [[ ${1:-} == --may-skip ]]; then
        echo "compose: SKIPPED, nothing was tested: $no_engine"
        exit 0
    fi
    fail "$no_engine"
}

clean_up() {
    local code=$?
    trap - EXIT INT TERM
    set +e
    orders_stop
    if [[ $code -ne 0 && -f $work/up ]]; then
        cluster_tell
    fi
    if [[ ${KEEP:-} ]]; then
        say "kept: project $project, files in $work${engine_pid:+, dockerd with pid $engine_pid}"
        exit "$code"
    fi
    cluster_remove
    images_remove
    stop_engine
    rm -rf "$work"
    exit "$code"
}

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

case ${1:-} in
    '' | --may-skip) ;;
    *) fail "unknown argument $1; the only one is --may-skip" ;;
esac

start_engine || skip "$@"
find_compose || skip "$@"

say "building continuum and the orders example"
cargo build -q --locked --manifest-path "$root/Cargo.toml" -p continuum-worker -p continuum-examples --bins
programs=${CARGO_TARGET_DIR:-$root/target}/debug
if [[ ${OFFICIAL:-} ]]; then images_official; else images_stand_in; fi

cluster_settings
cluster_up 5
orders_begin

drill_kill
drill_restart_servers
drill_cut_and_freeze
drill_roll

orders_end
orders_check
cluster_check
cluster_stop
say "passed"
