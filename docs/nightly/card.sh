#!/bin/sh
# One night of one card: card.sh h100 [more arguments for pytest]. Where a test failed all run once more.
set -eu
cd "$(dirname "$0")"
card=$1
shift
run() { pytest --hw="$card" --rl-long --rl-record-dir=records "$@"; }
run "$@" || run "$@"
