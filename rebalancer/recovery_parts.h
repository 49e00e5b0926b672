/*
 * recovery_parts.h: what the two files of the recovery share: recovery.c (losses) and recovery_join.c
 * (ranks that come back).
 */
#ifndef BL_REBALANCER_RECOVERY_PARTS_H
#define BL_REBALANCER_RECOVERY_PARTS_H

#include "rebalancer/cover.h"
#include "rebalancer/recovery.h"

#include <string.h>

/* The latest word of a rank. */
typedef struct word {
    bool said;
    uint64_t step, sequence;
    uint64_t era, tries;
    bool *lost; /* [n_ranks] */
    int n_history;
    unsigned char *history; /* [n_history][set_bytes] */
} word;

struct bl_recovery {
    bl_agent *agent;
    bl_store *store;
    bl_transport *transport;
    bl_recovery_load_fn *load;
    bl_recovery_check_fn *check; /* or NULL */
    void *user;
    double deadline_s;
    int rank, n_ranks;
    size_t set_bytes;
    bool *lost;  /* [n_ranks] recovered from */
    bool *knows; /* [n_ranks] what this rank says to be lost, in the recovery at hand */
    word *words; /* [n_ranks] */
    int n_history;
    unsigned char *history; /* [n_history][set_bytes] */
    bl_orphan *orphans;     /* [n_experts] */
    /* ranks that come back */
    uint64_t era, tries; /* how many have; and how many were let in */
    int chosen;          /* to be let in before the next step, or -1 */
    int coming;          /* let in, and not known yet to be so everywhere, or -1 */
    uint64_t new_view, new_term;
};

/* ---- little-endian numbers and sets of ranks in messages -------------------------------------- */

static inline void bl_word_put(unsigned char *at, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static inline uint64_t bl_word_get(const unsigned char *at, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static inline void bl_word_pack(const bool *set, int n, unsigned char *bits) {
    memset(bits, 0, ((size_t)n + 7) / 8);
    for (int i = 0; i < n; i++) {
        if (set[i])
            bits[i / 8] = (unsigned char)(bits[i / 8] | 1u << (i % 8));
    }
}

static inline void bl_word_unpack(const unsigned char *bits, int n, bool *set) {
    for (int i = 0; i < n; i++)
        set[i] = (bits[i / 8] >> (i % 8) & 1) != 0;
}

/* The rank that was let in is so everywhere: it is a member. `late`: this is learnt from another's word
 * in a recovery. */
void bl_recovery_confirm(bl_recovery *r, bool late);

/* It is not everywhere, and nobody can tell where: it is lost again. */
void bl_recovery_give_up_joiner(bl_recovery *r);

#endif
