# Orders that keep coming while the cluster is under fire, and what became of them; sourced by run.sh.

# How many orders wait for their review before the eldest gets it.
waiting_max=25
# How many are placed at once.
lanes=4
orders_pid=

orders_begin() {
    say "orders begin to come"
    place_orders >"$work/place.log" 2>&1 &
    orders_pid=$!
    until_true 60 "the first orders are placed" has_placed 10
}

orders_stop() {
    [[ $orders_pid ]] || return 0
    kill "$orders_pid" 2>/dev/null
    wait "$orders_pid" 2>/dev/null
    orders_pid=
}

# No more orders; the last ones get their reviews.
orders_end() {
    : >"$work/enough"
    wait "$orders_pid" || fail "orders could not be placed: $(tail -5 "$work/place.log")"
    orders_pid=
    say "$(placed) orders were placed"
    until_true 120 "every order has ended" all_have_ended
}

all_have_ended() { [[ -z $("$programs/orders" runs list --state active --limit 1 2>/dev/null) ]]; }

# Several at once, in rounds.
place_orders() {
    local number=0 reviewed=0 lane
    trap '' PIPE
    mkdir -p "$work/ids"
    until [[ -f $work/enough ]]; do
        for lane in $(seq "$lanes"); do place $((number + lane)) & done
        for lane in $(seq "$lanes"); do wait -n || return 1; done
        number=$((number + lanes))
        while [[ $((number - reviewed)) -gt $waiting_max ]]; do
            reviewed=$((reviewed + 1))
            review "$reviewed" || return 1
        done
    done
    while [[ $reviewed -lt $number ]]; do
        reviewed=$((reviewed + 1))
        review "$reviewed" || return 1
    done
}

placed() { ls "$work/ids" 2>/dev/null | wc -l; }

has_placed() { [[ $(placed) -ge $1 ]]; }

# The key makes it safe to try again. Each activity takes a while, so that there is something to interrupt.
place() {
    local input id tries=0
    input='{"id": "A-'$1'", "customer": "Ada", "cents": 1999, "faults": {"slow_ms": 400}}'
    until id=$("$programs/orders" start order_flow --key "A-$1" --input "$input"); do
        tries=$((tries + 1))
        [[ $tries -lt 10 ]] || return 1
    done
    echo "$id" >"$work/ids/$1"
}

# Every fifth order is refused. A publish without an acknowledgement is repeated under the same id.
review() {
    local id approved=true tries=0
    id=$(<"$work/ids/$1")
    [[ $(($1 % 5)) -ne 0 ]] || approved=false
    until publish "continuum.default.signal.$id.fraud_review" "review-$1" \
        '{"approved": '$approved', "reviewer": "ada"}'; do
        tries=$((tries + 1))
        [[ $tries -lt 60 ]] || return 1
        sleep 0.5
    done
}

# Publishes as one who may do nothing else, in the account PUBLISHERS of docs/nats-accounts.conf: NATS's own protocol,
# so that no other program is needed.
nats=
publish() {
    local subject=$1 header="NATS/1.0"$'\r\n'"Nats-Msg-Id: $2"$'\r\n\r\n' payload=$3
    [[ $nats ]] || nats_connect || return 1
    printf 'HPUB %s _INBOX_publisher.compose %d %d\r\n%s%s\r\n' "$subject" "${#header}" \
        $((${#header} + ${#payload})) "$header" "$payload" >&"$nats" && acknowledged && return
    nats_close
    return 1
}

nats_connect() {
    { exec {nats}<>"/dev/tcp/127.0.0.1/$NATS_PORT"; } 2>/dev/null || { nats=; return 1; }
    printf 'CONNECT %s\r\nSUB _INBOX_publisher.compose 1\r\n' \
        '{"user":"publisher","pass":"change-me-publisher","verbose":false,"headers":true,"protocol":1}' >&"$nats"
}

nats_close() {
    [[ $nats ]] && exec {nats}>&-
    nats=
}

# Whether the stream's acknowledgement comes.
acknowledged() {
    local line
    while read -r -t 5 line <&"$nats"; do
        case $line in
            PING*) printf 'PONG\r\n' >&"$nats" ;;
            '{"stream"'*) return 0 ;;
            '{"error"'* | -ERR*) echo "NATS says $line"; return 1 ;;
        esac
    done
    return 1
}

# By the word of the database: each has ended, as its review said. By that of the outside world: each card was charged
# once, and then either the parcel was handed over or the money given back.
orders_check() {
    local placed refused completed
    placed=$(placed)
    refused=$((placed / 5))
    [[ $(cat "$work"/ids/* | sort -u | wc -l) -eq $placed ]] || fail "two orders got the same run"
    completed=$("$programs/orders" runs list --state completed --limit 10000 --format json | tr '{' '\n' | grep -c '"run_id"')
    [[ $completed -eq $placed ]] || fail "of $placed orders, $completed have completed"

    docker exec "$(workers | head -1)" cat /var/lib/orders/effects.jsonl >"$work/effects"
    [[ $(deeds charge) -eq $placed ]] || fail "of $placed cards, $(deeds charge) were charged"
    [[ $(deeds refund) -eq $refused ]] || fail "of $refused refused orders, $(deeds refund) were refunded"
    [[ $(deeds ship) -eq $((placed - refused)) ]] || fail "$(deeds ship) orders were shipped instead of $((placed - refused))"
    [[ -z $(sed -n 's/.*"deed":"\([a-z]*\)".*"order":"\([^"]*\)".*/\1 \2/p' "$work/effects" | sort | uniq -d) ]] ||
        fail "something was done twice"
    say "every order has ended: $((placed - refused)) shipped, $refused refunded, nothing lost and nothing done twice"
}

deeds() { grep -c '"deed":"'"$1"'"' "$work/effects"; }
