#include "runtime/bundle.h"

#include "core/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const scope_names[] = {"per local expert", "per slot of all ranks",
                                          "per global expert", "per layer"};
#define MAX_SPARES ((size_t)65536)
#define MAX_TENSOR_SIZE ((size_t)4096) /* of the struct, in whatever header to come */
#define N_SCOPES ((int)(sizeof scope_names / sizeof *scope_names))

const char *bl_scope_name(int scope) {
    return scope >= 0 && scope < N_SCOPES ? scope_names[scope] : "of unknown scope";
}

static int copy_in_host(void *user, void *to, size_t to_stride, const void *from,
                        size_t from_stride, size_t row_bytes, size_t rows) {
    (void)user;
    for (size_t row = 0; row < rows; row++)
        memcpy((unsigned char *)to + row * to_stride,
               (const unsigned char *)from + row * from_stride, row_bytes);
    return 0;
}

/* ---- what is declared ------------------------------------------------------------------------ */

static size_t entry_bytes(const bl_tensor *t) {
    return t->rows * t->row_bytes;
}

size_t bl_tensor_bytes(const bl_tensor *tensor) {
    return tensor->entries * entry_bytes(tensor);
}

bool bl_tensor_is_moved(const bl_tensor *t) {
    return t->scope == BL_SCOPE_LOCAL && t->recomputed == 0;
}

/* Bytes of one entry, gaps included. */
static size_t reach_of(const bl_tensor *t) {
    return (t->rows - 1) * t->row_stride + t->row_bytes;
}

static bl_status check_entries(const bl_bundle_shape *shape, const bl_tensor *t, bl_error *err) {
    const int wanted[] = {shape->own_slots, shape->n_slots, shape->n_experts, 1};
    const bl_where where = bl_at_layer(NULL, shape->layer);
    if (t->scope < 0 || t->scope >= N_SCOPES)
        return bl_fail_at(err, BL_ERR_RANGE, where, "tensor %s: scope %d is none of BL_SCOPE_...",
                          t->name, t->scope);
    if (t->entries != (size_t)wanted[t->scope])
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "tensor %s: its leading dimension is %zu and it is declared %s, of which "
                          "there are %d",
                          t->name, t->entries, scope_names[t->scope], wanted[t->scope]);
    return BL_OK;
}

/* Does a tensor say in one way where it lies, and may it do so by pointers? */
static bl_status check_place(const bl_bundle_shape *shape, const bl_tensor *t, size_t n_spares,
                             bl_error *err) {
    const bl_where where = bl_at_layer(NULL, shape->layer);
    if (t->pointers == NULL && t->base == NULL && t->entries > 0)
        return bl_fail_at(err, BL_ERR_USAGE, where, "tensor %s has no memory", t->name);
    if (t->pointers == NULL)
        return BL_OK;
    if (t->base != NULL)
        return bl_fail_at(err, BL_ERR_USAGE, where,
                          "tensor %s has a base and pointers: one of them", t->name);
    if (!bl_tensor_is_moved(t))
        return bl_fail_at(
            err, BL_ERR_USAGE, where,
            "tensor %s: only what moves with an expert is found by pointers, and this "
            "one is %s",
            t->name, t->recomputed ? "recomputed" : scope_names[t->scope]);
    if (t->entry_stride != 0)
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "tensor %s: entries found by pointers are no stride apart, and it says "
                          "%zu bytes",
                          t->name, t->entry_stride);
    for (size_t i = 0; i < t->entries + n_spares; i++) {
        if (t->pointers[i] == NULL)
            return bl_fail_at(err, BL_ERR_USAGE, where,
                              "tensor %s: its pointer %zu (of %s) is NULL", t->name, i,
                              i < t->entries ? "a slot" : "a spare");
    }
    return BL_OK;
}

/* Fill in strides and prove that no byte of the tensor has two names: rows lie within their entry's
 * stretch, or entries within their row's. */
