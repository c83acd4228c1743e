#!/bin/bash
# Emulates a cluster on this machine (as root; iproute2): network namespaces on one bridge, where tbf limits each link in
# both directions. Runs a command once in every node, as rank I of N (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and
# removes everything. Without a command: measures all_reduce of 16 and 64 MiB and compares it with the bound of a ring.
#
#   bench/cluster.sh [--nodes 4] [--rate 1gbit,100mbit] [--connection RATE] [--burst BYTES] [--delay MS]
#                    [--build build/release] [COMMAND ARGUMENTS...]
#
# The bound is the time for 2 (N-1)/N of the bytes at the rate; 1448 of 1514 bytes of a frame are payload. A burst of
# 256 KiB passes without a limit, so smaller messages are not limited, and 1 MiB is limited a little less than the
# rate says. --connection: limits each connection, as clouds do (a connection has one of 256 classes by the sum of its
# ports, so two of many may share a class). --delay: adds MS milliseconds to the round trip between any two nodes
# (delay_frames.cc; needs no netem). Traffic is plain (ENTRAIN_INSECURE=1), unless ENTRAIN_KEY_FILE names a key.
set -eu
cd "$(dirname "$0")/.."

nodes=4 rates=1gbit,100mbit connection= burst=262144 delay=0 build=build/release
while [ $# -gt 0 ]; do
  case $1 in
    --nodes | --rate | --connection | --burst | --delay | --build)
      [ $# -gt 1 ] || { echo "cluster.sh: $1: needs a value" >&2; exit 2; }
      case $1 in
        --nodes) nodes=$2 ;; --rate) rates=$2 ;; --connection) connection=$2 ;; --burst) burst=$2 ;; --delay) delay=$2 ;;
        --build) build=$2 ;;
      esac
      shift 2 ;;
    --help | -h) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "cluster.sh: $1: no such option" >&2; exit 2 ;;
    *) break ;;
  esac
done
case $nodes in *[!0-9]* | '' | 0 | 1) echo "cluster.sh: --nodes: \"$nodes\" is not a number above 1" >&2; exit 2 ;; esac
[ "$nodes" -le 64 ] || { echo "cluster.sh: --nodes: $nodes is more than 64" >&2; exit 2; }
case $burst in *[!0-9]* | '' | 0) echo "cluster.sh: --burst: \"$burst\" is not a number of bytes" >&2; exit 2 ;; esac
case $delay in *[!0-9]* | '') echo "cluster.sh: --delay: \"$delay\" is not a number of milliseconds" >&2; exit 2 ;; esac
check_rate() { # OPTION RATE
  [[ $2 =~ ^[0-9]+(\.[0-9]+)?[kmg]bit$ && $2 =~ [1-9] ]] ||
    { echo "cluster.sh: $1: \"$2\" is not a rate as 1gbit, 100mbit" >&2; exit 2; }
}
while IFS= read -r rate; do check_rate --rate "$rate"; done <<< "${rates//,/$'\n'}"
[ -z "$connection" ] || check_rate --connection "$connection"

