#!/bin/sh
# Prepares a Debian machine and builds. Fast if there is nothing to do.
#
#   tools/setup.sh deps           installs the packages for building and testing that are absent
#   tools/setup.sh deps-demo      those for examples/demo.sh: for building, a text to learn, matplotlib
#   tools/setup.sh list-demo      prints those of them that are absent
#   tools/setup.sh deps-compare   as deps, and those for examples/compare.sh: a text to learn, a progress bar
#   tools/setup.sh deps-bench     as deps, and those for bench/compare.sh: peers to measure
#   tools/setup.sh deps-debs      those for tools/setup.sh debs and tests/debs.sh
#   tools/setup.sh deps-neon      a cross compiler and an emulator for tests/neon.sh
#   tools/setup.sh deps-fuzz      as deps, and the compiler for tests/fuzz.sh
#   tools/setup.sh python [torch|frameworks]
#                                 makes a virtual environment, build/python, for tests/python; torch: also
#                                 for its tests of PyTorch and JAX (CPU builds, hundreds of megabytes);
#                                 frameworks: one of its own, build/frameworks, for with_frameworks
#   tools/setup.sh site           makes a virtual environment, build/site-python, for docs/site.sh
#   tools/setup.sh etcd           gets Debian's etcd to build/etcd, for tests. It is not installed, because the
#                                 package starts a server
#   tools/setup.sh abseil         gets Debian's source of Abseil to build/abseil, to build it into the library
#   tools/setup.sh install DIR    builds the library and its programs with Abseil inside, and installs
#                                 them to DIR
#   tools/setup.sh debs DIR       builds Debian packages of this system to DIR
#   tools/setup.sh source DIR     writes the source archive of the last commit to DIR
#   tools/setup.sh wheel DIR      builds the Python package with the library and its programs inside, to DIR, for
#                                 systems with glibc 2.28 or later
#   tools/setup.sh build PRESET [TARGET...]
#                                 configures and builds a preset of CMakePresets.json (dev, release, asan, ...)
set -eu
cd "$(dirname "$0")/.."

# What the library, the programs and the trainer are built with.
deps_build="cmake ninja-build gcc g++ pkg-config binutils libabsl-dev libssl-dev zlib1g-dev libopenblas-serial-dev libcli11-dev nlohmann-json3-dev
libboost-dev"
deps="$deps_build libgtest-dev libgmock-dev libbenchmark-dev libgloo-dev libucx-dev libcurl4-openssl-dev python3-yaml python3-sklearn
python3-matplotlib python3-venv"
deps_demo="$deps_build python3-matplotlib dict-gcide"
deps_compare="$deps dict-gcide python3-tqdm"
# The tests start ranks by both mpirun, and the benchmarks measure both.
deps_mpi="libopenmpi-dev openmpi-bin libmpich-dev mpich"
deps_bench="openssl"
deps_wheel="cmake ninja-build gcc binutils make perl libcli11-dev nlohmann-json3-dev libucx-dev libcurl4-openssl-dev python3-venv"
deps_debs="$deps_build libucx-dev libcurl4-openssl-dev help2man dpkg-dev file python3-cffi-backend python3-numpy"
deps_debs_test="lintian debootstrap util-linux"
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
    die "pip install failed for what these files list: $lists. If torch is among it: pip must be configured to find its CPU build"
  # shellcheck disable=SC2086
  cat $lists >"$1/installed.txt"
}

# Gets the distribution's source package $1 with its patches to build/$1. Keeps its package index in a folder of our own, so
# that the system's list of sources does not change.
source_package() {
  [ ! -e "build/$1/debian/changelog" ] || return 0
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
  options="-q -o Dir::Etc::SourceList=$work/none.list -o Dir::Etc::SourceParts=$work/parts
    -o Dir::State::Lists=$work/lists -o Dir::Cache::Archives=$work/archives -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=
    -o APT::Sandbox::User=$(id -un)"
  # $options and $versions are lists of words.
  # shellcheck disable=SC2086
  {
    apt-get $options update >"$work/log" 2>&1 || { cat "$work/log" >&2; die "no sources of Debian's packages"; }
    versions=$(apt-cache $options showsrc --only-source "$1" | sed -n 's/^Version: //p' | sort -rV)
    # A mirror may list a version before it has its files, so the versions before the newest follow.
    for version in $versions; do
      ! (cd "$work" && apt-get $options source "$1=$version") >>"$work/log" 2>&1 || break
      echo "setup.sh: $1 $version cannot be fetched" >&2
    done
  }
  rm -rf "build/$1"
  mv "$work/$1"-*/ "build/$1" || { cat "$work/log" >&2; die "no source of $1"; }
  rm -rf "$work"
}

