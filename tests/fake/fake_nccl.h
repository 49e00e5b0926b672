/*
 * fake_nccl.h: NCCL and the CUDA run time on CPUs, for ranks that are threads of one process.
 *
 * It does what is asked and checks what the real one trusts its callers with:
 *
 *     buffers     must be device memory, of this process, large enough
 *     groups      every send and receive stands in one; no more than FAKE_MAX_GROUP of them
 *     pairing     the k-th send of a to b meets the k-th receive of b from a, of the same size. A group
 *                 is done when all of it has met; until then its stream stands still, as a kernel
 *                 spins: for ever, if the other side issues something else, another size, or nothing
 *     copies      to pageable memory block behind a kernel; a caller that queues one there would hang
 *                 with it
 *
 * Misuse is an error to the caller and is kept for the test: fake_nccl_misuse(). A mismatch is not an
 * error but stands still, as in life.
 */
#ifndef BL_FAKE_NCCL_CONTROL_H
#define BL_FAKE_NCCL_CONTROL_H

#include <stddef.h>

#define FAKE_MAX_GROUP 64

/* Forget everything; call it while no rank runs. Device memory and streams that were not given back are
 * returned as their number. */
int fake_nccl_reset(void);

/* The first misuse, or NULL. */
const char *fake_nccl_misuse(void);

/* Groups that ended so far, the largest of them, and bytes that were sent. */
int fake_nccl_groups(void);
int fake_nccl_largest_group(void);
size_t fake_nccl_sent_bytes(void);

/* The `n`-th call from now of any kind that can fail (1: the next) fails with a system error. */
void fake_nccl_fail_call(int n);

#endif
