/* Who is at the other end of a Unix socket. POSIX does not tell; Linux does, under this name. */
#define _GNU_SOURCE /* struct ucred */
#include "rebalancer/control_parts.h"

bl_control_who bl_control_peer(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || bytes != sizeof peer)
        return (bl_control_who){-1, -1};
    return (bl_control_who){(int64_t)peer.uid, (int64_t)peer.pid};
}
