/* Who is at the other end of a Unix socket (POSIX does not tell; Linux does, under this name), and who
 * serves one. */
#define _GNU_SOURCE /* struct ucred */
#include "rebalancer/control_parts.h"

#include <string.h>
#include <unistd.h>

#define SERVER_MAGIC "BLSERVER" /* without its terminator */

/* Between ranks of one program on machines of one kind. */
typedef struct server_word {
    char magic[8];
    int64_t pid;
} server_word;

bl_control_who bl_control_peer(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || bytes != sizeof peer)
        return (bl_control_who){-1, -1};
    return (bl_control_who){(int64_t)peer.uid, (int64_t)peer.pid};
}

void bl_control_announce(bl_agent *agent, int rank, int n_ranks) {
    server_word word = {.pid = (int64_t)getpid()};
    memcpy(word.magic, SERVER_MAGIC, sizeof word.magic);
    for (int to = 0; to < n_ranks; to++) {
        if (to != rank && bl_agent_lives(agent, to))
            bl_agent_tell(agent, to, &word, sizeof word, NULL);
    }
}

bool bl_control_hear_server(const void *data, size_t bytes, int64_t *pid) {
    server_word word;
    if (bytes != sizeof word)
        return false;
    memcpy(&word, data, sizeof word);
    if (memcmp(word.magic, SERVER_MAGIC, sizeof word.magic) != 0)
        return false;
    *pid = word.pid;
    return true;
}
