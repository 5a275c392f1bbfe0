#!/usr/bin/env bash
# Installs what building and testing Continuum needs on Debian or Ubuntu: a C compiler (for TLS), and
# the programs of PostgreSQL and NATS. Nothing of theirs has to run: Continuum starts private servers.
# With --tests also what only tests need: PgBouncer, libfaketime to set a process's clock, strace to slow a disk, and
# openssl for certificates.
# Does nothing when everything is there.
set -euo pipefail

fail() {
    echo "setup: $*" >&2
    exit 1
}

has_compiler() { command -v cc >/dev/null; }

has_postgres() {
    local folder
    for folder in "${CONTINUUM_POSTGRES_BIN:-}" /usr/lib/postgresql/*/bin; do
        [[ -x "$folder/initdb" && -x "$folder/postgres" ]] && return
    done
    command -v initdb >/dev/null && command -v postgres >/dev/null
}

has_nats() {
    [[ -x "${CONTINUUM_NATS_SERVER:-/usr/sbin/nats-server}" ]] || command -v nats-server >/dev/null
}

has_pgbouncer() { [[ -x /usr/sbin/pgbouncer ]]; }

has_faketime() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null; }

has_openssl() { command -v openssl >/dev/null; }

has_strace() { command -v strace >/dev/null; }

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

apt_install() {
    # The environment passes through `env`, since sudo drops what it does not know.
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Debian's package starts a server of its own, unless it is told not to before it arrives. Where
# PostgreSQL's packages have been before, the machine's configuration is left alone.
install_postgres() {
    local settings=/etc/postgresql-common/createcluster.conf
    if [[ ! -e $settings ]]; then
        apt_install postgresql-common
        as_root sed -i 's/^#\?create_main_cluster *=.*/create_main_cluster = false/' "$settings"
    fi
    apt_install postgresql
}

tests=
case ${1:-} in
    '') ;;
    --tests) tests=1 ;;
    *) fail "unknown argument $1; the only one is --tests" ;;
esac

command -v cargo >/dev/null ||
    fail "cargo was not found; install Rust 1.94 or newer (https://rustup.rs), then run this again"

missing=()
has_compiler || missing+=(gcc libc6-dev)
has_postgres || missing+=(postgresql)
has_nats || missing+=(nats-server)
if [[ $tests ]]; then
    has_pgbouncer || missing+=(pgbouncer)
    has_faketime || missing+=(faketime)
    has_strace || missing+=(strace)
    has_openssl || missing+=(openssl)
fi
if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi

command -v apt-get >/dev/null ||
    fail "${missing[*]} missing and apt-get not found; install them by your system's means," \
        "or name the servers by CONTINUUM_POSTGRES_BIN (a folder) and CONTINUUM_NATS_SERVER (a program)"
[[ $EUID -eq 0 ]] || command -v sudo >/dev/null ||
    fail "${missing[*]} missing; run this as root, or install sudo"

echo "setup: installing ${missing[*]} with apt-get"
as_root apt-get update -qq
for package in "${missing[@]}"; do
    case $package in
        postgresql) install_postgres ;;
        *) apt_install "$package" ;;
    esac
done
has_compiler && has_postgres && has_nats && { [[ ! $tests ]] || { has_pgbouncer && has_faketime && has_strace && has_openssl; }; } ||
    fail "something is still missing after the installation; see what apt-get said above"
echo "setup: done"
