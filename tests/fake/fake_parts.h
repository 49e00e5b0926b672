/* What the two files of the fake share: streams and memory in fake_cuda.c, communicators in fake_nccl.c.
 * One library in one process: globals, as in the real ones, all under one lock. */
#ifndef BL_FAKE_PARTS_H
#define BL_FAKE_PARTS_H

#include "fake_nccl.h"
#include "nccl.h"

#include <pthread.h>

typedef struct fake_item {
    bool is_send, is_done, has_started;
    int peer;
    void *data; /* device pointer */
    size_t bytes;
} fake_item;

/* What a stream has before it: a group. Copies are done at once. */
typedef struct fake_group {
    struct fake_group *next;
    ncclComm_t comm;
    cudaStream_t stream;
    int n_items;
    int looks_left; /* until a group that was aborted has ended */
    fake_item items[FAKE_MAX_GROUP];
} fake_group;

struct fake_cuda_stream {
    fake_group *first, **last;
};

extern pthread_mutex_t fake_lock;
extern int fake_alive; /* things that must be given back */

/* All of these inside the lock. */
void fake_note(const char *misuse);
bool fake_fails_now(void);
/* Where the CPU finds [data, data + bytes) of the device; NULL: it is no such memory. */
unsigned char *fake_on_device(const void *data, size_t bytes);
void fake_enqueue(fake_group *group);
/* Carry out what can be of a stream's first group; true: it is over. */
bool fake_run_group(fake_group *group);
int fake_device(void); /* current in this thread */
void fake_forget_memory(void);
void fake_forget_communicators(void);

#endif
