#include "tests/support/foreign.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 4
#define F8 4

float bl_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    if (exponent == 15 && mantissa == 7)
        value = NAN;
    return bits & 128 ? -value : value;
}

/* ---- what an expert is ----------------------------------------------------------------------- */

static int8_t weight(int layer, int expert, int version, int row, int column) {
    return (int8_t)((layer * 31 + expert * 7 + version * 11 + row * 5 + column) % 200 - 100);
}

static float scale(int layer, int expert, int version, int row) {
    return (float)(1 + expert) * 0.5f + (float)row * 0.125f + (float)(version + layer);
}

static uint8_t eight(int layer, int expert, int version, int i) {
    return (uint8_t)((layer + expert * 13 + version * 5 + i * 3) % 126); /* no NaN */
}

static float table_entry(int layer, int expert, int version) {
    return (float)(layer * 1000 + expert * 10 + version);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *room(int n, size_t bytes) {
    return calloc((size_t)n + 1, bytes);
}

static const size_t part_bytes[FOREIGN_PARTS] = {FOREIGN_ROWS * FOREIGN_ROW_STRIDE,
                                                 FOREIGN_ROWS * sizeof(float), F8 *F8,
                                                 BLOCKS * sizeof(float)};

void *bl_foreign_at(const bl_foreign *f, bl_foreign_part part, int slot) {
    return f->at[part][slot];
}

/* One part of all entries, in one piece or in many. */
static bool make_part(bl_foreign *f, int part) {
    const int n = f->own_slots + f->n_spares;
    f->at[part] = room(n, sizeof(void *));
    f->pieces[part] = room(n, sizeof(void *));
    if (f->at[part] == NULL || f->pieces[part] == NULL)
        return false;
    if (!f->by_pointers)
        f->pieces[part][0] = room(n, part_bytes[part]);
    for (int i = 0; i < n; i++) {
        if (f->by_pointers)
            f->pieces[part][i] = room(0, part_bytes[part]);
        f->at[part][i] = f->by_pointers
                             ? f->pieces[part][i]
                             : (unsigned char *)f->pieces[part][0] + (size_t)i * part_bytes[part];
    }
    return true;
}

static bl_foreign *create(const bl_layer_placement *map, int rank, int version, bool by_pointers,
                          int n_spares) {
    bl_foreign *f = calloc(1, sizeof *f);
    bool made = f != NULL;
    if (!made)
        return NULL;
    f->layer = map->layer;
    f->rank = rank;
    f->own_slots = map->begin[rank + 1] - map->begin[rank];
    f->n_slots = map->begin[map->n_ranks];
    f->n_experts = map->n_experts;
    f->by_pointers = by_pointers;
    f->n_spares = n_spares;
    for (int part = 0; part < FOREIGN_PARTS; part++)
        made = made && make_part(f, part);
    f->row_sum = room(f->own_slots, FOREIGN_ROWS * sizeof *f->row_sum);
    f->bias = room(f->n_slots, sizeof *f->bias);
    f->gain = room(f->n_experts, sizeof *f->gain);
    f->alpha = (float)map->layer;
    if (!made || !f->row_sum || !f->bias || !f->gain) {
        bl_foreign_free(f);
        return NULL;
    }
    bl_foreign_load(f, map->expert, map->begin, version);
    return f;
}

bl_foreign *bl_foreign_new(const bl_layer_placement *map, int rank, int version) {
    return create(map, rank, version, false, 0);
}

bl_foreign *bl_foreign_new_by_pointers(const bl_layer_placement *map, int rank, int version,
                                       int n_spares) {
    return create(map, rank, version, true, n_spares);
}

void bl_foreign_free(bl_foreign *f) {
    if (f == NULL)
        return;
    for (int part = 0; part < FOREIGN_PARTS; part++) {
        const int n = f->pieces[part] == NULL ? 0 : f->by_pointers ? f->own_slots + f->n_spares : 1;
        for (int i = 0; i < n; i++)
            free(f->pieces[part][i]);
        free(f->pieces[part]);
        free(f->at[part]);
    }
    free(f->row_sum);
    free(f->bias);
    free(f->gain);
    free(f);
}

static void sum_rows(bl_foreign *f, int slot) {
    for (int row = 0; row < FOREIGN_ROWS; row++) {
        const int8_t *w = (int8_t *)f->at[FOREIGN_W][slot] + row * FOREIGN_ROW_STRIDE;
        int32_t sum = 0;
        for (int column = 0; column < FOREIGN_COLUMNS; column++)
            sum += w[column];
        f->row_sum[slot * FOREIGN_ROWS + row] = sum;
    }
}

/* A tensor of an expert, rows of w `stride` bytes apart. */
static void make_part_of(int layer, int expert, int version, int part, size_t stride, void *to) {
    int8_t *w = to;
    float *scales = to;
    uint8_t *f8 = to;
    for (int row = 0; part == FOREIGN_W && row < FOREIGN_ROWS; row++) {
        for (int column = 0; column < FOREIGN_COLUMNS; column++)
            w[(size_t)row * stride + (size_t)column] = weight(layer, expert, version, row, column);
    }
    for (int row = 0; part == FOREIGN_W_SCALE && row < FOREIGN_ROWS; row++)
        scales[row] = scale(layer, expert, version, row);
    for (int i = 0; part == FOREIGN_F8 && i < F8 * F8; i++)
        f8[i] = eight(layer, expert, version, i);
    for (int i = 0; part == FOREIGN_F8_SCALE && i < BLOCKS; i++)
        scales[i] = scale(layer, expert, version, i) * 2;
}

void bl_foreign_load_slot(bl_foreign *f, int slot, int expert, int version) {
    for (int part = 0; part < FOREIGN_PARTS; part++)
        make_part_of(f->layer, expert, version, part, FOREIGN_ROW_STRIDE, f->at[part][slot]);
    sum_rows(f, slot);
}

static const char *const part_names[FOREIGN_PARTS] = {"w", "w_scale", "f8", "f8_scale"};

bool bl_foreign_tensor(int layer, int expert, int version, const char *name, void *to,
                       size_t bytes) {
    for (int part = 0; part < FOREIGN_PARTS; part++) {
        const size_t whole = part == FOREIGN_W ? FOREIGN_ROWS * FOREIGN_COLUMNS : part_bytes[part];
        if (strcmp(name, part_names[part]) != 0)
            continue;
        if (bytes != whole)
            return false;
        make_part_of(layer, expert, version, part, FOREIGN_COLUMNS, to);
        return true;
    }
    return false;
}

void bl_foreign_load(bl_foreign *f, const int32_t *expert, const int *begin, int version) {
    for (int slot = 0; slot < f->n_slots; slot++) {
        if (expert[slot] == BL_NO_EXPERT)
            continue;
        f->bias[slot] = table_entry(f->layer, expert[slot], version);
        if (slot >= begin[f->rank] && slot < begin[f->rank + 1])
            bl_foreign_load_slot(f, slot - begin[f->rank], expert[slot], version);
    }
    for (int e = 0; e < f->n_experts; e++)
        f->gain[e] = table_entry(f->layer, e, version);
}

/* ---- declaring ------------------------------------------------------------------------------- */

static bl_tensor tensor(const char *name, void *base, int scope, int entries, size_t rows,
                        size_t row_bytes) {
    bl_tensor t = BL_TENSOR_INIT;
    t.name = name;
    t.base = base;
    t.scope = scope;
    t.entries = (size_t)entries;
    t.rows = rows;
    t.row_bytes = row_bytes;
    return t;
}

static bl_tensor moved(const bl_foreign *f, int part, size_t rows, size_t row_bytes) {
    bl_tensor t =
        tensor(part_names[part], f->pieces[part][0], BL_SCOPE_LOCAL, f->own_slots, rows, row_bytes);
    if (f->by_pointers) {
        t.base = NULL;
        t.pointers = f->at[part];
    }
    return t;
}

void bl_foreign_declare(bl_foreign *f, bl_tensor *out) {
    const int n = f->own_slots;
    out[0] = moved(f, FOREIGN_W, FOREIGN_ROWS, FOREIGN_COLUMNS);
    out[0].row_stride = FOREIGN_ROW_STRIDE;
    out[0].layout = "int8 row-major";
    out[1] = moved(f, FOREIGN_W_SCALE, 1, FOREIGN_ROWS * sizeof(float));
    out[2] = moved(f, FOREIGN_F8, F8, F8);
    out[2].layout = "e4m3";
    out[3] = moved(f, FOREIGN_F8_SCALE, 1, BLOCKS * sizeof(float));
    out[4] = tensor("row_sum", f->row_sum, BL_SCOPE_LOCAL, n, 1, FOREIGN_ROWS * sizeof(int32_t));
    out[4].recomputed = 1;
    out[5] = tensor("bias", f->bias, BL_SCOPE_SLOT, f->n_slots, 1, sizeof(float));
    out[6] = tensor("gain", f->gain, BL_SCOPE_EXPERT, f->n_experts, 1, sizeof(float));
    out[7] = tensor("alpha", &f->alpha, BL_SCOPE_LAYER, 1, 1, sizeof(float));
}

int bl_foreign_recompute(void *user, int layer, const char *const *tensors, int n_tensors,
                         const int *slots, int n_slots) {
    for (bl_foreign **all = user; *all != NULL; all++) {
        if ((*all)->layer != layer)
            continue;
        if (n_tensors != 1 || strcmp(tensors[0], "row_sum") != 0)
            return 1;
        (*all)->n_recomputed++;
        for (int i = 0; i < n_slots; i++)
            sum_rows(*all, slots[i]);
        return 0;
    }
    return 2;
}

/* ---- checking -------------------------------------------------------------------------------- */

bool bl_foreign_holds(const bl_foreign *f, int slot, int expert, int version) {
    const int8_t *w = f->at[FOREIGN_W][slot];
    const float *w_scale = f->at[FOREIGN_W_SCALE][slot], *f8_scale = f->at[FOREIGN_F8_SCALE][slot];
    const uint8_t *f8 = f->at[FOREIGN_F8][slot];
    bool same = true;
    for (int row = 0; row < FOREIGN_ROWS; row++) {
        int32_t sum = 0;
        for (int column = 0; column < FOREIGN_COLUMNS; column++) {
            const int8_t want = weight(f->layer, expert, version, row, column);
            const float got = (float)w[row * FOREIGN_ROW_STRIDE + column] * w_scale[row];
            same = same && got == (float)want * scale(f->layer, expert, version, row);
            sum += want;
        }
        same = same && f->row_sum[slot * FOREIGN_ROWS + row] == sum;
    }
    for (int i = 0; i < F8 * F8; i++) {
        const int block = i / F8 / 2 * 2 + i % F8 / 2;
        const float got = bl_e4m3(f8[i]) * f8_scale[block];
        const float want = bl_e4m3(eight(f->layer, expert, version, i)) *
                           scale(f->layer, expert, version, block) * 2;
        same = same && got == want;
    }
    return same;
}

bool bl_foreign_is(const bl_foreign *f, const int32_t *expert, const int *begin, int version) {
    bool same = true;
    for (int slot = 0; slot < f->n_slots; slot++) {
        if (expert[slot] == BL_NO_EXPERT)
            continue;
        same = same && f->bias[slot] == table_entry(f->layer, expert[slot], version);
        if (slot >= begin[f->rank] && slot < begin[f->rank + 1])
            same = same && bl_foreign_holds(f, slot - begin[f->rank], expert[slot], version);
    }
    for (int e = 0; e < f->n_experts; e++)
        same = same && f->gain[e] == table_entry(f->layer, e, version);
    return same;
}
