#!/bin/sh
# The wheel, as a stranger gets it: tests/wheel.sh [--sdist] [--torch] [WHEEL]. Builds the wheel unless one is given (tools/setup.sh
# wheel, minutes), and checks its tag, its files and its metadata. Installs it into an empty virtual environment for each Python that is
# found, and runs the demo, the examples, a job with TLS and the programs in one of them. Nothing is on their path but that environment's
# programs: no compiler, no tool of the system, not this repository. --sdist also builds the source distribution and installs from it
# (minutes). --torch also installs the PyTorch and the JAX that tests/python/requirements-torch.txt names (hundreds of megabytes) and
# runs the examples that need them.
set -eu

die() {
  echo "wheel.sh: $*" >&2
  exit 1
}

torch=
sdist=
wheel=
for argument in "$@"; do
  case $argument in
    --torch) torch=1 ;;
    --sdist) sdist=1 ;;
    -*) die "no option $argument" ;;
    *) wheel=$(realpath "$argument") ;;
  esac
done
cd "$(dirname "$0")/.."
for tool in cmake git openssl readelf; do
  command -v $tool >/dev/null || die "needs $tool"
done
[ -z "$wheel" ] || [ -x build/wheel-tools/bin/twine ] || die "needs build/wheel-tools, which tools/setup.sh wheel makes"
work=$PWD/build/wheel-test
rm -rf "$work"
mkdir -p "$work"
glibc=2.28
version=$(sed -n 's/^project(entrain VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

if [ -z "$wheel" ]; then
  tools/setup.sh wheel "$work/wheels"
  wheel=$(find "$work/wheels" -name 'entrain-*.whl')
fi
[ -f "$wheel" ] || die "no wheel in $work/wheels"
[ "$(basename "$wheel")" = "entrain-$version-py3-none-manylinux_$(echo $glibc | tr . _)_$(uname -m).whl" ] || die "wrong tag: $wheel"
echo "wheel.sh: $(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"

# The files need glibc alone, of the tag's version or an earlier one, and the library exports its own functions alone.
python3 -m zipfile -e "$wheel" "$work/files"
package=$work/files/entrain
information=$work/files/entrain-$version.dist-info
for file in lib/libentrain.so.1 bin/entrain-run bin/entrain-perf; do
  [ -f "$package/$file" ] || die "$file is absent"
  newest=$(readelf -VW "$package/$file" | sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
  printf '%s\n' "$newest" $glibc | sort -VC || die "$file needs glibc $newest"
  for name in $(readelf -dW "$package/$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $name in
      libc.so.6 | libm.so.6 | libdl.so.2 | librt.so.1 | libpthread.so.0 | ld-linux*) ;;
      libentrain.so.1) [ $file = bin/entrain-perf ] || die "$file needs $name" ;;
      *) die "$file needs $name" ;;
    esac
  done
  # A memcpy of the compiler's would be slower than glibc's.
  readelf --dyn-syms -W "$package/$file" | grep -q ' UND memcpy@GLIBC' || die "$file does not use glibc's memcpy"
  ! grep -qF "$PWD" "$package/$file" || die "$file names a folder of this machine"
  echo "wheel.sh: $file, $(du -k "$package/$file" | cut -f1) KiB, needs glibc $newest"
done
strangers=$(readelf --dyn-syms -W "$package/lib/libentrain.so.1" | awk '$7 != "UND" && $5 == "GLOBAL" {print $8}' |
  grep -v '^entrain_\|^ENTRAIN_' || true)
[ -z "$strangers" ] || die "libentrain.so.1 exports $strangers"

for line in "Version: $version" 'License-Expression: Apache-2.0' 'License-File: LICENSE' 'Author: The Entrain developers' \
  'Maintainer-Email: The Entrain maintainers <maintainers@entrain.invalid>' 'Project-URL: Documentation, https://entrain.invalid/docs/' \
  'Requires-Python: >=3.9' 'Classifier: Typing :: Typed' 'Description-Content-Type: text/markdown' 'Provides-Extra: torch'; do
  grep -qxF "$line" "$information/METADATA" || die "METADATA has no line '$line'"
done
# Abseil, OpenSSL, the C++ library and header libraries are inside, and their licences ask for their text.
for name in LICENSE abseil.txt openssl.txt libcxx.txt zig.txt nlohmann-json3-dev.txt libcli11-dev.txt; do
  [ -s "$information/licenses/$name" ] || die "the licence $name is absent"
done
build/wheel-tools/bin/twine check --strict "$wheel" || die "twine does not accept the wheel"

# Makes an environment with a package: install PYTHON FOLDER PACKAGE [PIP'S ARGUMENTS]
install() {
  python=$1 folder=$2
  shift 2
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@" || die "pip cannot install $*"
}

# Loads the library and makes a call, in a folder where there is no other entrain.
try() { # FOLDER
  (cd "$work" && env -u ENTRAIN_LIBRARY -u PYTHONPATH -u LD_LIBRARY_PATH OMP_NUM_THREADS=1 "$1/bin/entrain-run" -n 2 -- \
    "$1/bin/python" 01_all_reduce.py) >"$1.log" 2>&1 || { cat "$1.log" >&2; die "01_all_reduce.py failed in $1"; }
}

