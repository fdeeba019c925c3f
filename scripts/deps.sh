#!/bin/sh
# Looks for what `make build` needs besides Go and installs what is missing: with apt as root, otherwise by printing
# the one line to run. Exits 0 when everything is there.
set -eu

missing=
need() { # need PROGRAM PACKAGE
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need cmake cmake
need make make
need g++ g++
need pkg-config pkgconf
need git git
need python3 python3
# The default model comes from a Python package.
python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip"

command -v go >/dev/null 2>&1 || {
	echo "deps: Go 1.24 or newer is needed (it fetches the toolchain that hearth is built with by itself)" >&2
	exit 1
}
# The debian engine source checks signatures with the archive's keys, which other distributions have as a package.
if command -v apt-get >/dev/null 2>&1 && [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
	missing="$missing debian-archive-keyring"
fi
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	echo "deps: please install:$missing" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "deps: please run: sudo apt-get install -y --no-install-recommends$missing" >&2
	exit 1
fi
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists of a fresh machine may be missing or old.
# shellcheck disable=SC2086 # the names are words
if ! apt-get install -y -q --no-install-recommends $missing >"$log" 2>&1; then
	apt-get update -q >>"$log" 2>&1 && apt-get install -y -q --no-install-recommends $missing >>"$log" 2>&1 || {
		tail -n 20 "$log" >&2
		echo "deps: apt-get could not install$missing" >&2
		exit 1
	}
fi