etcd() {
  [ ! -x build/etcd/usr/bin/etcd ] && [ ! -x /usr/bin/etcd ] || return 0
  rm -rf build/etcd
  mkdir -p build/etcd
  (cd build/etcd && { apt-get -q download etcd-server || { apt-get -q update && apt-get -q download etcd-server; }; } &&
    dpkg -x etcd-server_*.deb .) >build/etcd.log 2>&1 ||
    { cat build/etcd.log >&2; die "no package etcd-server"; }
}

# Makes the compiler of the wheel in build/wheel-$machine/bin. It is Zig's: clang with the headers and symbols of every glibc. So
# the wheel runs with a glibc older than this system's.
wheel_compiler() {
  cmp -s tools/wheel_requirements.txt build/wheel-tools/installed.txt || {
    lists=tools/wheel_requirements.txt
    virtual_environment build/wheel-tools
  }
  machine=$(uname -m)
  here=$PWD/build/wheel-$machine
  zig=$(build/wheel-tools/bin/python -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')
  mkdir -p "$here/bin"
  for tool in ar ranlib; do
    printf '#!/bin/sh\nexec "%s/zig" %s "$@"\n' "$zig" $tool >"$here/bin/$tool"
  done
  # Debian's Abseil asks for libatomic, with options that Zig's linker does not know. Zig has the functions in a library of its own.
  for tool in cc c++; do
    cat >"$here/bin/$tool" <<END
#!/bin/sh
for argument; do
  shift
  case \$argument in
    -Wl,--push-state* | -latomic | -Wl,--pop-state) ;;
    *) set -- "\$@" "\$argument" ;;
  esac
done
exec "$zig/zig" $tool -target $machine-linux-gnu.2.28 "-ffile-prefix-map=$PWD/=" "\$@"
END
  done
  chmod +x "$here"/bin/*
  export ZIG_GLOBAL_CACHE_DIR="$PWD/build/wheel-tools/cache" ZIG_LOCAL_CACHE_DIR="$PWD/build/wheel-tools/cache"
}

# Puts what is linked into the wheel, or compiled into it as headers, into build/wheel-$machine/root: OpenSSL, compiled here
# because Debian's needs a newer glibc, and headers of Debian's packages. Their licences go to build/wheel-$machine/licenses.
wheel_root() {
  openssl=$(sed -n '1s/.*(\(.*\)).*/\1/p' build/openssl/debian/changelog)
  made="OpenSSL $openssl by Zig $("$zig/zig" version)"
  [ "$(cat "$here/root/made" 2>/dev/null)" != "$made" ] || return 0
  echo "setup.sh: building $made"
  rm -rf "$here/root" "$here/openssl" "$here/licenses"
  mkdir -p "$here/root/usr/lib" "$here/openssl" "$here/licenses"
  # A configuration file of the system may be for another version of OpenSSL, so none is read.
  (cd "$here/openssl" && CC=$here/bin/cc AR=$here/bin/ar RANLIB=$here/bin/ranlib ../../openssl/Configure "linux-$machine" --release \
    no-shared no-module no-legacy no-engine no-tests no-autoload-config no-cmp no-cms no-ct no-dtls no-srp no-ts &&
    make -j"$(nproc)" build_libs) >"$here/openssl.log" 2>&1 || { tail -n 50 "$here/openssl.log" >&2; die "building OpenSSL failed"; }
  mv "$here/openssl/libssl.a" "$here/openssl/libcrypto.a" "$here/root/usr/lib/"
  packages="libcli11-dev libcurl4-openssl-dev libucx-dev nlohmann-json3-dev"
  # shellcheck disable=SC2086
  dpkg -L $packages | grep -E '^/usr/(include|share/cmake)/.*\.(cmake|h|hpp)$' | tar -C / -cf - -T - | tar -C "$here/root" -xf -
  mv "$here/root"/usr/include/*-linux-gnu/curl "$here/root/usr/include/"
  cp -r build/openssl/include/openssl "$here/root/usr/include/"
  cp "$here"/openssl/include/openssl/*.h "$here/root/usr/include/openssl/"
  for package in $packages; do
    cp "/usr/share/doc/$package/copyright" "$here/licenses/$package.txt"
  done
  cp build/abseil/LICENSE "$here/licenses/abseil.txt"
  cp build/openssl/LICENSE.txt "$here/licenses/openssl.txt"
  cp "$zig/lib/libcxx/LICENSE.TXT" "$here/licenses/libcxx.txt"
  cp "$zig/LICENSE" "$here/licenses/zig.txt"
  echo "$made" >"$here/root/made"
}

# Builds the wheel. auditwheel checks that it runs with glibc 2.28 alone, and tags it.
wheel() {
  wheel_compiler
  wheel_root
  # GCC's runtime library is linked in place of Zig's, which costs speed without a word: its __builtin_cpu_supports always says no,
  # so the library would not use AVX, and its memcpy replaces glibc's.
  cp "$(gcc -print-libgcc-file-name)" "$here/libgcc.a"
  cat >"$here/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $machine)
set(CMAKE_C_COMPILER "$here/bin/cc")
set(CMAKE_CXX_COMPILER "$here/bin/c++")
set(CMAKE_AR "$here/bin/ar")
set(CMAKE_RANLIB "$here/bin/ranlib")
set(CMAKE_FIND_ROOT_PATH "$here/root")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(OPENSSL_USE_STATIC_LIBS ON)
# Zig's clang does not make precompiled headers.
set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s '$here/libgcc.a'")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s '$here/libgcc.a'")
END
  rm -rf "$here/plain"
  build/wheel-tools/bin/python -m pip wheel -v --disable-pip-version-check --no-deps -w "$here/plain" \
    -C build-dir="$here/cmake" -C install.strip=false -C cmake.define.CMAKE_TOOLCHAIN_FILE="$here/toolchain.cmake" \
    -C cmake.define.ENTRAIN_ABSEIL_SOURCE="$PWD/build/abseil" -C cmake.define.ENTRAIN_UCX=ON -C cmake.define.ENTRAIN_ETCD=ON . ||
    die "building the wheel failed"
  # The licences of what is inside ask for their text.
  build/wheel-tools/bin/python -m wheel unpack -d "$here/plain" "$here"/plain/entrain-*.whl
  cp "$here"/licenses/* "$here"/plain/entrain-*/entrain-*.dist-info/licenses/
  build/wheel-tools/bin/python -m wheel pack -d "$here/plain" "$here"/plain/entrain-*/
  PATH=$PWD/build/wheel-tools/bin:$PATH build/wheel-tools/bin/auditwheel repair --plat "manylinux_2_28_$machine" --only-plat -w "$1" \
    "$here"/plain/entrain-*.whl || die "auditwheel failed"
}

