#!/usr/bin/env bash
# try_install.sh ARCHIVE: installs a wheel or an sdist into a fresh environment and asks it what needs no stack.
set -euo pipefail
archive=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install --quiet "$archive"
venv/bin/rlregress --version
venv/bin/rlregress list --brief | tail -1
echo "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task" >train.log
echo "Worker exit detail: Owner's node has crashed" >>train.log
venv/bin/rlregress diagnose train.log >diagnosed || [ $? -eq 1 ] # 1: it found something
grep raylet-crash: diagnosed
venv/bin/pytest --hw=list -p no:cacheprovider >profiles
grep "NVIDIA H100" profiles
echo "installs and answers: $(basename "$archive")"
