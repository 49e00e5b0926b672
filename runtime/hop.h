/*
 * hop.h: rows on their way to other ranks, and their results on the way back.
 *
 * A sender adds items, each a row for an expert on some rank. The hop packs them into one message
 * per rank, and a row that several items of one rank share is packed once. All ranks exchange; each
 * then answers the items it got, and a second exchange brings every sender its results. What kind
 * of journey it is, one hop or two, is for the caller to say (moe.c).
 *
 *     sender                                   receiver
 *     bl_hop_add() ... bl_hop_pack()
 *     bl_hop_out() ─────────────────────────▶  bl_hop_input() of each item received
 *                                              bl_hop_answer() room for its result
 *     bl_hop_result() of each item added  ◀──  bl_hop_back()
 *
 * A message of n items and m rows: { u32 layer, u32 n, u64 epoch }, i32 expert[n], with shared rows
 * also i32 row[n], with forwarding also i32 final[n], zeros up to 16 bytes, f32 row[m][hidden]; on
 * the way back the header and f32 row[n][hidden]. Messages name layer and map epoch: a peer at
 * another one is BL_ERR_STATE and not a wrong answer.
 */
#ifndef BL_RUNTIME_HOP_H
#define BL_RUNTIME_HOP_H

#include "runtime/exchange.h"

#include <stdbool.h>

/* A growing byte buffer. */
typedef struct bl_hop_buffer {
    unsigned char *data; /* aligned to 16 */
    size_t capacity;
} bl_hop_buffer;

typedef struct bl_hop_item {
    int32_t to; /* rank of this hop */
    int32_t expert;
    int32_t final;   /* rank that serves it, where `to` passes it on */
    int32_t key;     /* items of one rank, added one after another, with equal keys share a row */
    int32_t at, row; /* its place among the items and rows for that rank; filled by pack */
    const void *x;   /* [hidden]; borrowed until pack */
} bl_hop_item;

/* What an exchange has cost so far. */
typedef struct bl_hop_cost {
    uint64_t bytes, rows, messages; /* to other ranks */
    uint64_t *bytes_to;             /* [2][n_ranks] of that: out, then back, by rank */
} bl_hop_cost;

typedef struct bl_hop {
    bl_exchange *exchange; /* borrowed */
    int rank, n_ranks, n_experts;
    size_t row_bytes;
    bool shares_rows, forwards; /* may be set between layers, alike on all ranks */
    int layer;
    uint64_t epoch;

    bl_hop_item *items; /* [n_items] added */
    int n_items;
    size_t item_capacity;
    int32_t *n_to;         /* [n_ranks] items for each rank */
    int32_t *n_rows_to;    /* [n_ranks] rows for each rank */
    int32_t *last_key;     /* [n_ranks] scratch of pack */
    bl_hop_buffer *buffer; /* [n_ranks] messages out, later answers */
    bl_outgoing *outgoing; /* [n_ranks] */

    bl_message *received;  /* [n_ranks] */
    int32_t *n_received;   /* [n_ranks] items */
    bl_hop_buffer *answer; /* [n_ranks] */
    bl_message *returned;  /* [n_ranks] */
} bl_hop;

bl_status bl_hop_create(bl_exchange *exchange, int n_experts, int hidden, bl_hop *out,
                        bl_error *err);
void bl_hop_free(bl_hop *hop); /* safe on a zeroed struct */

/* Start over, for a layer at a map epoch; what a failed layer left is released. */
void bl_hop_begin(bl_hop *hop, int layer, uint64_t epoch);

/* Append an item; *index is its number, from 0. */
bl_status bl_hop_add(bl_hop *hop, bl_hop_item item, int *index, bl_error *err);
bl_status bl_hop_pack(bl_hop *hop, bl_error *err);

/* Both exchanges; their cost is added to `cost`. */
bl_status bl_hop_out(bl_hop *hop, bl_hop_cost *cost, bl_error *err);
bl_status bl_hop_back(bl_hop *hop, bl_hop_cost *cost, bl_error *err);

/* Of item i received from `peer`, after out: its expert, where it goes on to (with forwards), the row
 * it shares (its number in the message) and the row itself. */
int bl_hop_expert(const bl_hop *hop, int peer, int i);
int bl_hop_final(const bl_hop *hop, int peer, int i);
int bl_hop_row(const bl_hop *hop, int peer, int i);
const void *bl_hop_input(const bl_hop *hop, int peer, int i);

/* Room for the answers, then of item i of `peer`: to be written before back. */
bl_status bl_hop_reserve_answers(bl_hop *hop, bl_error *err);
void *bl_hop_answer(bl_hop *hop, int peer, int i);
/* The inputs are not needed any more. */
void bl_hop_drop_inputs(bl_hop *hop);

/* The result of an item added, after back; valid until the next begin. */
const void *bl_hop_result(const bl_hop *hop, int index);

#endif
