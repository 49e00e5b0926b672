/*
 * fake_nccl.h: NCCL and the CUDA run time on CPUs, for ranks that are threads of one process.
 *
 * It does what is asked, as late and as unhelpfully as the real ones may, and checks what they trust
 * their callers with. From NVIDIA's documentation of both:
 *
 *     memory      of a device is not the host's: a load or store of it by the CPU ends the process.
 *                 Buffers of transfers must be such memory, large enough, and may not be freed before
 *     groups      every send and receive stands in one; no more than FAKE_MAX_GROUP of them
 *     pairing     the k-th send of a to b meets the k-th receive of b from a, of the same size. A group
 *                 is done when all of it has met; until then its stream stands still, as a kernel
 *                 spins: for ever, if the other side issues something else, another size, or nothing
 *     launching   on a communicator that does not block, calls return at once. Until
 *                 ncclCommGetAsyncError() has said ncclSuccess no other call may be made on it, and a
 *                 group is not on its stream, which looks idle
 *     errors      stay: a communicator that has failed can be aborted and nothing else
 *     abort       ends kernels, not at once: they may write to their buffers until the stream is idle.
 *                 The other ranks are told nothing. The handle is gone, and so is its name
 *     copies      to and from pageable memory block behind a kernel; a caller that queues one there, or
 *                 waits for such a stream, would hang with it
 *     devices     two ranks of a communicator may not share one
 *
 * Misuse is an error to the caller and is kept for the test: fake_nccl_misuse(). A mismatch is not an
 * error but stands still, as in life.
 */
#ifndef BL_FAKE_NCCL_CONTROL_H
#define BL_FAKE_NCCL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

#define FAKE_MAX_GROUP 64
#define FAKE_MAX_RANKS 8

/* Forget everything; call it while no rank runs. Device memory, streams and communicators that were not
 * given back are returned as their number. */
int fake_nccl_reset(void);

/* The first misuse, or NULL. */
const char *fake_nccl_misuse(void);

/* Groups that ended so far, the largest of them, and bytes that were sent. */
int fake_nccl_groups(void);
int fake_nccl_largest_group(void);
size_t fake_nccl_sent_bytes(void);
/* Communicators that were made, over all ranks, and those that were aborted with transfers standing. */
int fake_nccl_joined(void);
int fake_nccl_broken(void);

/* The `n`-th call from now of any kind that can fail (1: the next) fails with a system error; or the
 * `n`-th of NCCL's. */
void fake_nccl_fail_call(int n);
void fake_nccl_fail_nccl_call(int n);

/* Of the `n`-th transfer from now (1: the next; -1: of every one) a byte arrives damaged. */
void fake_nccl_damage(int n);

#endif
