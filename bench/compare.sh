#!/bin/sh
# Compares Entrain with Open MPI, MPICH, Gloo and a bare exchange on this machine. Installs and builds missing parts,
# prints the limits of the machine, then runs compare.py with the arguments given here. --quick takes some four minutes,
# the full set more than half an hour; --help describes the other arguments.
set -eu
cd "$(dirname "$0")/.."

tools/setup.sh deps-bench
tools/setup.sh build release tools/all bench/all
case " $* " in
  *" --help "* | *" -h "* | *" --read "*) ;; # nothing is measured
  *) build/release/bench/limits_bench ;;
esac
exec /usr/bin/python3 -B bench/compare.py "$@"