cp examples/python/*.py README.md "$work/"
if [ -n "$sdist" ]; then
  build/wheel-tools/bin/python -m build --sdist -o "$work/sdist" . >"$work/sdist.log" 2>&1 || { cat "$work/sdist.log" >&2; die "no sdist"; }
  file=$work/sdist/entrain-$version.tar.gz
  build/wheel-tools/bin/twine check --strict "$file" || die "twine does not accept the source distribution"
  tar -tzf "$file" | sed "s|^entrain-$version/||" | sort >"$work/sdist.txt"
  # Nothing of what the build reads is missing, and nothing else but a few files is there.
  git ls-files CMakeLists.txt LICENSE README.md SECURITY.md cmake collectives docs/*.md examples/*.* examples/python examples/trainer include lib \
    pyproject.toml python tools transports | grep -v '^examples/report' | sort >"$work/wanted.txt"
  missing=$(comm -13 "$work/sdist.txt" "$work/wanted.txt")
  [ -z "$missing" ] || die "the source distribution lacks $missing"
  strangers=$(grep -E '^(build|tests|bench|\.ci|\.git|docs/lab|examples/results)(/|$)' "$work/sdist.txt" || true)
  [ -z "$strangers" ] || die "the source distribution has $strangers"
  echo "wheel.sh: $(basename "$file"), $(du -k "$file" | cut -f1) KiB, $(wc -l <"$work/sdist.txt") files"
  # With this system's compiler and libraries.
  install python3 "$work/env-sdist" "$file"
  try "$work/env-sdist"
  echo "wheel.sh: the package built from $(basename "$file") works"
fi

# Where packages are missing, the error names all of them.
if cmake -S . -B "$work/missing" -DENTRAIN_TESTS=OFF -DENTRAIN_EXAMPLES=OFF -DENTRAIN_BENCH=OFF -DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_absl=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON \
  >"$work/missing.log" 2>&1; then
  die "CMake misses no package"
fi
for name in libssl-dev libabsl-dev libcli11-dev nlohmann-json3-dev; do
  grep -q "(Debian: $name)" "$work/missing.log" || { cat "$work/missing.log" >&2; die "CMake's error does not name $name"; }
done

# Every version of Python that is found.
versions=$(pyenv root 2>/dev/null || echo /nowhere)/versions
tried=
for python in python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 "$versions"/3.*/bin/python3; do
  "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 || continue
  name=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  case " $tried " in *" $name "*) continue ;; esac
  install "$python" "$work/env-$name" "$wheel"
  try "$work/env-$name"
  tried="$tried $name"
done
echo "wheel.sh: works with Python$tried"

# As examples and programs are run by hand. The keys and certificates are for the job with TLS.
install python3 "$work/env" "$wheel" ${torch:+-r tests/python/requirements-torch.txt}
cd "$work"
umask 077
openssl rand -hex 32 >key
for name in authority stranger; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$name" -keyout $name.key -out $name.pem 2>openssl.log
done
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=rank -keyout rank.key -out rank.csr 2>>openssl.log
openssl x509 -req -in rank.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -out rank.pem 2>>openssl.log
umask 022
limit=$(command -v timeout)
PATH=$work/env/bin
export PATH
for tool in cc gcc c++ g++ clang ld as make cmake python3-config; do
  ! command -v $tool || die "$tool is on the path"
done
unset ENTRAIN_LIBRARY PYTHONPATH LD_LIBRARY_PATH 2>/dev/null || true
# As torchrun does; ranks share the cores.
export OMP_NUM_THREADS=1

# example RANKS FILE [ARGUMENT...]
example() {
  ranks=$1
  shift
  echo "wheel.sh: $*"
  "$limit" 300 entrain-run -n "$ranks" -- python "$@" || die "$1 failed"
}

# libentrain.so of the wheel, and no other.
python -c 'import entrain; print("wheel.sh: entrain", entrain.__version__, "from", entrain.__file__)'
entrain-run --help >help || die "entrain-run does not start"
entrain-top --help >help || die "entrain-top does not start"
"$limit" 300 entrain-perf all_reduce -n 2 --transport shm,tcp --min-bytes 1K --max-bytes 16M || die "entrain-perf failed"
"$limit" 300 python -m entrain.demo || die "the demo failed"
[ -s entrain-demo.svg ] || die "the demo made no picture"
example 2 01_all_reduce.py
example 2 02_numpy_edit.py
(
  export ENTRAIN_TRANSPORTS=tcp ENTRAIN_TLS=all
  ENTRAIN_KEY_FILE=key example 2 01_all_reduce.py
  export ENTRAIN_TLS_CERT=rank.pem ENTRAIN_TLS_KEY=rank.key ENTRAIN_TLS_CA=authority.pem
  example 2 01_all_reduce.py
  # The ranks' certificates are not of the authority that they ask for.
  ! ENTRAIN_TLS_CA=stranger.pem "$limit" 300 entrain-run -n 2 -- python 01_all_reduce.py >refused 2>&1 || die "a strange certificate was accepted"
  while read -r line; do
    case $line in *certificate*refused* | *unknown\ ca*) echo "wheel.sh: refused, as it must be" && exit 0 ;; esac
  done <refused
  die "the refusal does not name the certificate: see $work/refused"
) || exit 1
if [ -n "$torch" ]; then
  gpt="--data README.md --width 32 --layers 2 --length 32 --batch 4"
  example 2 03_torch_ddp.py
  # $gpt is a list of words.
  # shellcheck disable=SC2086
  example 2 04_torch_edit_gpt.py $gpt --steps 20 --interval 4 --warmup 3
  example 4 05_torch_fsdp2_aedit.py --seconds 6 --sync-time 2.5 --sleep 0.6 --width 32
  # shellcheck disable=SC2086
  example 2 06_torch_acco.py $gpt --steps 30
  example 4 07_resume.py --shards 2 --steps 60 --width 32 --save checkpoint
  example 3 07_resume.py --steps 60 --width 32 --load checkpoint
  example 2 08_jax_edit.py
  example 2 09_jax_acco.py
fi
echo "wheel.sh: passed"
