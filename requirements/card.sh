#!/bin/sh
# Takes the harness and its stack to a machine with a GPU and no network, and runs there what only a GPU can tell.
# shellcheck disable=SC2046,SC2086,SC2015,SC2329  # lists of words without blanks; A && B || C with a B that does not fail; "$@"
set -eu

usage() {
    cat <<'HELP'
card.sh: the stack, carried to a machine that has a GPU, torch for CUDA, and no network

  card.sh pack DIR [STACK [IMAGE]]    with an index: write the parts, each of at most 55 MiB, into DIR
  card.sh unpack DIR TARGET [GROUP…]  there: put all groups, or these, together in the folder TARGET
  card.sh piece N [TARGET]            there: run the N-th of six pieces, each under 8 minutes
  card.sh pieces                      the test files of each piece
  card.sh bundle STAGE DIR            the second half of pack: every folder of STAGE becomes a group of parts

STACK is vllm-0.26 (the default: vLLM 0.26.0, for torch 2.11) or vllm-0.31 (vLLM 0.31.0, for torch 2.13); both are for
Python 3.12. IMAGE is a file with what `pip freeze` prints on that machine: what is there in a version that the stack
takes stays out of the pack. torch, Triton and CUDA's libraries always do.

The groups are harness, rest, ray and vllm. Piece 1 needs no vllm, the others need all. DIR is complete in itself:
it has this script too. TARGET is a folder for PYTHONPATH; the image's own packages stay as they are.

The pieces: 1 a first CUDA context, fork, FSDP, attention. 2 the engine. 3 the miniature step. 4 sleep mode, fork after
CUDA, SIGFPE. 5 the step on two processes, and TRL's and verl's own, with the long tests. 6 goldens. Each writes its
record, log and measurements into $OUT (default ./card-out), and ends with what to run next. $HW is the profile (default auto), $PYTHON the interpreter (default python3).
HELP
}

PIECES=6
LIMIT=450  # seconds of a piece
PART=${CARD_PART:-55M}  # at most, as `split -b` takes it
PYTHON=${PYTHON:-python3}
PLATFORM=x86_64-manylinux_2_31
here=$(cd "$(dirname "$0")" && pwd)

# What a model of two layers on Hopper never calls, by distribution, and so what only these need.
LEFT_OUT='
flashinfer-python nvidia-cutlass-dsl nvidia-cudnn-frontend quack-kernels tilelang z3-solver
tokenspeed-mla tokenspeed-triton
nvidia-cuda-nvcc nvidia-cuda-cccl
pynvvideocodec torchcodec
fastsafetensors instanttensor wandb fastapi-cloud-cli
'
# In any version: vLLM pins it for speculative decoding, and an image's own has its own LLVM of 160 MB.
ANY_VERSION='numba'
# What an image with torch for CUDA has. Never packed.
OF_TORCH='^(torch|triton|cuda-bindings|cuda-pathfinder|cuda-toolkit|nvidia-.*)=='
# Inside of vLLM: FlashAttention 2 (Hopper takes 3; 290 MB), DeepSeek's FP8 products and attention, Blackwell's
# attention, FP4 of QuTLASS, the server in Rust (off unless asked for).
OF_VLLM='vllm_flash_attn/_vllm_fa2_C.abi3.so third_party/deep_gemm third_party/fmha_sm100 _flashmla_C.abi3.so
_flashmla_extension_C.abi3.so _qutlass_C.abi3.so vllm-rs'
# Ray's Java, its dashboard's pages, the library for RL that none of the trainers here uses, and serving LLMs by Ray.
OF_RAY='jars dashboard/client rllib llm'

say() { printf '%s\n' "$*"; }
die() {
    printf 'card.sh: %s\n' "$*" >&2
    exit 2
}

# Lines name==version of a freeze or a lock, as uv writes names; of "name @ URL" and "name" the name alone.
pins() {
    sed -e 's/[[:space:]]*[#;].*//' -e '/^-/d' -e 's/+.*//' "$1" |
        awk -F '==| @ ' 'NF {name = tolower($1); gsub(/[_.]+/, "-", name); print name (/==/ ? "==" $2 : "")}'
}

# The lines of the second that the first has not in that version; a bare name has any.
lacking() {
    awk -F '==' 'FILENAME == ARGV[1] {has[$1] = $2; next} !($1 in has) || (has[$1] != "" && has[$1] != $2)' "$1" "$2"
}

