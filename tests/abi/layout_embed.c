/*
 * layout_embed: prints size and offsets of every struct of ballast_embed.h, for the check against
 * tests/abi/layout_embed.txt: fields may be added behind, never moved (tests/cli/test_abi.sh).
 */
#include "ballast_embed.h"

#include <stdio.h>

#define STRUCT(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) \
    printf("    " #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))

static void print_options(void) {
    STRUCT(bl_embed_options);
    FIELD(bl_embed_options, size);
    FIELD(bl_embed_options, rank);
    FIELD(bl_embed_options, n_ranks);
    FIELD(bl_embed_options, rendezvous);
    FIELD(bl_embed_options, job);
    FIELD(bl_embed_options, transport);
    FIELD(bl_embed_options, model);
    FIELD(bl_embed_options, n_experts);
    FIELD(bl_embed_options, top_k);
    FIELD(bl_embed_options, rule);
    FIELD(bl_embed_options, spares);
    FIELD(bl_embed_options, spare_bytes);
    FIELD(bl_embed_options, step_bytes);
    FIELD(bl_embed_options, deadline_s);
    FIELD(bl_embed_options, socket);
    FIELD(bl_embed_options, config);
    FIELD(bl_embed_options, window_steps);
    FIELD(bl_embed_options, copy);
    FIELD(bl_embed_options, recompute);
    FIELD(bl_embed_options, user);
    FIELD(bl_embed_options, fetch);
    FIELD(bl_embed_options, gpu);
}

static void print_status(void) {
    STRUCT(bl_embed_status);
    FIELD(bl_embed_status, size);
    FIELD(bl_embed_status, leads);
    FIELD(bl_embed_status, busy);
    FIELD(bl_embed_status, drained);
    FIELD(bl_embed_status, is_off);
    FIELD(bl_embed_status, reason);
    FIELD(bl_embed_status, moves);
    FIELD(bl_embed_status, commits);
    FIELD(bl_embed_status, sent_bytes);
    FIELD(bl_embed_status, received_bytes);
    FIELD(bl_embed_status, max_step_bytes);
    FIELD(bl_embed_status, max_step_ns);
    FIELD(bl_embed_status, bundle_bytes);
    FIELD(bl_embed_status, pool_bytes);
    FIELD(bl_embed_status, spares);
}

int main(void) {
    STRUCT(bl_tensor);
    FIELD(bl_tensor, size);
    FIELD(bl_tensor, name);
    FIELD(bl_tensor, base);
    FIELD(bl_tensor, scope);
    FIELD(bl_tensor, entries);
    FIELD(bl_tensor, rows);
    FIELD(bl_tensor, row_bytes);
    FIELD(bl_tensor, entry_stride);
    FIELD(bl_tensor, row_stride);
    FIELD(bl_tensor, layout);
    FIELD(bl_tensor, recomputed);
    FIELD(bl_tensor, pointers);
    STRUCT(bl_layer);
    FIELD(bl_layer, size);
    FIELD(bl_layer, layer);
    FIELD(bl_layer, n_slots);
    FIELD(bl_layer, slots_of_rank);
    FIELD(bl_layer, expert);
    FIELD(bl_layer, tensors);
    FIELD(bl_layer, n_tensors);
    FIELD(bl_layer, inventory);
    FIELD(bl_layer, n_inventory);
    FIELD(bl_layer, n_spares);
    STRUCT(bl_step_news);
    FIELD(bl_step_news, size);
    FIELD(bl_step_news, layer);
    FIELD(bl_step_news, busy);
    FIELD(bl_step_news, step);
    FIELD(bl_step_news, lost);
    STRUCT(bl_counted);
    FIELD(bl_counted, size);
    FIELD(bl_counted, layer);
    FIELD(bl_counted, ids);
    FIELD(bl_counted, id_bytes);
    FIELD(bl_counted, n_tokens);
    FIELD(bl_counted, row_bytes);
    FIELD(bl_counted, n_rows);
    FIELD(bl_counted, experts_ns);
    STRUCT(bl_repaired);
    FIELD(bl_repaired, size);
    FIELD(bl_repaired, n_lost);
    FIELD(bl_repaired, lost);
    FIELD(bl_repaired, n_fetched);
    FIELD(bl_repaired, n_fetched_here);
    FIELD(bl_repaired, step);
    print_options();
    print_status();
    return 0;
}
