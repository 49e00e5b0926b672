/* import_table.c: tokens of many sequences, gathered. */
#include "tracer/import_sink.h"

#include "core/mem.h"

#include <stdlib.h>

bl_status bl_token_table_begin(bl_token_table *table, size_t n_rows, size_t k, const char *file,
                               bl_error *err) {
    if (n_rows < 1 || n_rows > BL_MAX_LAYERS || k < 1 || k > BL_MAX_TOP_K)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file), "tokens of %zu layer rows and %zu ids",
                          n_rows, k);
    if (table->n_sequences > 0 && (n_rows != table->n_rows || k != table->k))
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                          "tokens of %zu layer rows and %zu ids, but %zu and %zu before", n_rows, k,
                          table->n_rows, table->k);
    void *begin = table->begin;
    const bl_status st =
        bl_grow(&begin, &table->begin_capacity, table->n_sequences + 1, sizeof *table->begin, err);
    table->begin = begin;
    BL_TRY(st);
    table->n_rows = n_rows;
    table->k = k;
    table->begin[table->n_sequences++] = table->n_tokens;
    return BL_OK;
}

bl_status bl_token_table_add(bl_token_table *table, size_t n, int32_t **ids_p, bl_error *err) {
    const size_t token = table->n_rows * table->k;
    size_t total = 0, needed = 0;
    if (!bl_size_add(table->n_tokens, n, &total) || !bl_size_mul(total, token, &needed))
        return bl_fail(err, BL_ERR_NOMEM, "too many tokens");
    void *ids = table->ids;
    if (needed == 0) /* so that there is an address */
        needed = 1;
    const bl_status st = bl_grow(&ids, &table->ids_capacity, needed, sizeof *table->ids, err);
    table->ids = ids;
    BL_TRY(st);
    *ids_p = table->ids + table->n_tokens * token;
    table->n_tokens = total;
    return BL_OK;
}

/* int32_t as an .npy image has it: numbers are little-endian on the machines we run on. */
bl_npy bl_token_array(const int32_t *ids, size_t n_tokens, size_t n_rows, size_t k) {
    return (bl_npy){.kind = 'i',
                    .item_bytes = 4,
                    .n_dims = 3,
                    .shape = {n_tokens, n_rows, k},
                    .n_items = n_tokens * n_rows * k,
                    .data = (const unsigned char *)ids};
}

/* The sequences end where the next one begins; the last one at the end of all tokens. */
bl_status bl_token_table_put(const bl_token_table *table, bl_import_sink *sink, bl_error *err) {
    size_t *begin = NULL;
    BL_TRY(BL_CALLOC(begin, table->n_sequences + 1, err));
    for (size_t i = 0; i < table->n_sequences; i++)
        begin[i] = table->begin[i];
    begin[table->n_sequences] = table->n_tokens;
    const bl_npy ids = bl_token_array(table->ids, table->n_tokens, table->n_rows, table->k);
    const bl_token_ids tokens = {&ids, begin, table->n_sequences, NULL};
    const bl_status st = bl_sink_tokens(sink, &tokens, err);
    free(begin);
    return st;
}

void bl_token_table_free(bl_token_table *table) {
    free(table->ids);
    free(table->begin);
    *table = (bl_token_table){0};
}
