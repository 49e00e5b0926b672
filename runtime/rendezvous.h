/*
 * rendezvous.h: how the processes of a run find each other.
 *
 * Rank 0 listens on one TCP address that all ranks know. The others come there with their number,
 * the size of the run, its job number and the ports on which they can be reached; when all have come,
 * each gets the table of all cards and the meeting is over:
 *
 *     rank r -> rank 0   greeting {magic, job, n_ranks, rank, card}
 *     rank 0 -> rank r   verdict  {status, why}, then card[n_ranks] when the status is BL_OK
 *
 * A card says where a rank can be reached and which process it is. Its address is taken from its
 * connection, so no host needs to know its own name, and a run on one host never leaves the loopback
 * device. All who come are heard at once, for ranks may be slow and strangers silent. Who speaks
 * something else is ignored; who belongs to another run, or claims a number that is taken, is told so.
 * Machines of one byte order only (the magic number checks).
 *
 * Two steps, because a rank must know on which device it is seen before it can open its own port.
 */
#ifndef BL_RUNTIME_RENDEZVOUS_H
#define BL_RUNTIME_RENDEZVOUS_H

#include "runtime/transport.h"

#include <sys/socket.h>

typedef struct bl_peer_card {
    struct sockaddr_storage address; /* where it accepts connections */
    uint64_t host;                   /* the same for processes that share memory, see below */
    int32_t pid;
    uint16_t pulse_port; /* of its heartbeat; 0: it has none */
    uint16_t unused;
} bl_peer_card;

typedef struct bl_rendezvous {
    const bl_ucx_options *options; /* borrowed */
    double until_s;                /* on the clock of bl_now_s() */
    int fd;                        /* rank 0: listening; others: connected to rank 0 */
    struct sockaddr_storage local; /* the address by which this rank is seen, without its port */
    socklen_t local_bytes;
} bl_rendezvous;

/* Listen, or reach rank 0 (which may still be starting). Takes options->rendezvous_fd over. */
bl_status bl_rendezvous_open(const bl_ucx_options *options, bl_rendezvous *out, bl_error *err);

/* Tell this rank's ports and learn the cards of all, cards[n_ranks]. What rank 0 learns of itself has no
 * address. */
bl_status bl_rendezvous_exchange(bl_rendezvous *meeting, uint16_t port, uint16_t pulse_port,
                                 bl_peer_card *cards, bl_error *err);

void bl_rendezvous_close(bl_rendezvous *meeting);

/* A number for the machine since it was started, the network namespace and the process namespace: who
 * has the same one can be found by process id, and no network lies between. 0 where /proc does not
 * tell. */
uint64_t bl_host_identity(void);

/* Port of an IPv4 or IPv6 address, host byte order. */
uint16_t bl_address_port(const struct sockaddr_storage *address);
void bl_address_set_port(struct sockaddr_storage *address, uint16_t port);

#endif
