# Finds a container engine, or installs and starts one; sourced by run.sh.
#
# An engine that was started here is stopped here, and the firewall is left as it was found: dockerd refuses what the
# machine forwards (the policy of FORWARD becomes DROP) and leaves its chains behind.

engine_pid=
forward_policy=
forwarding=

# Says why there is no engine, and returns 1.
start_engine() {
    if docker info >/dev/null 2>&1; then
        say "the engine that runs here is used"
        return
    fi
    if [[ $EUID -ne 0 ]]; then
        no_engine="no container engine answers, and only root can start one"
        return 1
    fi
    install_engine || return 1
    # Where services start with their installation, this one has.
    if docker info >/dev/null 2>&1; then return; fi
    remember_firewall
    # In a session of its own, so that Ctrl-C reaches the test first, which still needs the engine to clean up.
    setsid dockerd >"$work/dockerd.log" 2>&1 &
    engine_pid=$!
    if ! until_true 60 "dockerd answers" engine_answers_or_died || ! docker info >/dev/null 2>&1; then
        no_engine="dockerd can't run here: $(grep -E 'level=(error|fatal)|failed' "$work/dockerd.log" | tail -1)"
        stop_engine
        return 1
    fi
    say "dockerd was started"
}

engine_answers_or_died() {
    docker info >/dev/null 2>&1 || ! kill -0 "$engine_pid" 2>/dev/null
}

install_engine() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
    has_compose || missing+=(docker-compose)
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if ! command -v apt-get >/dev/null; then
        no_engine="no container engine is installed (${missing[*]}), and there is no apt-get to install one"
        return 1
    fi
    apt_install "${missing[@]}" || {
        no_engine="apt-get could not install ${missing[*]}"
        return 1
    }
}

apt_install() {
    say "installing $* with apt-get"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >"$work/apt.log" 2>&1
}

has_compose() { docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; }

# COMPOSE names the program; without it compose v2 is taken, where there is one.
find_compose() {
    if [[ -z ${COMPOSE:-} ]]; then
        if docker compose version >/dev/null 2>&1; then COMPOSE="docker compose"; else COMPOSE=docker-compose; fi
    fi
    if ! $COMPOSE version >/dev/null 2>&1; then
        no_engine="$COMPOSE is not installed"
        return 1
    fi
    say "$($COMPOSE version | head -1)"
}

stop_engine() {
    [[ $engine_pid ]] || return 0
    if kill "$engine_pid" 2>/dev/null; then
        say "dockerd is stopped"
        wait "$engine_pid" || true
    fi
    engine_pid=
    restore_firewall
}

remember_firewall() {
    forward_policy=$(iptables -S FORWARD 2>/dev/null | sed -n 's/^-P FORWARD //p')
    forwarding=$(</proc/sys/net/ipv4/ip_forward)
}

# Everything but what dockerd added.
restore_firewall() {
    iptables-save 2>/dev/null | grep -vi docker |
        sed "s/^:FORWARD [A-Z]*/:FORWARD ${forward_policy:-ACCEPT}/" | iptables-restore || true
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
    ip link delete docker0 2>/dev/null || true
}
