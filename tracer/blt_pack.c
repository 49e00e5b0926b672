#include "tracer/blt_pack.h"

#include <stdlib.h>

void bl_blt_packed_free(bl_blt_packed *p) {
    free(p->bitmap.data);
    free(p->low.data);
    free(p->high.data);
    free(p->weights.data);
    free(p->row);
    free(p->row_weights);
    *p = (bl_blt_packed){0};
}

/* ---- checks -------------------------------------------------------------------------------- */

/* A router's top-k are distinct. k is small, so comparing all pairs beats any table. */
static bool row_is_distinct(const int32_t *row, int k, int32_t *twice) {
    for (int a = 0; a + 1 < k; a++) {
        for (int b = a + 1; b < k; b++) {
            if (row[a] == row[b] && row[a] != BL_EMPTY_SLOT) {
                *twice = row[a];
                return false;
            }
        }
    }
    return true;
}

static bool row_is_no_data(const int32_t *row, int k) {
    if (k < 2)
        return false;
    for (int j = 1; j < k; j++) {
        if (row[j] != row[0])
            return false;
    }
    return true;
}

static bl_status check_row(const bl_record *r, const int32_t *row, bl_error *err) {
    const char *kind = r->flags & BL_RECORD_PHYSICAL ? "slot" : "logical expert";
    for (int j = 0; j < r->k; j++) {
        if (row[j] < BL_EMPTY_SLOT || row[j] >= r->n_ids)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, r->layer),
                              "id %d is not a %s below %d", row[j], kind, r->n_ids);
    }
    int32_t twice;
    if (!row_is_distinct(row, r->k, &twice))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, r->layer),
                          "a token picked %s %d twice", kind, twice);
    return BL_OK;
}

bl_status bl_blt_check_rows(const bl_record *r, size_t first, size_t n, uint64_t *n_empty,
                            bl_error *err) {
    *n_empty = 0;
    for (size_t i = first; i < first + n; i++) {
        const int32_t *row = r->ids + i * (size_t)r->k;
        const bool no_data = row_is_no_data(row, r->k);
        if (!no_data || row[0] < BL_EMPTY_SLOT || row[0] >= r->n_ids)
            BL_TRY(check_row(r, row, err));
        for (int j = 0; j < r->k; j++)
            *n_empty += no_data || row[j] == BL_EMPTY_SLOT;
    }
    return BL_OK;
}

/* ---- packing ------------------------------------------------------------------------------- */

/* Ascending, empty slots last, weights along. Rows are short: insertion. */
static void sort_row(int32_t *row, uint16_t *weights, int k) {
    for (int i = 1; i < k; i++) {
        const int32_t id = row[i];
        const uint16_t weight = weights != NULL ? weights[i] : 0;
        int at = i;
        while (at > 0 && (uint32_t)row[at - 1] > (uint32_t)id) { /* -1 is the largest */
            row[at] = row[at - 1];
            if (weights != NULL)
                weights[at] = weights[at - 1];
            at--;
        }
        row[at] = id;
        if (weights != NULL)
            weights[at] = weight;
    }
}

/* An ascending row as its first id and the gaps between the others, less one each. */
static void to_gaps(int32_t *row, int k) {
    for (int j = k - 1; j > 0; j--)
        row[j] -= row[j - 1] + 1;
}

/* The row as it is to be stored: in p->row and p->row_weights. */
static void take_row(bl_blt_packed *p, const bl_record *r, size_t i, bool sets) {
    const size_t k = (size_t)r->k;
    const int32_t *row = r->ids + i * k;
    const bool no_data = row_is_no_data(row, r->k);
    for (size_t j = 0; j < k; j++)
        p->row[j] = no_data ? BL_EMPTY_SLOT : row[j];
    if (r->weights != NULL)
        memcpy(p->row_weights, r->weights + i * k, k * sizeof *p->row_weights);
    if (sets)
        sort_row(p->row, r->weights != NULL ? p->row_weights : NULL, r->k);
    if (p->form & BL_BLT_GAPS)
        to_gaps(p->row, r->k);
}

static bl_status reserve(bl_blt_packed *p, const bl_record *r, size_t slots, bl_error *err) {
    const int more = bl_blt_id_width(r->n_ids) - 1;
    void *row = p->row, *row_weights = p->row_weights;
    bl_status st = bl_grow(&row, &p->row_capacity, (size_t)r->k, sizeof *p->row, err);
    p->row = row;
    BL_TRY(st);
    st = bl_grow(&row_weights, &p->row_weights_capacity, (size_t)r->k, sizeof *p->row_weights, err);
    p->row_weights = row_weights;
    BL_TRY(st);
    p->low.used = p->high.used = p->bitmap.used = p->weights.used = 0;
    BL_TRY(bl_bytes_reserve(&p->low, slots, err));
    BL_TRY(bl_bytes_reserve(&p->high, slots * (size_t)more, err));
    BL_TRY(bl_bytes_reserve(&p->bitmap, (slots + 7) / 8, err));
    return bl_bytes_reserve(&p->weights, r->weights != NULL ? 2 * slots : 0, err);
}

static void put_id(bl_blt_packed *p, int32_t id, int width) {
    p->low.data[p->low.used++] = (unsigned char)id;
    if (width > 1) {
        bl_put_le(p->high.data + p->high.used, (uint32_t)id >> 8, width - 1);
        p->high.used += (size_t)(width - 1);
    }
}

bl_status bl_blt_pack_rows(bl_blt_packed *p, const bl_record *r, size_t first, size_t n,
                           uint64_t n_empty, bool sets, bl_error *err) {
    const int width = bl_blt_id_width(r->n_ids);
    const size_t k = (size_t)r->k, slots = n * k;
    BL_TRY(reserve(p, r, slots, err));
    p->n_empty = n_empty;
    p->form = (n_empty > 0 ? BL_BLT_HAS_EMPTIES : 0u) |
              (r->weights != NULL ? BL_BLT_HAS_WEIGHTS : 0u) |
              (sets && n_empty == 0 ? BL_BLT_GAPS : 0u);
    if (n_empty > 0) {
        p->bitmap.used = (slots + 7) / 8;
        memset(p->bitmap.data, 0, p->bitmap.used);
    }
    for (size_t i = 0; i < n; i++) {
        take_row(p, r, first + i, sets);
        for (size_t j = 0; j < k; j++) {
            const size_t slot = i * k + j;
            if (p->row[j] == BL_EMPTY_SLOT)
                p->bitmap.data[slot / 8] |= (unsigned char)(1u << (slot % 8));
            else
                put_id(p, p->row[j], width);
            if (r->weights != NULL) {
                bl_put_le(p->weights.data + p->weights.used, p->row_weights[j], 2);
                p->weights.used += 2;
            }
        }
    }
    return BL_OK;
}
