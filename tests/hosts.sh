# shellcheck shell=bash
# hosts.sh: sourced by tests that need several hosts. hosts_up LINK... makes one network namespace for
# each, host I with the address 10.77.0.(I+1) on a link to a common switch, shaped to a rate in both
# directions (as tc writes it, 200mbit; "-": not shaped). 20mbit+15 takes 15 ms each way as well.
# hosts_link I up|down pulls the plug, hosts_split I... puts these hosts on a switch of their own and
# hosts_heal all on one again, hosts_down removes all. They need root and iproute2: hosts_work says
# whether they can be had.
hosts_prefix=bl$$
hosts_count=0
hosts_cables=()
hosts_work() {
    [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && command -v tc >/dev/null &&
        ip netns add ${hosts_prefix}t 2>/dev/null && ip netns del ${hosts_prefix}t &&
        ip link add ${hosts_prefix}t type veth peer name ${hosts_prefix}u 2>/dev/null &&
        ip link del ${hosts_prefix}t
}
hosts_delay_works() { [ -c /dev/net/tun ] && (: <>/dev/net/tun) 2>/dev/null; }
hosts_shape() { # NAMESPACE DEVICE RATE
    [ "$3" = - ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$3" burst 128kb latency 100ms
}
# Between eth0 of host I and port pI of the switch; a slow one is a process.
hosts_cable() { # I MILLISECONDS
    local switch=${hosts_prefix}s said
    if [ "$2" = 0 ]; then
        ip link add eth0 netns $hosts_prefix$1 type veth peer name p$1 netns $switch
        return
    fi
    said=$(mktemp)
    ip netns exec $switch "$BUILD/tests/tools/slow_link" t$1 p$1 "$2" >"$said" &
    hosts_cables+=($!)
    until [ -s "$said" ] || ! kill -0 $! 2>/dev/null; do sleep 0.02; done
    rm -f "$said"
    ip -n $switch link set t$1 netns $hosts_prefix$1 name eth0
}
hosts_up() { # LINK...
    local i=0 link rate delay switch=${hosts_prefix}s
    hosts_count=$#
    ip netns add $switch
    for i in 0 1; do
        ip -n $switch link add name bridge$i type bridge
        ip -n $switch link set bridge$i up
    done
    i=0
    for link in "$@"; do
        rate=${link%+*} delay=0
        [[ $link == *+* ]] && delay=${link#*+}
        ip netns add $hosts_prefix$i
        hosts_cable $i "$delay"
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
hosts_split() { # I...
    local i
    for i in "$@"; do ip -n ${hosts_prefix}s link set p$i master bridge1; done
}
hosts_heal() {
    local i
    for ((i = 0; i < hosts_count; i++)); do ip -n ${hosts_prefix}s link set p$i master bridge0; done
}
hosts_down() {
    local i
    [ $hosts_count -gt 0 ] || return 0
    [ ${#hosts_cables[@]} -eq 0 ] || kill "${hosts_cables[@]}" 2>/dev/null
    hosts_cables=()
    for i in $(seq 0 $((hosts_count - 1))); do
        ip netns del $hosts_prefix$i
    done
    ip netns del ${hosts_prefix}s
    hosts_count=0
}