static bl_status check_view(const bl_bundle_shape *shape, bl_tensor *t, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, shape->layer);
    size_t reach, ignored;
    if (t->rows == 0 || t->row_bytes == 0)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "tensor %s: %zu rows of %zu bytes", t->name,
                          t->rows, t->row_bytes);
    if (t->row_stride == 0)
        t->row_stride = t->row_bytes;
    if (t->entry_stride == 0 && !bl_size_mul(t->rows, t->row_stride, &t->entry_stride))
        t->entry_stride = SIZE_MAX;
    if (!bl_size_mul(t->rows, t->row_bytes, &ignored) ||
        !bl_size_mul(t->rows, t->row_stride, &reach) ||
        !bl_size_mul(t->entries, t->entry_stride, &ignored) ||
        !bl_size_add(reach, ignored, &ignored) || ignored > PTRDIFF_MAX)
        return bl_fail_at(err, BL_ERR_RANGE, where,
                          "tensor %s: %zu x %zu rows with these strides are more than memory holds",
                          t->name, t->entries, t->rows);
    const bool rows_inside = (t->rows == 1 || t->row_stride >= t->row_bytes) &&
                             (t->entries <= 1 || t->entry_stride >= reach_of(t));
    const bool entries_inside =
        (t->entries <= 1 || t->entry_stride >= t->row_bytes) && t->entries > 0 &&
        (t->rows == 1 || t->row_stride >= (t->entries - 1) * t->entry_stride + t->row_bytes);
    if (!rows_inside && !entries_inside)
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "tensor %s cannot be viewed row by row: rows of %zu bytes, %zu bytes "
                          "apart, in entries %zu bytes apart lie over each other",
                          t->name, t->row_bytes, t->row_stride, t->entry_stride);
    return BL_OK;
}

static bl_status take_text(const bl_bundle_shape *shape, const char *from, const char *what,
                           size_t room, const char **out, bl_error *err) {
    if (from == NULL)
        from = "";
    const size_t length = strlen(from);
    char *copy;
    if (length >= room)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, shape->layer),
                          "the %s \"%.40s...\" of a tensor is longer than %zu bytes", what, from,
                          room - 1);
    BL_TRY(BL_CALLOC(copy, length + 1, err));
    memcpy(copy, from, length);
    *out = copy;
    return BL_OK;
}

static bl_status take_tensor(const bl_bundle_shape *shape, const bl_tensor *declared,
                             size_t n_spares, bl_tensor *out, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, shape->layer);
    const char *name = declared->name, *layout = declared->layout;
    *out = *declared;
    out->name = out->layout = NULL; /* what is freed is owned */
    if (name == NULL || name[0] == '\0')
        return bl_fail_at(err, BL_ERR_USAGE, where, "a tensor without a name");
    BL_TRY(take_text(shape, name, "name", BL_TENSOR_NAME_BYTES, &out->name, err));
    BL_TRY(take_text(shape, layout, "layout tag", BL_TENSOR_LAYOUT_BYTES, &out->layout, err));
    BL_TRY(check_entries(shape, out, err));
    BL_TRY(check_place(shape, out, n_spares, err));
    return check_view(shape, out, err);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const bl_tensor *)a)->name, ((const bl_tensor *)b)->name);
}

static bool is_declared(const bl_bundle *bundle, const char *name) {
    for (int i = 0; i < bundle->n_tensors; i++) {
        if (strcmp(bundle->tensors[i].name, name) == 0)
            return true;
    }
    return false;
}

/* An array of structs as large as the caller's header made them. */
static bl_status take_all(const bl_layer *declared, const bl_bundle_shape *shape, bl_bundle *out,
                          bl_error *err) {
    const unsigned char *at = (const unsigned char *)declared->tensors;
    BL_TRY(BL_CALLOC(out->tensors, declared->n_tensors, err));
    for (int i = 0; i < declared->n_tensors; i++) {
        bl_tensor one = BL_TENSOR_INIT;
        size_t size;
        memcpy(&size, at, sizeof size);
        if (size < offsetof(bl_tensor, recomputed) + sizeof one.recomputed ||
            size > MAX_TENSOR_SIZE)
            return bl_fail_at(err, BL_ERR_VERSION, bl_at_layer(NULL, shape->layer),
                              "tensor %d has size %zu; use BL_TENSOR_INIT", i, size);
        memcpy(&one, at, size < sizeof one ? size : sizeof one);
        out->n_tensors++;
        BL_TRY(take_tensor(shape, &one, declared->n_spares, &out->tensors[i], err));
        at += size;
    }
    return BL_OK;
}

