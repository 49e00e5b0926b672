/*
 * pulse.h: who still breathes.
 *
 * A process that was stopped (SIGSTOP, a debugger, a frozen container) keeps its sockets, its kernel
 * goes on acknowledging, and nobody is told; a host whose link went down is found out by TCP after a
 * quarter of an hour. So each rank of a run beats, on a thread and a UDP socket of its own, apart
 * from all the traffic that may be slow for good reasons:
 *
 *     rank r   every silence_s / 6, to every other rank:   {magic, tag of r}            24 bytes
 *
 *     beats of a peer   |  |  |  x stopped
 *     heard at          |  |  |  .  .  .  . silent: named to whoever waits for it or sends to it
 *                             <--------->
 *                           at most silence_s, at least half of it
 *
 * A beat proves that the process runs and that the way to it is open, not that its main thread gets
 * on: that is for the deadlines of those who wait for it.
 *
 * A peer is watched from its first beat on: where a firewall lets no datagrams through, silence means
 * nothing, and deadlines are all there is. Who was away itself (stopped, a laptop's lid) notices by
 * its own clock and starts every watch anew instead of finding all others silent.
 *
 * Cost: with 64 ranks and 3 s, two wake-ups and 126 datagrams sent and heard per rank and second.
 *
 * Threads: bl_pulse_is_silent() and the others are for the owner's thread; the beat has its own.
 */
#ifndef BL_RUNTIME_PULSE_H
#define BL_RUNTIME_PULSE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct bl_pulse bl_pulse;

/* Bind a socket on the device of `local` (its port is ignored); *port is where the others are to
 * send. Nothing beats yet. `key`: what all ranks of a run agree on, so that others are not heard. */
bl_status bl_pulse_open(int rank, int n_ranks, uint64_t key, double silence_s,
                        const struct sockaddr_storage *local, bl_pulse **out, uint16_t *port,
                        bl_error *err);

/* Start to beat. addresses[n_ranks] with the ports of the others' pulses; those of port 0 and the own
 * are left out. Copied. */
bl_status bl_pulse_start(bl_pulse *pulse, const struct sockaddr_storage *addresses, bl_error *err);

/* A rank has come back as another process: from now on beats are of this incarnation and go to this address,
 * and it is watched from its first one on; the beats of the former are not heard. For the own rank, before the
 * start: its incarnation alone counts. */
void bl_pulse_renew(bl_pulse *pulse, int rank, const struct sockaddr_storage *address,
                    uint64_t incarnation);

/* Readable once a peer has fallen silent, until bl_pulse_read_news(). */
int bl_pulse_fd(const bl_pulse *pulse);

/* True when a peer has fallen silent since the last call. */
bool bl_pulse_read_news(bl_pulse *pulse);

bool bl_pulse_is_silent(const bl_pulse *pulse, int peer);

double bl_pulse_silence_s(const bl_pulse *pulse);

/* Stop the thread and free; the others will hear no more of this rank. NULL is fine. */
void bl_pulse_close(bl_pulse *pulse);

#endif
