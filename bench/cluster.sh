#!/bin/bash
# Emulates a cluster on this machine (as root; iproute2): network namespaces on one bridge, where tbf limits each link in
# both directions. Runs a command once in every node, as rank I of N (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and
# removes everything. Without a command it measures all_reduce of 16 and 64 MiB, and compares it with the bound of a ring.
#
#   bench/cluster.sh [--nodes 4] [--rate 1gbit,100mbit] [--up RATE] [--connection RATE] [--burst BYTES] [--delay MS]
#                    [--sites 2,2] [--site-rate RATE] [--loss PERCENT] [--jitter MS] [--reorder PERCENT] [--seed NUMBER]
#                    [--counts FILE] [--congestion NAME] [--build build/release] [COMMAND ARGUMENTS...]
#
# The bound is the time for 2 (N-1)/N of the bytes at the rate; 1448 of 1514 bytes of a frame are payload. A burst of
# 256 KiB passes without a limit, so smaller messages are not limited, and 1 MiB is limited a little less than the
# rate says. --up: the rate at which nodes send; --rate is then the rate at which they receive. As "20mbit" of all nodes,
# as "0:20mbit,3:50mbit" of nodes 0 and 3. --connection: limits each connection, as clouds do (a connection has one of 256
# classes by the sum of its ports, so two of many may share a class). --delay: adds MS milliseconds to the round trip
# between any two nodes (delay_frames.cc; needs no netem).
#
# --sites 2,2: nodes 0 and 1 are at one site, nodes 2 and 3 at another. Nodes of one site are near each other. Between
# sites are the delay and the faults below. --site-rate: the rate at which a site sends, and at which it receives, all its
# nodes together. --loss: share of the packets that are lost on a way, in each direction. --jitter: on a way a packet is up
# to MS later; this varies within 20 ms, and keeps the order. --reorder: share of the packets that are 4 ms later than
# those behind them. --seed: of these draws (1). --counts: FILE gets the numbers of packets, lost and held back, as JSON.
#
# --congestion: tcp's congestion control in the nodes, as cubic, bbr; else it is that of this machine.
# Traffic is plain (ENTRAIN_INSECURE=1), unless ENTRAIN_KEY_FILE names a key.
set -eu
cd "$(dirname "$0")/.."

nodes=4 rates=1gbit,100mbit up= connection= burst=262144 delay=0 build=build/release
sites= site_rate= loss=0 jitter=0 reorder=0 seed=1 counts= congestion=
fail() { echo "cluster.sh: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --nodes | --rate | --up | --connection | --burst | --delay | --build | --sites | --site-rate | --loss | --jitter | \
      --reorder | --seed | --counts | --congestion)
      [ $# -gt 1 ] || fail "$1: needs a value"
      case $1 in
        --nodes) nodes=$2 ;; --rate) rates=$2 ;; --up) up=$2 ;; --connection) connection=$2 ;; --burst) burst=$2 ;;
        --delay) delay=$2 ;; --build) build=$2 ;; --sites) sites=$2 ;; --site-rate) site_rate=$2 ;; --loss) loss=$2 ;;
        --jitter) jitter=$2 ;; --reorder) reorder=$2 ;; --seed) seed=$2 ;; --counts) counts=$2 ;;
        --congestion) congestion=$2 ;;
      esac
      shift 2 ;;
    --help | -h) sed -n '2,26s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail "$1: no such option" ;;
    *) break ;;
  esac
done

check_rate() { # OPTION RATE
  [[ $2 =~ ^[0-9]+(\.[0-9]+)?[kmg]bit$ && $2 =~ [1-9] ]] || fail "$1: \"$2\" is not a rate as 1gbit, 100mbit"
}
check_number() { # OPTION VALUE WHAT; a whole number
  case $2 in *[!0-9]* | '') fail "$1: \"$2\" is not a number$3" ;; esac
}
check_percent() { # OPTION VALUE
  [[ $2 =~ ^[0-9]{1,2}(\.[0-9]+)?$ ]] || fail "$1: \"$2\" is not a percentage below 100"
}
site_of=() # of each node; without --sites each node is a site
if [ -n "$sites" ]; then
  [[ $sites =~ ^[1-9][0-9]?(,[1-9][0-9]?)*$ ]] || fail "--sites: \"$sites\" is not a list of numbers of nodes, as 2,2"
  count=0
  for many in ${sites//,/ }; do
    for ((i = 0; i < many; ++i)); do site_of+=("$count"); done
    count=$((count + 1))
  done
  sites=$count nodes=${#site_of[@]}
fi
[ "$nodes" != 1 ] && [ "$nodes" != 0 ] || fail "--nodes: \"$nodes\" is not a number above 1"
check_number --nodes "$nodes" " above 1"
[ "$nodes" -le 64 ] || fail "--nodes: $nodes is more than 64"
check_number --burst "$burst" " of bytes"
[ "$burst" -gt 0 ] || fail "--burst: \"$burst\" is not a number of bytes"
check_number --delay "$delay" " of milliseconds"
check_number --jitter "$jitter" " of milliseconds"
check_number --seed "$seed" ""
check_percent --loss "$loss"
check_percent --reorder "$reorder"
while IFS= read -r rate; do check_rate --rate "$rate"; done <<< "${rates//,/$'\n'}"
[ -z "$connection" ] || check_rate --connection "$connection"
if [ -n "$site_rate" ]; then
  check_rate --site-rate "$site_rate"
  [ -n "$sites" ] || fail "--site-rate: \"$site_rate\" needs --sites"
fi
up_of=() # of each node, "" if the node sends at the rate
for ((i = 0; i < nodes; ++i)); do up_of+=(""); done
if [ -n "$up" ]; then
  while IFS= read -r one; do
    check_rate --up "${one#*:}"
    case $one in
      *:*)
        check_number --up "${one%%:*}" " of a node"
        [ "${one%%:*}" -lt "$nodes" ] || fail "--up: \"$one\": there are $nodes nodes"
        up_of[${one%%:*}]=${one#*:} ;;
      *) for ((i = 0; i < nodes; ++i)); do up_of[i]=$one; done ;;
    esac
  done <<< "${up//,/$'\n'}"
fi

# A packet passes the forwarder if its way has a delay or faults.
long=
for value in "$delay" "$loss" "$jitter" "$reorder"; do
  case $value in *[1-9]*) long=1 ;; esac
