#!/bin/sh
# Tests the installed library: installs it with Abseil inside (tools/setup.sh install), and uses it as another project would. The
# library may need only libc, libstdc++, libcrypto and libssl. The example of README.md, compiled and run by the command in README.md,
# must work from a prefix that was moved. Takes minutes the first time.
set -eu
cd "$(dirname "$0")/.."
work=$PWD/build/package-test
rm -rf "$work"
mkdir -p "$work"

die() {
  echo "package.sh: $*" >&2
  exit 1
}

tools/setup.sh install "$work/first"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
library=$(find "$prefix" -name 'libentrain.so')
[ -n "$library" ] || die "no libentrain.so below $prefix"

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
for name in $needed; do
  case $name in
    libc.so.* | libm.so.* | libgcc_s.so.* | ld-linux* | libstdc++.so.* | libcrypto.so.* | libssl.so.*) ;;
    *) die "libentrain.so needs $name" ;;
  esac
done
strangers=$(nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^entrain_\|^ENTRAIN_' || true)
[ -z "$strangers" ] || die "libentrain.so exports $strangers"
echo "package.sh: libentrain.so needs $needed"

# The example of README.md, by the line below it.
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;/^```$/,$d' >"$work/sum.c"
line=$(sed -n 's/^    \(cc sum\.c .*\)$/\1/p' README.md)
[ -n "$line" ] || die "README.md has no line that compiles sum.c"
output=$(cd "$work" && env -u LD_LIBRARY_PATH PKG_CONFIG_PATH="$(dirname "$library")/pkgconfig" PATH="$prefix/bin:$PATH" sh -c "$line") ||
  die "README.md's line failed: $line"
[ "$(echo "$output" | grep -c '4 8 12 16')" -eq 4 ] || die "four ranks printed: $output"
for program in "$prefix"/bin/*; do
  env -u LD_LIBRARY_PATH "$program" --help >"$work/help" 2>&1 || die "$program does not start: $(cat "$work/help")"
done
echo "package.sh: passed ($(ls "$prefix/bin" | tr '\n' ' ')start from a prefix that was moved)"