name=ent$$
switch=${name}s
results=$(mktemp)
ranks=() forwarder=
down() {
  trap - EXIT
  for rank in ${ranks[@]+"${ranks[@]}"} $forwarder; do kill "$rank" 2> /dev/null || true; done
  wait || true
  for ((i = 0; i < nodes; ++i)); do ip netns del "$name-$i" 2> /dev/null || true; done
  ip netns del "$switch" 2> /dev/null || true
  rm -f "$results"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

up() {
  ip netns add "$switch"
  ip -n "$switch" link add bridge type bridge
  ip -n "$switch" link set bridge up
  for ((i = 0; i < nodes; ++i)); do
    ip netns add "$name-$i"
    local outer=port$i # the link's end in the switch's namespace; with a delay, delay-frames connects it to port$i
    if [ "$delay" -gt 0 ]; then
      outer=near$i
      ip -n "$switch" link add "far$i" type veth peer name "port$i"
      ip -n "$switch" link set "far$i" up
    fi
    ip link add eth0 netns "$name-$i" type veth peer name "$outer" netns "$switch"
    ip -n "$switch" link set "$outer" up
    ip -n "$switch" link set "port$i" master bridge
    ip -n "$switch" link set "port$i" up
    ip -n "$name-$i" link set lo up
    ip -n "$name-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
    ip -n "$name-$i" link set eth0 up
  done
}

# Starts delay-frames. A frame and its answer each pass two pairs of interfaces. So each pair delays a frame by a quarter
# of the round trip.
lengthen() {
  local pairs=() i
  for ((i = 0; i < nodes; ++i)); do pairs+=("near$i:far$i"); done
  coproc FORWARDER { exec ip netns exec "$switch" "$build/bench/delay-frames" $((delay * 250)) "${pairs[@]}"; }
  forwarder=$FORWARDER_PID
  local said=
  read -r said <&"${FORWARDER[0]}" || true
  [ "$said" = ready ] || { echo "cluster.sh: --delay: $build/bench/delay-frames does not forward" >&2; exit 1; }
}

each_connection() { # RATE; prints commands for tc
  echo "qdisc replace dev eth0 root handle 1: htb default 2 r2q 1000"
  echo "class add dev eth0 parent 1: classid 1:1 htb rate $1 burst $burst"
  echo "class add dev eth0 parent 1:1 classid 1:2 htb rate $1 burst $burst"
  local class
  for ((class = 256; class < 512; ++class)); do
    printf 'class add dev eth0 parent 1:1 classid 1:%x htb rate %s burst %s\n' "$class" "$connection" "$burst"
  done
  # Computes the class of a packet: 1:100 plus the lower byte of (source port + destination port). Expects no IP options
  # in the packet.
  echo 'filter add dev eth0 parent 1: prio 1 protocol ip bpf bytecode' \
    '"7,40 0 0 34,7 0 0 0,40 0 0 36,12 0 0 0,84 0 0 255,68 0 0 65792,22 0 0 0"'
}

shape() { # RATE
  # A packet waits at most this long in a queue of tbf. Slow links get more time.
  local latency=50ms
  case $1 in *kbit | ?mbit | ??mbit | 100mbit) latency=200ms ;; esac
  for ((i = 0; i < nodes; ++i)); do
    if [ -n "$connection" ]; then
      each_connection "$1" | tc -n "$name-$i" -batch -
    else
      tc -n "$name-$i" qdisc replace dev eth0 root tbf rate "$1" burst "$burst" latency "$latency"
    fi
    tc -n "$switch" qdisc replace dev "port$i" root tbf rate "$1" burst "$burst" latency "$latency"
  done
}

export ENTRAIN_INSECURE=${ENTRAIN_INSECURE:-1}
exec 3>&1 4> /dev/null
run() { # COMMAND...; only rank 0 writes to stdout. Fails if a rank fails.
  ranks=()
  for ((i = 0; i < nodes; ++i)); do
    RANK=$i WORLD_SIZE=$nodes LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29400 \
      ip netns exec "$name-$i" "$@" >&$((i == 0 ? 3 : 4)) &
    ranks+=($!)
  done
  local code=0
  for rank in "${ranks[@]}"; do wait "$rank" || code=$?; done
  ranks=()
  return $code
}

beside_bound() { # RATE
  python3 - "$results" "$1" "$nodes" << 'END'
import json, re, sys
number, unit = re.fullmatch(r"([\d.]+)([kmg])bit", sys.argv[2]).groups()
rate = float(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit] / 8 * 1448 / 1514
nodes = int(sys.argv[3])
for line in map(json.loads, open(sys.argv[1])):
    bound = 2 * (nodes - 1) / nodes * line["bytes"] / rate
    seconds = line["median_us"] * 1e-6
    print(f"| {sys.argv[2]} | {nodes} | {line['bytes'] >> 20} MiB | {line['algorithm']} | {seconds * 1e3:.1f} ms "
          f"| {bound * 1e3:.1f} ms | {100 * bound / seconds:.1f} % |", flush=True)
END
}

up
[ "$delay" -eq 0 ] || lengthen
[ $# -gt 0 ] || printf '| rate | nodes | size | algorithm | time | bound | of bound |\n|---|---|---|---|---|---|---|\n'
for rate in ${rates//,/ }; do
  shape "$rate"
  if [ $# -gt 0 ]; then
    run "$@"
    continue
  fi
  for bytes in 16M 64M; do
    run "$build/tools/entrain-perf" all_reduce --transport tcp --min-bytes $bytes --max-bytes $bytes --budget 0.1 \
      --json "$results" > /dev/null
    beside_bound "$rate"
  done
done
