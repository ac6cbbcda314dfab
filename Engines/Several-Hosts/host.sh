#!/usr/bin/env bash
# A host of run.sh's, from inside: NAME ADDRESS COMMAND ... It has a network namespace and
# a name of its own already; when run.sh has plugged its cable in, it begins.
set -euo pipefail
name=$1 address=$2
shift 2
hostname "$name"
ip link set lo up
# Which congestion control is the default differs from kernel to kernel; every Linux has
# this one.
echo reno >/proc/sys/net/ipv4/tcp_congestion_control || true
: >"$SCRATCH/$name.ready"
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip address add "$address/24" dev eth0
ip link set eth0 up
exec "$@"
