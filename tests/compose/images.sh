# Makes the images that the cluster needs without asking a registry; sourced by run.sh.
#
# The stand-ins for postgres:17 and nats:2-alpine hold the programs that this Debian or Ubuntu has installed: the files
# of their packages and of what these need, which takes seconds. Workers get the programs that Cargo built here, by
# the stage `prebuilt` of the Dockerfile: they fit the C library that they were built with, and that comes along.

tag=continuum-test-$$

images_stand_in() {
    command -v dpkg-query >/dev/null || fail "stand-in images are made of Debian's packages; here, use OFFICIAL=1"
    command -v busybox >/dev/null || apt_install busybox || fail "apt-get could not install busybox"
    say "making stand-in images of this machine's packages"
    postgres_bin=$(newest_postgres)
    build_context "$work/stand-in"
    tar -C / -c --no-recursion -T "$work/files" >"$work/stand-in/files.tar"
    sed "s#@POSTGRES_BIN@#$postgres_bin#" "$here/stand-in/Dockerfile" >"$work/stand-in/Dockerfile"
    local target
    for target in base postgres nats; do
        image_build "$target" "$work/stand-in" --target "$target"
    done
    POSTGRES_IMAGE=$tag:postgres NATS_IMAGE=$tag:nats
    image_worker --build-arg RUNTIME_IMAGE="$tag:base" --target prebuilt
}

# What users do: everything comes from a registry, and the workers are compiled inside the build.
images_official() {
    say "pulling the official images, and building the whole Dockerfile"
    POSTGRES_IMAGE=postgres:17 NATS_IMAGE=nats:2-alpine CONTINUUM_IMAGE=$tag:worker
    docker pull -q "$POSTGRES_IMAGE" && docker pull -q "$NATS_IMAGE" || fail "a pull failed; without a registry, leave OFFICIAL out"
    docker build -t "$CONTINUUM_IMAGE" "$root" || fail "the Dockerfile can't be built"
}

image_worker() {
    mkdir "$work/worker"
    cp "$programs/continuum" "$programs/orders" "$work/worker/"
    strip --strip-debug "$work"/worker/*
    cp "$root/Dockerfile" "$work/worker/"
    image_build worker "$work/worker" "$@"
    CONTINUUM_IMAGE=$tag:worker
}

image_build() {
    local name=$1 context=$2
    shift 2
    # The classic builder is there in every engine; its word that it is old helps nobody.
    DOCKER_BUILDKIT=0 docker build -t "$tag:$name" "$@" "$context" >"$work/build-$name.log" 2>&1 ||
        fail "the image $name can't be built: $(tail -5 "$work/build-$name.log")"
}

images_remove() {
    docker image ls --format '{{.Repository}}:{{.Tag}}' "$tag" 2>/dev/null | xargs -r docker image rm -f >/dev/null 2>&1 || true
}

newest_postgres() {
    local folder
    folder=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1)
    [[ -x $folder/postgres ]] || fail "no packaged PostgreSQL is installed; run scripts/setup.sh"
    echo "$folder"
}

# Writes the list of files, and what the packages make only when they are configured.
build_context() {
    local context=$1 version=${postgres_bin#/usr/lib/postgresql/}
    mkdir -p "$context"
    closure base-files bash busybox coreutils dash findutils grep libc-bin sed util-linux nats-server \
        "postgresql-${version%/bin}" | xargs dpkg-query -L | package_files | sort -u >"$work/files"
    cp "$here/stand-in/docker-entrypoint.sh" "$context/"
    {
        getent passwd root postgres nobody
    } >"$context/passwd"
    getent group root postgres nogroup >"$context/group"
}

closure() {
    apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances "$@" | grep -E '^[a-z0-9]' | sort -u | installed
}

# Virtual packages and those of other architectures have no files here.
installed() {
    local package
    while read -r package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] && echo "$package"
    done
}

# Leaves out documentation, and the compiler of queries, which is larger than everything else. Where /bin is a link to
# /usr/bin, the packages' names for their files are brought in line with that.
package_files() {
    grep -E '^/(bin|sbin|lib|lib64|usr|etc)/' |
        grep -vE '^/usr/share/(doc|man|info|locale|lintian|bash-completion|perl|perl5)/|/llvmjit|/bitcode/|libLLVM|/libz3|^/usr/lib/python' |
        { if [[ -L /bin ]]; then sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#'; else cat; fi; } |
        while read -r file; do [[ -e $file || -L $file ]] && echo "${file#/}"; done
    for link in bin sbin lib lib64; do echo "$link"; done
}
