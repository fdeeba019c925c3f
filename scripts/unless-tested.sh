#!/bin/sh
# unless-tested.sh NAME COMMAND...: runs COMMAND, unless it has passed on just these sources, engine and settings.
#
# The go command keeps results of tests that it starts itself, but not of those that run through -exec, and it does not know
# which programs an end-to-end test starts. This does the same by one sum over every source file and the bundle's manifest.
# HEARTH_TEST_AGAIN=1 runs the command whatever passed before.
set -eu
name=$1
shift
mkdir -p build/tested
sum=$({
	git ls-files -co --exclude-standard -z -- '*.go' '*.c' '*.cpp' '*.h' '*.proto' '*.txt' '*.jinja' '*.json' go.mod go.sum engine.lock Makefile CMakeLists.txt |
		LC_ALL=C sort -z | xargs -0 sha256sum 2>/dev/null
	cat build/engine/default/engine.json 2>/dev/null
	env | grep '^HEARTH_TEST_' | LC_ALL=C sort
	echo "$@"
} | sha256sum)
if [ "${HEARTH_TEST_AGAIN:-}" = "" ] && [ "$(cat "build/tested/$name" 2>/dev/null)" = "$sum" ]; then
	echo "$name: passed on these sources before (HEARTH_TEST_AGAIN=1 runs it again)"
	exit 0
fi
"$@"
printf '%s\n' "$sum" >"build/tested/$name"