/* One more tensor of the bundle: by pointers as the others are, or not as they are not. */
static bl_status take_moved(const bl_tensor *t, size_t n_spares, bl_bundle *out, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, out->layer);
    const bool by_pointers = t->pointers != NULL;
    if (out->n_moved > 0 && out->by_pointers != by_pointers)
        return bl_fail_at(
            err, BL_ERR_SHAPE, where,
            "tensor %s is found by %s and others are not: what moves with an expert is "
            "found in one way",
            t->name, by_pointers ? "pointers" : "a base");
    if (!by_pointers && n_spares > 0)
        return bl_fail_at(err, BL_ERR_USAGE, where,
                          "tensor %s is found by a base, and its spares are Ballast's own "
                          "(bl_embed_options.spares): n_spares is for pointers",
                          t->name);
    if (!bl_size_add(out->bytes, entry_bytes(t), &out->bytes))
        return bl_fail_at(err, BL_ERR_RANGE, where, "its experts are more than memory holds");
    out->by_pointers = by_pointers;
    out->n_spares = (int)n_spares;
    out->n_moved++;
    return BL_OK;
}

static bl_status fill(const bl_layer *declared, const bl_bundle_shape *shape, bl_bundle *out,
                      bl_error *err) {
    const bl_where where = bl_at_layer(NULL, shape->layer);
    if (declared->n_spares > MAX_SPARES)
        return bl_fail_at(err, BL_ERR_RANGE, where, "%zu spares", declared->n_spares);
    BL_TRY(take_all(declared, shape, out, err));
    qsort(out->tensors, (size_t)out->n_tensors, sizeof *out->tensors, by_name);
    for (int i = 0; i < out->n_tensors; i++) {
        const bl_tensor *t = &out->tensors[i];
        if (i > 0 && strcmp(t->name, out->tensors[i - 1].name) == 0)
            return bl_fail_at(err, BL_ERR_USAGE, where, "tensor %s is declared twice", t->name);
        if (bl_tensor_is_moved(t))
            BL_TRY(take_moved(t, declared->n_spares, out, err));
        if (t->scope == BL_SCOPE_SLOT && bl_tensor_bytes(t) > out->table_bytes)
            out->table_bytes = bl_tensor_bytes(t);
    }
    for (int i = 0; i < declared->n_inventory; i++) {
        const char *name = declared->inventory[i];
        if (name != NULL && !is_declared(out, name))
            return bl_fail_at(
                err, BL_ERR_SHAPE, where,
                "tensor %s is not declared: say what it is (scope, strides, layout) or "
                "it would stay behind when its expert moves",
                name);
    }
    if (out->bytes == 0)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "no tensor moves with an expert");
    return BL_OK;
}

bl_status bl_bundle_create(const bl_layer *declared, const bl_bundle_shape *shape, bl_copy_fn *copy,
                           void *copy_user, bl_bundle *out, bl_error *err) {
    bl_bundle made = {.layer = shape->layer,
                      .own_slots = shape->own_slots,
                      .n_slots = shape->n_slots,
                      .copy = copy != NULL ? copy : copy_in_host,
                      .copy_user = copy_user};
    const bl_status st = fill(declared, shape, &made, err);
    if (st < 0)
        bl_bundle_free(&made);
    else
        *out = made;
    return st;
}

void bl_bundle_free(bl_bundle *bundle) {
    for (int i = 0; i < bundle->n_tensors; i++) {
        free((void *)bundle->tensors[i].name);
        free((void *)bundle->tensors[i].layout);
    }
    free(bundle->tensors);
    *bundle = (bl_bundle){0};
}