pack() {
    [ $# -ge 1 ] && [ $# -le 3 ] || die "pack DIR [STACK [IMAGE]]; see card.sh --help"
    stack=${2:-vllm-0.26}
    case $stack in
    vllm-0.26) vllm=0.26.0 torch=2.11.0 ;;
    vllm-0.31) vllm=0.31.0 torch=2.13.0 ;;
    *) die "no stack '$stack'; there are vllm-0.26 and vllm-0.31" ;;
    esac
    [ $# -lt 3 ] || [ -r "$3" ] || die "no file $3"
    uv=$(command -v uv || printf %s "$here/../.venv/bin/uv")
    [ -x "$uv" ] || die "uv is needed to pack: pip install uv, or make run"
    git -C "$here" rev-parse HEAD >/dev/null 2>&1 || die "$here is in no git checkout, of which to pack a commit"
    in_a_room_of "$1"
    stage=$room/stage
    mkdir -p "$stage/harness" "$stage/rest" "$stage/ray" "$stage/vllm"

    top=$(git -C "$here" rev-parse --show-toplevel)
    [ -z "$(git -C "$top" status --porcelain)" ] || say "note: what is not committed stays behind"
    git clone --quiet --bare --depth 1 "file://$top" "$stage/harness/checkout.git"
    git clone --quiet "$stage/harness/checkout.git" "$room/checkout"

    say "resolving $stack"
    pins "${3:-/dev/null}" >"$room/image"
    pins "$room/checkout/requirements/gpu.txt" >"$room/lock"
    # uv keeps what its output file has where it can: the image's versions, else the lock's.
    { grep '==' "$room/image"; sed 's/==.*//' "$room/image" | lacking - "$room/lock"; } >"$room/resolved" || true
    printf '%s\n' $LEFT_OUT >"$room/left-out"
    printf '%s\n' $ANY_VERSION >"$room/any-version"
    harness="pytest-rlregress @ file://$room/checkout"
    printf '%s\n' "vllm==$vllm" "torch==$torch" ray tensordict verl trl peft TransferQueue "$harness" |
        "$uv" pip compile --quiet --no-header --no-annotate --python-version 3.12 --python-platform $PLATFORM \
            --excludes "$room/left-out" --overrides "$room/any-version" --output-file "$room/resolved" - >/dev/null
    pins "$room/resolved" | grep '==' >"$room/pins"
    lacking "$room/image" "$room/pins" | grep -Ev "$OF_TORCH" >"$room/packages" || true
    grep nvidia-ml-py "$room/pins" | lacking "$room/image" - >>"$room/packages"

    say "installing $(wc -l <"$room/packages") packages"
    # The one package without a wheel is pure Python.
    "$uv" pip install --quiet --target "$stage/rest" --python-version 3.12 --python-platform $PLATFORM --no-deps \
        --only-binary :all: --no-binary antlr4-python3-runtime --requirements "$room/packages"
    "$uv" pip install --quiet --target "$stage/harness" --python-version 3.12 --no-deps "$room/checkout"
    say "trimming"
    for group in ray vllm; do
        mv "$stage/rest/$group" "$stage/rest/$group"-[0-9]*.dist-info "$stage/$group"
    done
    (cd "$stage/vllm/vllm" && rm -rf $OF_VLLM)
    (cd "$stage/ray/ray" && rm -rf $OF_RAY)
    for folder in "$stage"/*/bin; do  # scripts have a path of this machine in them
        find "$folder" -type f ! -name py-spy -delete
    done
    {
        say "stack $stack"
        say "python 3.12"
        say "torch $torch"
        say "commit $(git -C "$top" rev-parse HEAD)"
        sed 's/^/package /' "$room/packages"
    } >"$stage/about"
    bundle_into "$stage" "$1"
}

# Makes $room, a folder in DIR that is gone when this script ends, however it ends.
in_a_room_of() {
    mkdir -p "$1"
    room=$(mktemp -d "$(cd "$1" && pwd)/.packing-XXXXXX")
    trap 'rm -rf "$room"' EXIT
    trap 'exit 130' INT TERM HUP
}

bundle() {
    [ $# = 2 ] || die "bundle STAGE DIR; see card.sh --help"
    [ -f "$1/about" ] || die "$1 has no file 'about', with a line 'python 3.12' and one 'stack NAME'"
    in_a_room_of "$2"
    bundle_into "$1" "$2"
}

bundle_into() {
    parts=$room/parts
    mkdir "$parts"
    for folder in "$1"/*/; do
        group=$(basename "$folder")
        # The same content makes the same parts.
        tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$folder" -c . |
            xz -9 -T0 | split -d -a 2 -b "$PART" - "$parts/$group.tar.xz."
        say "$group: $(du -sm "$folder" | cut -f1) MiB, packed $(cat "$parts/$group".tar.xz.* | wc -c |
            awk '{printf "%.1f", $1 / 1048576}') MiB in $(find "$parts" -name "$group.tar.xz.*" | wc -l) parts"
    done
    cp "$1/about" "$here/card.sh" "$here/card_measure.py" "$parts"
    (cd "$parts" && sha256sum -- * >"$room/SHA256SUMS")
    rm -f "$2"/*.tar.xz.[0-9][0-9]
    mv "$parts"/* "$room/SHA256SUMS" "$2"
    say "$2 is ready: carry what is in it, in as many turns as it takes, then: sh DIR/card.sh unpack DIR TARGET"
}

unpack() {
    [ $# -ge 2 ] || die "unpack DIR TARGET [GROUP…]; see card.sh --help"
    [ -f "$1/SHA256SUMS" ] || die "$1 has no SHA256SUMS: it is no pack, or that file was not carried"
    dir=$(cd "$1" && pwd) target=$2
    shift 2
    for file in about card.sh card_measure.py; do check $file; done
    wanted=$(sed -n 's/^python //p' "$dir/about")
    got=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || die "no $PYTHON here: set PYTHON"
    [ "$got" = "$wanted" ] || die "the pack is for Python $wanted, $PYTHON is $got: set PYTHON"
    known=$(sed -n 's/.*  \(.*\)\.tar\.xz\.00$/\1/p' "$dir/SHA256SUMS")
    for group in "$@"; do
        printf '%s\n' "$known" | grep -qx "$group" || die "no group '$group'; there are" $known
    done
    [ $# -gt 0 ] || set -- $known
    for group in "$@"; do
        for part in $(parts_of "$group"); do check "$part"; done
    done
    if [ -d "$target" ] && [ -n "$(ls -A "$target")" ]; then
        [ -f "$target/.card/SHA256SUMS" ] || die "$target is not empty, and nothing that unpack made"
        cmp -s "$dir/SHA256SUMS" "$target/.card/SHA256SUMS" || rm -rf "$target"
    fi
    mkdir -p "$target/.card"
    cp "$dir/SHA256SUMS" "$dir/about" "$target/.card"
    cp "$dir/card.sh" "$dir/card_measure.py" "$target"
    for group in "$@"; do
        [ ! -f "$target/.card/$group" ] || { say "$group: there already"; continue; }
        say "$group: unpacking"
        (cd "$dir" && cat $(parts_of "$group")) | "$PYTHON" -c '
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz") as archive:
    archive.extractall(sys.argv[1], filter="data")' "$target"
        touch "$target/.card/$group"
    done
    torch=$("$PYTHON" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null) || torch=none
    say "$target has $(sed -n 's/^stack //p' "$dir/about"), for torch $(sed -n 's/^torch //p' "$dir/about"), here $torch"
    say "next: sh $target/card.sh piece 1; or export PYTHONPATH=$(cd "$target" && pwd), and $PYTHON -m pytest --hw=auto"
}

parts_of() { sed -n "s/.*  \\($1\\.tar\\.xz\\.[0-9][0-9]\\)\$/\\1/p" "$dir/SHA256SUMS"; }

check() {
    [ -f "$dir/$1" ] || die "$dir has no $1: carry it there"
    grep "  $1\$" "$dir/SHA256SUMS" | (cd "$dir" && sha256sum --check --status) ||
        die "$dir/$1 is damaged: carry it again"
}

# The failures and test files of a piece, as packages and modules below pytest_rlregress.scenarios.
tests_of() {
    case $1 in
    1) say memory.trainer_engine_oom.test_trainer_engine_oom models.flash_attention_missing \
        dependencies.cuda_arch_list ;;
    2) say rollout.weight_reload_weight_name.test_weight_reload_weight_name \
        memory.gpu_memory_utilization \
        rollout.max_tokens_overflow rollout.stalled_rollout tokens.truncation_told_by_eos_id \
        sampling.engine_resets_trainer_rng ;;
    3) say training.miniature_step ;;
    4) say memory.expandable_segments rollout.fork_after_cuda \
        rollout.tool_call_parser_mismatch.test_tool_call_parser_mismatch \
        rollout.weight_reload_weight_name.test_weight_reload_by_server ;;
    5) say training.fsdp_step training.trl_step training.verl_step weight_sync.trl_colocate_load_weights ;;
    6) say training.golden.test_golden training.golden.test_trl_step_golden ;;
    esac
}

piece() {
    number=${1:-}
    [ -n "$(tests_of "$number")" ] || die "no piece '$number'; there are 1 to $PIECES"
    end=$(($(date +%s) + LIMIT))
    target=${2:-}
    [ -n "$target" ] || [ ! -d "$here/.card" ] || target=$here
    if [ -n "$target" ]; then
        [ -d "$target/.card" ] || die "$target is not what unpack made"
        target=$(cd "$target" && pwd)
        export PYTHONPATH="$target${PYTHONPATH:+:$PYTHONPATH}" PATH="$target/bin:$PATH"  # py-spy is in bin
    fi
    # In a checkout its harness goes first: what was mended between two pieces counts.
    [ ! -d "$here/../pytest_rlregress" ] || export PYTHONPATH="${here%/*}${PYTHONPATH:+:$PYTHONPATH}"
    unset PYTHONDONTWRITEBYTECODE  # or every process that imports the stack compiles it anew
    out=${OUT:-card-out}/piece-$number
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    said=$("$PYTHON" -c 'import torch; torch.zeros(1, device="cuda")' 2>&1) || die "no CUDA here: $(printf '%s\n' "$said" | tail -1)"
    { run_piece && echo 0 >"$out/status" || echo $? >"$out/status"; } 2>&1 | tee "$out/log.txt"
    status=$(cat "$out/status")
    rm "$out/status"
    [ "$status" != 124 ] || say "stopped after $LIMIT s; what was known by then is in the record, or in its journal"
    if [ "$number" = $PIECES ]; then
        say "next: bring $out home: the goldens into hardware_markers/goldens, the records into the history"
    else
        say "next: bring $out home, then piece $((number + 1))"
    fi
    exit "$status"
}

# In a subshell, without set -e. What pytest ends with; 124 where the time was up.
run_piece() {
    say "piece $number, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    set -- "--hw=${HW:-auto}" -v --durations=0 -p no:cacheprovider "--rl-record-dir=$out" --pyargs
    case $number in
    1) measure context memory reclaim ;;
    5) set -- --rl-long "$@" ;;
    6)
        # A golden names the commit of the checkout that it is written into: that of the harness in the pack.
        [ -n "$target" ] || { say "goldens are of what was unpacked: piece 6 TARGET"; return 2; }
        git --version >/dev/null || { say "recording a golden takes git, which is not here"; return 2; }
        room=$(mktemp -d)
        trap 'rm -rf "$room"' EXIT
        git clone --quiet "$target/checkout.git" "$room/checkout" || return 2
        export PYTHONPATH="$room/checkout:$PYTHONPATH" RLREGRESS_GOLDENS="$room/checkout/hardware_markers/goldens"
        set -- --rl-update-goldens "$@"
        ;;
    esac
    for module in $(tests_of "$number"); do set -- "$@" "pytest_rlregress.scenarios.$module"; done
    cd "$out" || return 2
    # Else a test of a single file would be named without it.
    root=$("$PYTHON" -c 'import pytest_rlregress.scenarios as it; print(it.__path__[0])') || return 2
    ended=0
    timeout --foreground -k 20 -s INT $((end - $(date +%s))) "$PYTHON" -m pytest "--rootdir=$root" "$@" || ended=$?
    if [ "$number" = $PIECES ]; then
        cd "$room/checkout" || return 2
        git ls-files --others --modified hardware_markers/goldens | while read -r golden; do cp "$golden" "$out"; done
    fi
    return $ended
}

# Each in a process of its own: one that fails or hangs leaves what it said in the log.
measure() {
    for name; do
        timeout -s KILL 60 "$PYTHON" "$here/card_measure.py" "$name" | tee -a "$out/measured.jsonl" || true
    done
}

main() {
    case ${1:-} in
    pack | bundle | unpack | piece) "$@" ;;
    pieces) for number in $(seq $PIECES); do say "$number $(tests_of "$number")"; done ;;
    -h | --help | help) usage ;;
    '') usage >&2; exit 2 ;;
    *) die "no command '$1'; see card.sh --help" ;;
    esac
}

main "$@"; exit  # on one line: of a script that was changed meanwhile the shell would read on
