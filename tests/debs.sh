#!/bin/sh
# Tests the Debian packages: tests/debs.sh [--twice] [FOLDER]. Builds them (tools/setup.sh debs, minutes) unless a folder has them, and runs lintian.
# Then installs them into a clean Debian 12 (debootstrap), in which the example of README.md is compiled and run, a Python program runs,
# the programs start and their options are completed. Afterwards removes the packages: no file may be left. Needs root, for chroot.
# The clean system is kept in build/debs. --twice: also makes the source archive twice, which must give equal bytes, and the packages once
# more, from the archive in another folder and without ccache (minutes): they must have equal bytes too.
set -eu

die() {
  echo "debs.sh: $*" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || die "needs root"
debs=
twice=
for argument in "$@"; do
  case $argument in
    --twice) twice=1 ;;
    -*) die "no option $argument" ;;
    *) debs=$(realpath "$argument") ;;
  esac
done
cd "$(dirname "$0")/.."
tools/setup.sh deps-debs
work=$PWD/build/debs
mkdir -p "$work"
if [ -z "$debs" ]; then
  debs=$work/packages
  rm -rf "$debs"
  tools/setup.sh debs "$debs"
fi
[ "$(find "$debs" -name '*.deb' | wc -l)" -eq 5 ] || die "not five packages in $debs"
for package in "$debs"/*.deb; do
  echo "debs.sh: $(basename "$package"), $(du -k "$package" | cut -f1) KiB, needs $(dpkg-deb -f "$package" Depends)"
done
lintian --allow-root --fail-on error,warning "$debs"/*.deb || die "lintian has complaints"
echo "debs.sh: lintian is content"

if [ -n "$twice" ]; then
  git diff --quiet HEAD || die "--twice needs a tree without changes"
  other="$work/another-folder"
  rm -rf "$work/clone" "$work/archive" "$other"
  git clone -q . "$work/clone"
  tools/setup.sh source "$work/archive/first"
  "$work/clone/tools/setup.sh" source "$work/archive/second"
  file=$(cd "$work/archive/first" && ls)
  cmp "$work/archive/first/$file" "$work/archive/second/$file" || die "two source archives differ"
  mkdir "$other"
  tar -xzf "$work/archive/first/$file" -C "$other" --strip-components=1
  (cd "$other" && CCACHE_DISABLE=1 SOURCE_DATE_EPOCH=$(git -C "$work/clone" log -1 --format=%ct) tools/setup.sh debs "$work/archive/debs") \
    >"$work/twice.log" 2>&1 || { tail -n 30 "$work/twice.log" >&2; die "building from the archive failed"; }
  for package in "$debs"/*.deb; do
    cmp "$package" "$work/archive/debs/$(basename "$package")" || die "two builds differ"
  done
  rm -rf "$work/clone" "$other"
  echo "debs.sh: two source archives have equal bytes, and two builds in two folders too"
fi

packages="ca-certificates gcc libc6-dev pkg-config bash-completion"
if [ "$(cat "$work/clean.made" 2>/dev/null)" != "$packages" ]; then
  rm -rf "$work/clean" "$work/clean.made"
  debootstrap --variant=minbase --include="$(echo "$packages" | tr ' ' ,)" bookworm "$work/clean" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
  echo "$packages" >"$work/clean.made"
fi
rm -rf "$work/root"
cp -a "$work/clean" "$work/root"
mkdir "$work/root/test"
cp "$debs"/*.deb "$work/root/test/"
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;/^```$/,$d' >"$work/root/test/sum.c"
line=$(sed -n 's/^    \(cc sum\.c .*\)$/\1/p' README.md)
[ -n "$line" ] || die "README.md has no line that compiles sum.c"
cp /etc/resolv.conf "$work/root/etc/resolv.conf"

cat >"$work/root/test/inside.sh" <<END
#!/bin/bash
# In the clean system.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root
cd /test
files() {
  find / -xdev \( -path /proc -o -path /test -o -path /tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg \
    -o -path /dev \) -prune -o -print | sort
}
apt-get -q update >apt.log 2>&1
files >before
apt-get -q install -y --no-install-recommends ./*.deb >>apt.log 2>&1 || { tail -n 30 apt.log; exit 1; }

[ "\$($line | grep -c '4 8 12 16')" -eq 4 ]
echo "debs.sh: README.md's example works on four ranks"
[ "\$(entrain-run -n 2 -- python3 /usr/share/doc/python3-entrain/examples/01_all_reduce.py | grep -c '3. 3. 3. 3.')" -eq 2 ]
[ "\$(python3 -c 'import importlib.metadata as m; print(m.version("entrain"))')" = "\$(dpkg-query -W -f '\${Version}' python3-entrain)" ]
echo "debs.sh: a Python program works on two ranks"
for program in entrain-run entrain-perf entrain-train; do
  \$program --help >help
  [ "\$(\$program --version)" = "\$program \$(dpkg-query -W -f '\${Version}' libentrain1)" ]
  [ -s /usr/share/man/man1/\$program.1.gz ]
done
entrain-perf all_reduce -n 2 --transport shm,tcp --max-bytes 4K >perf
for program in entrain-top entrain-plan; do
  \$program --help | grep -q "usage: \$program"
  [ -s /usr/share/man/man1/\$program.1.gz ]
done
entrain-plan --params 7B --layers 32 --replicas 8 | grep -q '^Take '
entrain-run -n 2 -- sh -c 'entrain-perf all_reduce --min-bytes 64M --budget 8 >perf.\$RANK & sleep 3; [ \$RANK = 1 ] || entrain-top --once >top; wait'
[ "\$(sed -n '/^entrain-perf/,/^\$/p' top | grep -c '^ *[01] .*\(waits\|computes\)')" -eq 2 ] || { cat top; exit 1; }
# As an interactive shell completes "entrain-train --method ed" and "entrain-run --el".
completed() {
  bash -c 'set +u; . /usr/share/bash-completion/bash_completion; _completion_loader "\$1"; complete -p "\$1" >/dev/null || exit 1
    COMP_WORDS=("\$@") COMP_CWORD=\$((\$# - 1)) COMP_LINE="\$*" COMP_POINT=\${#COMP_LINE}; _entrain "\$1" "\${!#}" "\${COMP_WORDS[COMP_CWORD - 1]}"
    printf "%s\n" "\${COMPREPLY[@]}" | sort -u' - "\$@" 2>/dev/null
}
[ "\$(completed entrain-train --method ed)" = edit ]
[ "\$(completed entrain-run --el)" = --elastic ]
[ "\$(completed entrain-perf all_g)" = all_gather ]
echo "debs.sh: the programs start, and their options are completed"

apt-get -q purge -y libentrain1 libentrain-dev entrain-tools entrain-train python3-entrain >>apt.log 2>&1
apt-get -q autoremove -y --purge >>apt.log 2>&1
files >after
if ! diff before after; then
  echo "debs.sh: these files differ after the removal" >&2
  exit 1
fi
echo "debs.sh: nothing is left after the removal"
END
# /dev/shm is for shared memory. All mounts and processes end with the namespaces.
unshare --mount --ipc --pid --fork sh -c "mount -t proc proc '$work/root/proc' && mount -t tmpfs tmpfs '$work/root/dev/shm' &&
  exec chroot '$work/root' bash /test/inside.sh" || die "a check in the clean system failed; it is in $work/root"
rm -rf "$work/root"
echo "debs.sh: passed"
