/* Does memory that Ballast writes to belong to one tensor of one slot alone, and are experts by pointers
 * of one shape? */
#include "runtime/bundle.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

static bool is_written(const bl_tensor *t) {
    return t->scope == BL_SCOPE_LOCAL || t->scope == BL_SCOPE_SLOT;
}

/* From the first byte to the last. */
static size_t span_of(const bl_tensor *t) {
    return (t->entries - 1) * t->entry_stride + (t->rows - 1) * t->row_stride + t->row_bytes;
}

/* Bytes of one entry, gaps included. */
static size_t reach_of(const bl_tensor *t) {
    return (t->rows - 1) * t->row_stride + t->row_bytes;
}

/* Are the stretches of `a` and `b`, repeated every `period` bytes, apart? b begins `shift` later. */
static bool fit_in_period(size_t shift, size_t period, size_t a, size_t b) {
    const size_t at = shift % period;
    return at >= a && b <= period - at;
}

/* Proof that two tensors share no byte; a view that interleaves with another in some odder way
 * counts as one that does. */
static bool are_apart(const bl_tensor *a, const bl_tensor *b) {
    const uintptr_t at_a = (uintptr_t)a->base, at_b = (uintptr_t)b->base;
    if (a->entries == 0 || b->entries == 0)
        return true;
    if (at_a > at_b)
        return are_apart(b, a);
    const size_t shift = (size_t)(at_b - at_a);
    if (shift >= span_of(a))
        return true;
    if (a->entry_stride == b->entry_stride && a->row_stride == b->row_stride &&
        a->entry_stride % a->row_stride == 0 &&
        fit_in_period(shift, a->row_stride, a->row_bytes, b->row_bytes))
        return true; /* columns of one table */
    return a->entry_stride == b->entry_stride && a->entries > 1 &&
           fit_in_period(shift, a->entry_stride, reach_of(a),
                         reach_of(b)); /* an array of structs */
}

/* A tensor, or one entry of a tensor that is found by pointers. */
typedef struct region {
    bl_tensor view;
    int layer, order; /* order: as declared, over all layers */
} region;

static int by_address(const void *a, const void *b) {
    const uintptr_t at_a = (uintptr_t)((const region *)a)->view.base;
    const uintptr_t at_b = (uintptr_t)((const region *)b)->view.base;
    return (at_a > at_b) - (at_a < at_b);
}

static size_t count_regions(const bl_bundle *bundles, int n) {
    size_t count = 0;
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < bundles[i].n_tensors; t++) {
            const bl_tensor *tensor = &bundles[i].tensors[t];
            count += tensor->pointers != NULL ? tensor->entries + (size_t)bundles[i].n_spares : 1;
        }
    }
    return count;
}

/* Entries of a table lie anywhere, each is a tensor of one entry. */
static size_t add_regions(const bl_bundle *bundle, const bl_tensor *t, int order, region *out) {
    const size_t n = t->pointers != NULL ? t->entries + (size_t)bundle->n_spares : t->entries > 0;
    for (size_t i = 0; i < n; i++) {
        out[i] = (region){*t, bundle->layer, order};
        if (t->pointers != NULL) {
            out[i].view.base = t->pointers[i];
            out[i].view.entries = 1;
        }
    }
    return n;
}

static bl_status complain(const region *a, const region *b, bl_error *err) {
    const region *later = a->order > b->order ? a : b, *other = later == a ? b : a;
    if (a->order == b->order)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, a->layer),
                          "tensor %s: two of its pointers lead to the same memory", a->view.name);
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, later->layer),
                      "tensor %s lies over tensor %s of layer %d", later->view.name,
                      other->view.name, other->layer);
}

/* Whoever begins within the span of an earlier one has to be apart from it. */
static bl_status check_sorted(const region *regions, size_t n, bl_error *err) {
    for (size_t i = 0; i < n; i++) {
        const bl_tensor *a = &regions[i].view;
        const size_t span = span_of(a);
        for (size_t j = i + 1; j < n; j++) {
            const bl_tensor *b = &regions[j].view;
            if ((uintptr_t)b->base - (uintptr_t)a->base >= span)
                break;
            if ((is_written(a) || is_written(b)) && !are_apart(a, b))
                return complain(&regions[i], &regions[j], err);
        }
    }
    return BL_OK;
}

bl_status bl_bundles_check_apart(const bl_bundle *bundles, int n, bl_error *err) {
    region *regions;
    size_t n_regions = 0;
    int order = 0;
    BL_TRY(BL_CALLOC(regions, count_regions(bundles, n), err));
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < bundles[i].n_tensors; t++)
            n_regions +=
                add_regions(&bundles[i], &bundles[i].tensors[t], order++, &regions[n_regions]);
    }
    qsort(regions, n_regions, sizeof *regions, by_address);
    const bl_status st = check_sorted(regions, n_regions, err);
    free(regions);
    return st;
}

/* ---- alike ----------------------------------------------------------------------------------- */

static const bl_tensor *next_moved(const bl_bundle *bundle, int *i) {
    while (*i < bundle->n_tensors && !bl_tensor_is_moved(&bundle->tensors[*i]))
        ++*i;
    return *i < bundle->n_tensors ? &bundle->tensors[(*i)++] : NULL;
}

static bl_status check_pair(const bl_bundle *first, const bl_bundle *other, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, other->layer);
    int i = 0, j = 0;
    for (;;) {
        const bl_tensor *a = next_moved(first, &i), *b = next_moved(other, &j);
        if (a == NULL && b == NULL)
            return BL_OK;
        if (a == NULL || b == NULL || strcmp(a->name, b->name) != 0)
            return bl_fail_at(err, BL_ERR_SHAPE, where,
                              "tensor %s: layer %d has none such. Layers by pointers share their "
                              "spares, so their experts consist of the same tensors",
                              b != NULL ? b->name : a->name,
                              b != NULL ? first->layer : other->layer);
        if (a->rows != b->rows || a->row_bytes != b->row_bytes || a->row_stride != b->row_stride)
            return bl_fail_at(err, BL_ERR_SHAPE, where,
                              "tensor %s: %zu rows of %zu bytes, %zu apart, and in layer %d %zu of "
                              "%zu, %zu apart. Layers by pointers share their spares, so their "
                              "experts have one shape",
                              b->name, b->rows, b->row_bytes, b->row_stride, first->layer, a->rows,
                              a->row_bytes, a->row_stride);
    }
}

bl_status bl_bundles_check_alike(const bl_bundle *bundles, int n, bl_error *err) {
    for (int i = 1; i < n; i++) {
        if (bundles[i].by_pointers != bundles[0].by_pointers)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, bundles[i].layer),
                              "its experts are found by %s, those of layer %d are not: a rank's "
                              "layers are declared in one way",
                              bundles[i].by_pointers ? "pointers" : "a base", bundles[0].layer);
        if (bundles[0].by_pointers)
            BL_TRY(check_pair(&bundles[0], &bundles[i], err));
    }
    return BL_OK;
}