/* ---- copying --------------------------------------------------------------------------------- */

static unsigned char *at_entry(const bl_tensor *t, size_t entry) {
    return (unsigned char *)t->base + entry * t->entry_stride;
}

static bl_status copy(const bl_bundle *bundle, const bl_tensor *t, void *to, size_t to_stride,
                      const void *from, size_t from_stride, size_t row_bytes, size_t rows,
                      bl_error *err) {
    if (rows == 0 || row_bytes == 0)
        return BL_OK;
    if (rows > 1 && to_stride == row_bytes && from_stride == row_bytes) { /* one piece */
        row_bytes *= rows;
        rows = 1;
        to_stride = from_stride = row_bytes;
    }
    const int rc =
        bundle->copy(bundle->copy_user, to, to_stride, from, from_stride, row_bytes, rows);
    if (rc != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at_layer(NULL, bundle->layer),
                          "tensor %s: the engine's copy of %zu rows of %zu bytes failed with %d",
                          t->name, rows, row_bytes, rc);
    return BL_OK;
}

/* Between host memory and an entry; `in` or `out` is NULL. */
typedef struct side {
    const unsigned char *in;
    unsigned char *out;
} side;

static bl_status copy_rows(const bl_bundle *bundle, const bl_tensor *t, unsigned char *at,
                           size_t at_stride, side *host, size_t width, size_t rows, bl_error *err) {
    if (host->out != NULL) {
        BL_TRY(copy(bundle, t, host->out, width, at, at_stride, width, rows, err));
        host->out += rows * width;
    } else {
        BL_TRY(copy(bundle, t, at, at_stride, host->in, width, width, rows, err));
        host->in += rows * width;
    }
    return BL_OK;
}

/* Bytes offset .. offset + n of an entry, which need not begin or end with a row. */
static bl_status copy_entry(const bl_bundle *bundle, const bl_tensor *t, unsigned char *entry,
                            size_t offset, side *host, size_t n, bl_error *err) {
    const size_t width = t->row_bytes, stride = t->row_stride, column = offset % width;
    unsigned char *at = entry + offset / width * stride;
    if (column > 0 || n < width) { /* the rest of a row */
        const size_t head = n < width - column ? n : width - column;
        BL_TRY(copy_rows(bundle, t, at + column, head, host, head, 1, err));
        n -= head;
        at += stride;
    }
    const size_t rows = n / width, tail = n % width;
    BL_TRY(copy_rows(bundle, t, at, stride, host, width, rows, err));
    return tail > 0 ? copy_rows(bundle, t, at + rows * stride, tail, host, tail, 1, err) : BL_OK;
}

/* Where the m-th tensor that moves has its entry: as `at` says, or in `slot`. */
static unsigned char *entry_of(const bl_tensor *t, void *const *at, int m, int slot) {
    return at != NULL ? at[m] : at_entry(t, (size_t)slot);
}

/* Bytes offset .. offset + n of a bundle, as far as it has them; *n is what is left. */
static bl_status copy_bundle(const bl_bundle *bundle, void *const *at, int slot, size_t offset,
                             side *host, size_t *n, bl_error *err) {
    size_t begin = 0;
    int m = 0;
    for (int i = 0; i<bundle->n_tensors && * n> 0; i++) {
        const bl_tensor *t = &bundle->tensors[i];
        if (!bl_tensor_is_moved(t))
            continue;
        const size_t end = begin + entry_bytes(t);
        if (offset < end) {
            const size_t part = *n < end - offset ? *n : end - offset;
            BL_TRY(
                copy_entry(bundle, t, entry_of(t, at, m, slot), offset - begin, host, part, err));
            offset += part;
            *n -= part;
        }
        begin = end;
        m++;
    }
    return BL_OK;
}

static bl_status read_bundle(const bl_bundle *bundle, void *const *at, int slot, size_t offset,
                             void *out, size_t n, bl_error *err) {
    side host = {.out = out};
    BL_TRY(copy_bundle(bundle, at, slot, offset, &host, &n, err));
    memset(host.out, 0, n);
    return BL_OK;
}

