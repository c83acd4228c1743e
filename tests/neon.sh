#!/bin/sh
# Compiles the loops of lib/kernels and their tests for 64-bit Arm and runs them under an emulator: tests/neon.sh. Installs
# the cross compiler and the emulator if they are absent. Arm's libraries are unpacked into build/neon, not installed.
set -eu
cd "$(dirname "$0")/.."
build=$PWD/build/neon
mkdir -p "$build/lists/partial" "$build/cache/archives/partial"

tools/setup.sh deps-neon

if [ ! -e "$build/root/usr" ]; then
  cat >"$build/apt.conf" <<END
APT::Architectures { "$(dpkg --print-architecture)"; "arm64"; };
APT::Sandbox::User "";
Dir::State::lists "$build/lists";
Dir::Cache "$build/cache";
END
  (
    cd "$build"
    export APT_CONFIG="$build/apt.conf"
    apt-get -q update
    apt-get -q download libabsl-dev:arm64 libgtest-dev:arm64
  )
  for package in "$build"/*_arm64.deb; do
    dpkg-deb -x "$package" "$build/root.part"
  done
  mv "$build/root.part" "$build/root"
fi

# The files that CMake compiles, and their flags.
value() { # NAME: what lib/kernels/CMakeLists.txt sets it to
  found=$(sed -n "s/^set($1 \(.*\))\$/\1/p" lib/kernels/CMakeLists.txt)
  [ -n "$found" ] || { echo "neon.sh: lib/kernels/CMakeLists.txt does not set $1" >&2; exit 1; }
  echo "$found"
}
loops=$(value loop_options)
sources=$(value sources)
# As cmake/EntrainUnits.cmake has them.
common="-std=c++20 -ffp-contract=off -Wall -Wextra -Werror -I. -isystem $build/root/usr/include -DENTRAIN_KERNELS_ARM"

compile() { # SOURCE FLAGS...: the object's name
  source=$1
  shift
  object=$build/$(echo "$source $*" | tr -c 'A-Za-z0-9\n' _).o
  echo "neon.sh: $source" >&2
  # $* and $common are lists of words.
  # shellcheck disable=SC2086
  aarch64-linux-gnu-g++ $common $* -c "$source" -o "$object" || exit 1
  echo "$object"
}

objects=
for source in $sources; do
  case $source in
    packing.cc) flags=$loops ;;
    *) flags=-O2 ;;
  esac
  objects="$objects $(compile "lib/kernels/$source" "$flags")"
done
for flags in -DENTRAIN_KERNELS_ISA=base "-DENTRAIN_KERNELS_ISA=neon -DENTRAIN_NEON"; do
  objects="$objects $(compile lib/kernels/kernels_impl.inc "$loops $flags -x c++")"
done
for source in lib/base/*.cc tests/kernels/*_test.cc; do
  objects="$objects $(compile "$source" -O2)"
done
libraries=$build/root/usr/lib/aarch64-linux-gnu
# shellcheck disable=SC2086
aarch64-linux-gnu-g++ -static $objects "$libraries"/libgtest_main.a "$libraries"/libgtest.a -Wl,--start-group \
  "$libraries"/libabsl_*.a -Wl,--end-group -o "$build/kernels_test"
qemu-aarch64 "$build/kernels_test" --gtest_brief=1
