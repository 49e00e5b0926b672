/*
 * rendezvous.h: how the processes of a run find each other.
 *
 * Rank 0 listens on one TCP address that all ranks know. The others come there with their number,
 * the size of the run, its job number and the port on which they can be reached; when all have come,
 * each gets the table of addresses and the meeting is over:
 *
 *     rank r -> rank 0   greeting {magic, version, job, n_ranks, rank, port}
 *     rank 0 -> rank r   verdict  {status, why}, then address[n_ranks] when the status is BL_OK
 *
 * A rank's address is taken from its connection, so no host needs to know its own name, and a run on
 * one host never leaves the loopback device. Who speaks something else is ignored; who belongs to
 * another run, or claims a number that is taken, is told so. Machines of one byte order only (the
 * magic number checks).
 *
 * Two steps, because a rank must know on which device it is seen before it can open its own port.
 */
#ifndef BL_RUNTIME_RENDEZVOUS_H
#define BL_RUNTIME_RENDEZVOUS_H

#include "runtime/transport.h"

#include <sys/socket.h>

typedef struct bl_rendezvous {
    const bl_ucx_options *options; /* borrowed */
    double until_s;                /* on the clock of bl_now_s() */
    int fd;                        /* rank 0: listening; others: connected to rank 0 */
    struct sockaddr_storage local; /* the address by which this rank is seen, without its port */
    socklen_t local_bytes;
} bl_rendezvous;

/* Listen, or reach rank 0 (which may still be starting). Takes options->rendezvous_fd over. */
bl_status bl_rendezvous_open(const bl_ucx_options *options, bl_rendezvous *out, bl_error *err);

/* Tell this rank's port and learn the addresses of all, addresses[n_ranks]. */
bl_status bl_rendezvous_exchange(bl_rendezvous *meeting, uint16_t port,
                                 struct sockaddr_storage *addresses, bl_error *err);

void bl_rendezvous_close(bl_rendezvous *meeting);

/* Port of an IPv4 or IPv6 address, host byte order. */
uint16_t bl_address_port(const struct sockaddr_storage *address);
void bl_address_set_port(struct sockaddr_storage *address, uint16_t port);

#endif