bl_status bl_bundle_read(const bl_bundle *bundle, int slot, size_t offset, void *out, size_t n,
                         bl_error *err) {
    return read_bundle(bundle, NULL, slot, offset, out, n, err);
}

bl_status bl_bundle_read_at(const bl_bundle *bundle, void *const *at, size_t offset, void *out,
                            size_t n, bl_error *err) {
    return read_bundle(bundle, at, 0, offset, out, n, err);
}

bl_status bl_bundle_write(const bl_bundle *bundle, int slot, size_t offset, const void *in,
                          size_t n, bl_error *err) {
    side host = {.in = in};
    return copy_bundle(bundle, NULL, slot, offset, &host, &n, err);
}

bl_status bl_bundle_write_at(const bl_bundle *bundle, void *const *at, size_t offset,
                             const void *in, size_t n, bl_error *err) {
    side host = {.in = in};
    return copy_bundle(bundle, at, 0, offset, &host, &n, err);
}

bl_status bl_bundle_copy(const bl_bundle *bundle, int to, int from, bl_error *err) {
    for (int i = 0; i < bundle->n_tensors; i++) {
        const bl_tensor *t = &bundle->tensors[i];
        if (bl_tensor_is_moved(t))
            BL_TRY(copy(bundle, t, at_entry(t, (size_t)to), t->row_stride,
                        at_entry(t, (size_t)from), t->row_stride, t->row_bytes, t->rows, err));
    }
    return BL_OK;
}

/* ---- tables over all slots ------------------------------------------------------------------- */

static bl_status read_table(const bl_bundle *bundle, const bl_tensor *t, unsigned char *out,
                            bl_error *err) {
    for (size_t entry = 0; entry < t->entries; entry++)
        BL_TRY(copy(bundle, t, out + entry * entry_bytes(t), t->row_bytes, at_entry(t, entry),
                    t->row_stride, t->row_bytes, t->rows, err));
    return BL_OK;
}

static bl_status reorder_table(const bl_bundle *bundle, const bl_tensor *t,
                               const bl_layer_placement *now, const bl_layer_placement *next,
                               unsigned char *table, bl_error *err) {
    const size_t bytes = entry_bytes(t);
    BL_TRY(read_table(bundle, t, table, err));
    for (int slot = 0; slot < bundle->n_slots; slot++) {
        const int32_t expert = next->expert[slot];
        int from = 0;
        if (expert == BL_NO_EXPERT || expert == now->expert[slot])
            continue;
        while (now->expert[from] != expert) /* every expert has a copy */
            from++;
        BL_TRY(copy(bundle, t, at_entry(t, (size_t)slot), t->row_stride,
                    table + (size_t)from * bytes, t->row_bytes, t->row_bytes, t->rows, err));
    }
    return BL_OK;
}

bl_status bl_bundle_reorder(const bl_bundle *bundle, const bl_layer_placement *now,
                            const bl_layer_placement *next, void *scratch, bl_error *err) {
    for (int i = 0; i < bundle->n_tensors; i++) {
        const bl_tensor *t = &bundle->tensors[i];
        if (t->scope == BL_SCOPE_SLOT && t->recomputed == 0)
            BL_TRY(reorder_table(bundle, t, now, next, scratch, err));
    }
    return BL_OK;
}

bl_status bl_bundle_hash_tensor(const bl_bundle *bundle, const bl_tensor *tensor,
                                const bl_layer_placement *map, void *scratch, uint64_t *hash,
                                bl_error *err) {
    const size_t bytes = entry_bytes(tensor);
    BL_TRY(read_table(bundle, tensor, scratch, err));
    for (int slot = 0; tensor->scope == BL_SCOPE_SLOT && slot < bundle->n_slots; slot++) {
        if (map->expert[slot] == BL_NO_EXPERT)
            memset((unsigned char *)scratch + (size_t)slot * bytes, 0, bytes);
    }
    *hash = bl_hash64(scratch, bl_tensor_bytes(tensor));
    return BL_OK;
}