# Builds the Debian packages. SOURCE_DATE_EPOCH, by default the date of the last commit, is the date of all files inside.
debs() {
  export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
  rm -f build/deb/build.ninja  # CMake runs again, because it reads the date
  build deb entrain entrain-run entrain-perf entrain-train manual
  rm -rf build/deb/packages
  cpack --config build/deb/CPackConfig.cmake -B build/deb/packages >build/deb/cpack.log 2>&1 || { cat build/deb/cpack.log >&2; die "cpack failed"; }
  mkdir -p "$1"
  cp build/deb/packages/*.deb "$1"
}

# Writes the source archive. Its bytes depend on the commit alone: the files have the date of the commit, and gzip notes no date.
source_archive() {
  version=$(sed -n 's/^project(entrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  mkdir -p "$1"
  git -c tar.umask=0022 archive --format=tar --prefix="entrain-$version/" HEAD | gzip -9n >"$1/entrain-$version.tar.gz"
}

case "${1:-}" in
  deps)
    # shellcheck disable=SC2086
    install_absent $deps $deps_mpi
    ;;
  deps-demo)
    # shellcheck disable=SC2086
    install_absent $deps_demo
    ;;
  deps-compare)
    # shellcheck disable=SC2086
    install_absent $deps_compare
    ;;
  list-demo)
    # shellcheck disable=SC2086
    absent $deps_demo
    ;;
  deps-bench)
    # shellcheck disable=SC2086
    install_absent $deps $deps_mpi $deps_bench
    ;;
  deps-debs)
    # shellcheck disable=SC2086
    install_absent $deps_debs $deps_debs_test
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
  site)
    lists=docs/site/requirements.txt
    cmp -s $lists build/site-python/installed.txt || virtual_environment build/site-python
    ;;
  etcd)
    etcd
    ;;
  abseil)
    source_package abseil
    ;;
  install)
    [ $# -eq 2 ] || die "install: expected a folder"
    # shellcheck disable=SC2086
    install_absent $deps
    source_package abseil
    build package
    cmake --install build/package --prefix "$2" >build/package/install.log || die "installing to $2 failed"
    ;;
  debs)
    [ $# -eq 2 ] || die "debs: expected a folder"
    # shellcheck disable=SC2086
    install_absent $deps_debs
    debs "$2"
    ;;
  source)
    [ $# -eq 2 ] || die "source: expected a folder"
    source_archive "$2"
    ;;
  wheel)
    [ $# -eq 2 ] || die "wheel: expected a folder"
    # shellcheck disable=SC2086
    install_absent $deps_wheel
    source_package abseil
    source_package openssl
    wheel "$2"
    ;;
  build)
    [ $# -ge 2 ] || die "build: expected a preset"
    shift
    build "$@"
    ;;
  *)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
