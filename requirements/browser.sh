#!/bin/sh
# Installs the browser that the tests of pages open them in, where there is none. Without it they are skipped, or fail
# where CI is set.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
as_root=
[ "$(id -u)" = 0 ] || as_root="sudo -n"
if ! command -v apt-get >/dev/null || ! $as_root true 2>/dev/null; then
    echo "No chromium here, and installing it takes apt-get and root or sudo without a password." >&2
    exit 1
fi
echo "Installing chromium with apt-get"
apt() { $as_root env DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >/dev/null; }
apt update
apt install -y --no-install-recommends chromium