done
[ -z "$counts" ] || long=1

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

in_switch() { ip -n "$switch" link "$@"; }
add_bridge() {
  in_switch add "$1" type bridge
  in_switch set "$1" up
}
plug() { # INTERFACE BRIDGE
  in_switch set "$1" master "$2"
  in_switch set "$1" up
}

pairs= # of interfaces, for delay-frames
# Without sites, the long way is between a node and the bridge:
#   node: eth0 - nearI   delay-frames   farI - portI :bridge
# With sites, it is between a site and the core:
#   node: eth0 - portI :siteS: upS - nearS   delay-frames   farS - coreS :bridge
# Without a forwarder, nearI and portI are one interface, and so are nearS and coreS.
up() {
  ip netns add "$switch"
  add_bridge bridge
  local s
  for ((s = 0; s < ${sites:-0}; ++s)); do
    add_bridge "site$s"
    if [ -n "$long" ]; then
      in_switch add "up$s" type veth peer name "near$s"
      add_far "$s" "core$s"
    else
      in_switch add "up$s" type veth peer name "core$s"
    fi
    plug "up$s" "site$s"
    plug "core$s" bridge
  done
  for ((i = 0; i < nodes; ++i)); do
    ip netns add "$name-$i"
    local outer=port$i bridge=bridge # outer: the link's end in the switch's namespace
    if [ -n "$sites" ]; then
      bridge=site${site_of[i]}
    elif [ -n "$long" ]; then
      outer=near$i
    fi
    ip link add eth0 netns "$name-$i" type veth peer name "$outer" netns "$switch"
    [ "$outer" = "port$i" ] || add_far "$i" "port$i"
    plug "port$i" "$bridge"
    ip -n "$name-$i" link set lo up
    ip -n "$name-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
    ip -n "$name-$i" link set eth0 up
    # The route sets it, because a namespace may not choose every algorithm as its default.
    [ -z "$congestion" ] || ip -n "$name-$i" route replace 10.77.0.0/24 dev eth0 src "10.77.0.$((i + 1))" congctl "$congestion"
  done
}
add_far() { # NUMBER PORT
  in_switch add "far$1" type veth peer name "$2"
  in_switch set "far$1" up
  in_switch set "near$1" up
  pairs+=${pairs:+,}near$1:far$1
}

# Starts delay-frames. A frame and its answer each pass two pairs of interfaces. So each pair delays a frame by a quarter
# of the round trip.
lengthen() {
  coproc FORWARDER { exec ip netns exec "$switch" "$build/bench/delay-frames" --loss "$loss" --reorder "$reorder" \
    --jitter "$jitter" --seed "$seed" ${counts:+--counts "$counts"} $((delay * 250)) "$pairs"; }
  forwarder=$FORWARDER_PID
  local said=
  read -r said <&"${FORWARDER[0]}" || true
  [ "$said" = ready ] || { echo "cluster.sh: $build/bench/delay-frames does not forward (--delay, --loss, ...)" >&2; exit 1; }
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

limit() { # NAMESPACE INTERFACE RATE
  # A packet waits at most this long in a queue of tbf. Slow links get more time.
  local latency=50ms
  case $3 in *kbit | ?mbit | ??mbit | 100mbit) latency=200ms ;; esac
  tc -n "$1" qdisc replace dev "$2" root tbf rate "$3" burst "$burst" latency "$latency"
}
shape() { # RATE
  for ((i = 0; i < nodes; ++i)); do
    local sends=${up_of[i]:-$1}
    if [ -n "$connection" ]; then
      each_connection "$sends" | tc -n "$name-$i" -batch -
    else
      limit "$name-$i" eth0 "$sends"
    fi
    limit "$switch" "port$i" "$1"
  done
  local s
  for ((s = 0; s < ${sites:-0}; ++s)); do
    [ -n "$site_rate" ] || break
    limit "$switch" "up$s" "$site_rate"
    limit "$switch" "core$s" "$site_rate"
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
[ -z "$long" ] || lengthen
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
