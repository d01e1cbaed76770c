#!/usr/bin/env bash
# Runs the tests of packages, and nearcall's tour, as Windows programs under Wine, and lists the tests that
# were skipped.
#
#     tools/wine/run.sh [-short] [-tour] PACKAGES
#
# A package is one of the core module, or of the module in a folder of it: ./cmd/nearcall/... Wine's files are in
# WINEPREFIX, which is created if it is missing. It must not be in a checkout: it has a link to the root of the file system.
set -euo pipefail
cd "$(dirname "$0")/../.."

short=() tour=
while [[ ${1-} == -* ]]; do
	case $1 in
	-short) short=(-short) ;;
	-tour) tour=1 ;;
	*) echo "run.sh: no such flag: $1" >&2; exit 2 ;;
	esac
	shift
done

# Debian's wine is a script that complains about missing 32-bit support, and Debian's Wine programs are not in PATH.
export PATH="$PATH:/usr/lib/wine"
find_program() { command -v "$1" || command -v "$2" || { echo "run.sh: there is no $1 (Debian: apt-get install wine64 gcc-mingw-w64-x86-64)" >&2; exit 1; }; }
wine=$(find_program wine64 wine)
server=$(find_program wineserver64 wineserver)
export WINEPREFIX=${WINEPREFIX:-${XDG_CACHE_HOME:-$HOME/.cache}/nearcall-wine} WINEARCH=win64 WINEDEBUG=-all
export WINEDLLOVERRIDES='mscoree=;mshtml=;winemenubuilder.exe=' DISPLAY=
windows=(env GOOS=windows GOARCH=amd64 CGO_ENABLED=0)

version=$("$wine" --version)
if [[ $(cat "$WINEPREFIX/complete" 2>/dev/null) != "$version" ]]; then
	rm -rf "$WINEPREFIX"
	mkdir -p "$WINEPREFIX"
	"$wine" wineboot --init >"$WINEPREFIX/boot.log" 2>&1 || { cat "$WINEPREFIX/boot.log"; exit 1; }
	# Go needs bcryptprimitives.dll, and older versions of Wine lack it.
	dll=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
	test -e "$dll" || x86_64-w64-mingw32-gcc -shared -O2 -Wall -Werror -o "$dll" tools/wine/bcryptprimitives/bcryptprimitives.c -ladvapi32
	"$server" -w
	echo "$version" >"$WINEPREFIX/complete"
fi

# A server that stays until the end: by default it leaves some seconds after the last program, and one that starts in that
# moment loses its connection.
trap '"$server" -k || true; "$server" -w || true' EXIT
"$server" -p
"$wine" wineboot
echo "$version"

failed=
run() { # MODULE PACKAGES...
	local module=$1
	shift
	test $# = 0 || (cd "$module" && go run gotest.tools/gotestsum@v1.13.0 --format pkgname --raw-command -- \
		"${windows[@]}" go test -json -count=1 -exec "$wine" -timeout 10m ${short[@]+"${short[@]}"} "$@") || failed=1
}
core=()
for pattern in "$@"; do
	folder=${pattern%/...}
	if [[ $folder != . && -f $folder/go.mod ]]; then
		run "$folder" ".${pattern#"$folder"}"
	else
		core+=("$pattern")
	fi
done
run . ${core[@]+"${core[@]}"}

if [[ $tour ]]; then
	echo 'nearcall tour, to see that it runs: under Wine its figures say nothing of Windows'
	program=$(mktemp -d)/nearcall.exe
	(cd cmd/nearcall && "${windows[@]}" go build -o "$program" .)
	"$wine" "$program" tour -time 3s || failed=1
	rm -r "$(dirname "$program")"
fi
test -z "$failed"
