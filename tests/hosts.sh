# shellcheck shell=bash
# hosts.sh: sourced by tests that need several hosts. hosts_up RATE... makes one network namespace for
# each rate, host I with the address 10.77.0.(I+1) on a link to a common switch, shaped to that rate in
# both directions (as tc writes it, 200mbit; "-": not shaped). hosts_link I up|down pulls the plug,
# hosts_down removes all. They need root and iproute2: hosts_work says whether they can be had.
hosts_prefix=bl$$
hosts_count=0
hosts_work() {
    [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && command -v tc >/dev/null &&
        ip netns add ${hosts_prefix}t 2>/dev/null && ip netns del ${hosts_prefix}t &&
        ip link add ${hosts_prefix}t type veth peer name ${hosts_prefix}u 2>/dev/null &&
        ip link del ${hosts_prefix}t
}
hosts_shape() { # NAMESPACE DEVICE RATE
    [ "$3" = - ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$3" burst 128kb latency 100ms
}
hosts_up() { # RATE...
    local i=0 rate switch=${hosts_prefix}s
    hosts_count=$#
    ip netns add $switch
    ip -n $switch link add name bridge0 type bridge
    ip -n $switch link set bridge0 up
    for rate in "$@"; do
        ip netns add $hosts_prefix$i
        ip link add eth0 netns $hosts_prefix$i type veth peer name p$i netns $switch
        ip -n $switch link set p$i master bridge0 up
        ip -n $hosts_prefix$i link set lo up
        ip -n $hosts_prefix$i addr add 10.77.0.$((i + 1))/24 dev eth0
        ip -n $hosts_prefix$i link set eth0 up
        hosts_shape $hosts_prefix$i eth0 "$rate"
        hosts_shape $switch p$i "$rate"
        i=$((i + 1))
    done
}
hosts_name() { echo $hosts_prefix$1; } # of its namespace: ip netns exec "$(hosts_name I)" COMMAND...
hosts_link() { ip -n ${hosts_prefix}s link set p$1 $2; }
hosts_down() {
    local i
    [ $hosts_count -gt 0 ] || return 0
    for i in $(seq 0 $((hosts_count - 1))); do
        ip netns del $hosts_prefix$i
    done
    ip netns del ${hosts_prefix}s
    hosts_count=0
}
