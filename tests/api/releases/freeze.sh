#!/bin/sh
# Keeps the ABI of a release that is about to be made: tests/api/releases/freeze.sh, once for each x.y.0. Later libraries
# of the major version are tested against the copies, so the code in them is never changed.
set -eu
cd "$(dirname "$0")/../../.."
version=$(sed -n 's/^project(entrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
folder=tests/api/releases/$version
[ ! -e "$folder" ] || { echo "freeze.sh: $folder exists" >&2 && exit 1; }
case $version in
  *.*.0) ;;
  *) echo "freeze.sh: $version adds nothing to the ABI" >&2 && exit 2 ;;
esac
mkdir -p "$folder/entrain" "$folder/examples"
cp include/entrain/*.h "$folder/entrain/"
cp examples/0[1245]_*.c "$folder/examples/"
cp tests/api/exported_symbols.txt "$folder/"
