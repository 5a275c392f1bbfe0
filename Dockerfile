# An image with `continuum` and the orders example: `docker build -t continuum-orders .`
#
# No `# syntax=` line, and nothing that only BuildKit knows: the builder of docker-compose 1.29 reads this file too.
# Where no registry can be reached, other base images are named by `--build-arg`, as tests/compose/images.sh does.
ARG RUST_IMAGE=rust:1.95-slim-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${RUNTIME_IMAGE} AS base
# The ledger of the orders example, so that a volume that is mounted here belongs to who writes it.
RUN mkdir -p /var/lib/orders && chown 65532:65532 /var/lib/orders
ENV CONTINUUM_HTTP=0.0.0.0:8080 CONTINUUM_LOG_FORMAT=json ORDERS_LEDGER=/var/lib/orders
USER 65532:65532
WORKDIR /var/lib/orders
EXPOSE 8080
# The first signal begins the drain; a second one would end the process at once.
STOPSIGNAL SIGTERM
# Only whether the process lives: some orchestrators replace a container that is unhealthy, and a worker that waits for
# Postgres to return must not be replaced. Who sends it work only while it is ready asks `--probe ready`.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["continuum", "health", "--probe", "live"]
CMD ["orders", "worker"]

# Programs that were built elsewhere; the folder that holds them is the build context. It stands before the build, since
# the classic builder runs every stage above its target.
FROM base AS prebuilt
COPY continuum orders /usr/local/bin/

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# First the dependencies, with stand-ins for our own sources: this layer lasts until a manifest changes.
COPY Cargo.toml Cargo.lock ./
COPY benches/Cargo.toml benches/
COPY bus/Cargo.toml bus/
COPY examples/Cargo.toml examples/
COPY macros/Cargo.toml macros/
COPY schema/Cargo.toml schema/
COPY tests/Cargo.toml tests/
COPY worker/Cargo.toml worker/
RUN set -e; \
    for member in benches bus examples macros schema tests worker; do \
        for file in src/lib.rs $(sed -n 's/^path = "\(.*\.rs\)"$/\1/p' "$member/Cargo.toml"); do \
            mkdir -p "$(dirname "$member/$file")"; \
            echo 'fn main() {}' > "$member/$file"; \
        done; \
    done; \
    cargo build --release --locked -p continuum-examples
COPY . .
# What was copied is older than what the stand-ins were built into, and Cargo goes by that.
RUN find . -name '*.rs' -exec touch {} + \
    && cargo build --release --locked -p continuum-worker -p continuum-examples --bins \
    && mkdir /programs \
    && cp target/release/continuum target/release/orders /programs/ \
    && strip --strip-debug /programs/*

FROM base AS runtime
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /programs/ /usr/local/bin/
