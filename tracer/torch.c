/*
 * torch.c: the pickle machine of torch.h: a stack, a memo, and one row per opcode that torch.save
 * writes. All values live in one arena.
 */
#include "tracer/torch.h"

#include "core/io.h"
#include "tracer/le.h"
#include "tracer/torch_zip.h"

#include <stdlib.h>

#define MAX_FILE_BYTES ((size_t)1 << 33)
#define MAX_VALUES ((size_t)1 << 25) /* 1 GiB */
#define MAX_STACK ((size_t)1 << 20)

struct bl_torch {
    char *file; /* owned when opened from a path, else NULL */
    char *path;
    bl_zip zip;
    bl_arena *arena;
    bl_torch_value *root;

    const unsigned char *start, *at, *end; /* of the pickle */
    bl_torch_value **stack;                /* NULL entries are marks */
    size_t n_stack, stack_capacity;
    bl_torch_value **memo;
    size_t n_memo;
    size_t n_values;
    bool stopped;
};

/* What may be named by a pickle: tensors' storages and the calls that rebuild tensors. */
typedef struct allowed_global {
    const char *name; /* "module name" */
    char kind;        /* of a storage's items; 0: not a storage */
    int item_bytes;
} allowed_global;

static const allowed_global ALLOWED[] = {{"torch._utils _rebuild_tensor_v2", 0, 0},
                                         {"collections OrderedDict", 0, 0},
                                         {"torch ByteStorage", 'u', 1},
                                         {"torch CharStorage", 'i', 1},
                                         {"torch ShortStorage", 'i', 2},
                                         {"torch IntStorage", 'i', 4},
                                         {"torch LongStorage", 'i', 8},
                                         {"torch HalfStorage", 'f', 2},
                                         {"torch FloatStorage", 'f', 4},
                                         {"torch DoubleStorage", 'f', 8},
                                         {"torch BoolStorage", 'b', 1}};

static bl_status bad(const bl_torch *t, const char *what, bl_error *err) {
    return bl_fail_at(err, BL_ERR_PARSE, bl_at(t->path), "data.pkl, byte %zu: %s",
                      (size_t)(t->at - t->start), what);
}

/* ---- stack --------------------------------------------------------------------------------- */

static bl_status make(bl_torch *t, bl_torch_type type, bl_torch_value **value_p, bl_error *err) {
    *value_p = t->n_values < MAX_VALUES ? bl_arena_calloc(t->arena, 1, sizeof **value_p) : NULL;
    if (*value_p == NULL)
        return bl_fail_at(err, BL_ERR_NOMEM, bl_at(t->path), "too many objects in data.pkl");
    t->n_values++;
    (*value_p)->type = type;
    return BL_OK;
}

static bl_status push(bl_torch *t, bl_torch_value *value, bl_error *err) {
    if (t->n_stack >= MAX_STACK)
        return bad(t, "the stack is too deep", err);
    void *stack = t->stack;
    const bl_status st = bl_grow(&stack, &t->stack_capacity, t->n_stack + 1, sizeof *t->stack, err);
    t->stack = stack;
    BL_TRY(st);
    t->stack[t->n_stack++] = value;
    return BL_OK;
}

static bl_status push_new(bl_torch *t, bl_torch_type type, bl_torch_value **value_p,
                          bl_error *err) {
    BL_TRY(make(t, type, value_p, err));
    return push(t, *value_p, err);
}

/* The value at the top, removed; never a mark. */
static bl_status pop(bl_torch *t, bl_torch_value **value_p, bl_error *err) {
    if (t->n_stack == 0 || t->stack[t->n_stack - 1] == NULL)
        return bad(t, "the stack is empty", err);
    *value_p = t->stack[--t->n_stack];
    return BL_OK;
}

static bl_status top(bl_torch *t, bl_torch_type type, bl_torch_value **value_p, bl_error *err) {
    if (t->n_stack == 0 || t->stack[t->n_stack - 1] == NULL ||
        t->stack[t->n_stack - 1]->type != type)
        return bad(t, "an operation on an object of another type", err);
    *value_p = t->stack[t->n_stack - 1];
    return BL_OK;
}

/* Number of values above the topmost mark. */
static bl_status above_mark(bl_torch *t, size_t *n, bl_error *err) {
    *n = 0;
    while (*n < t->n_stack && t->stack[t->n_stack - 1 - *n] != NULL)
        ++*n;
    return *n < t->n_stack ? BL_OK : bad(t, "there is no mark", err);
}

static bl_status append(bl_torch *t, bl_torch_value *list, bl_torch_value *const *items, size_t n,
                        bl_error *err) {
    if (list->n + n > list->capacity) {
        const size_t capacity = (list->n + n) * 2;
        bl_torch_value **grown = bl_arena_calloc(t->arena, capacity, sizeof *grown);
        if (grown == NULL || capacity > MAX_VALUES * 4)
            return bl_fail_at(err, BL_ERR_NOMEM, bl_at(t->path), "too many objects in data.pkl");
        if (list->n > 0)
            memcpy(grown, list->items, list->n * sizeof *grown);
        list->items = grown;
        list->capacity = capacity;
    }
    if (n > 0)
        memcpy(list->items + list->n, items, n * sizeof *items);
    list->n += n;
    return BL_OK;
}

/* Make a tuple of the n topmost values. */
static bl_status tuple(bl_torch *t, size_t n, bl_error *err) {
    if (n > t->n_stack)
        return bad(t, "the stack is empty", err);
    for (size_t i = 0; i < n; i++) {
        if (t->stack[t->n_stack - 1 - i] == NULL)
            return bad(t, "a mark inside a tuple", err);
    }
    bl_torch_value *value = NULL;
    BL_TRY(make(t, BL_TORCH_LIST, &value, err));
    BL_TRY(append(t, value, t->stack + t->n_stack - n, n, err));
    t->n_stack -= n;
    return push(t, value, err);
}

/* ---- what the pickle reads ------------------------------------------------------------------- */

static bl_status take(bl_torch *t, size_t n, const unsigned char **bytes_p, bl_error *err) {
    if ((size_t)(t->end - t->at) < n)
        return bad(t, "it ends too early", err);
    *bytes_p = t->at;
    t->at += n;
    return BL_OK;
}

static bl_status push_int(bl_torch *t, size_t n_bytes, bool is_signed, bl_error *err) {
    const unsigned char *bytes = NULL;
    BL_TRY(take(t, n_bytes, &bytes, err));
    if (n_bytes > 8)
        return bad(t, "an integer of more than 64 bits", err);
    uint64_t bits = 0;
    for (size_t i = 0; i < n_bytes; i++)
        bits |= (uint64_t)bytes[i] << (8 * i);
    if (is_signed && n_bytes > 0 && n_bytes < 8 && bytes[n_bytes - 1] >= 128)
        bits |= UINT64_MAX << (8 * n_bytes);
    bl_torch_value *value = NULL;
    BL_TRY(push_new(t, BL_TORCH_INT, &value, err));
    value->integer = (int64_t)bits;
    return BL_OK;
}

static bl_status push_real(bl_torch *t, bl_error *err) {
    const unsigned char *bytes = NULL;
    BL_TRY(take(t, 8, &bytes, err));
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i]; /* the one big-endian number in a pickle */
    bl_torch_value *value = NULL;
    BL_TRY(push_new(t, BL_TORCH_REAL, &value, err));
    memcpy(&value->real, &bits, sizeof bits);
    return BL_OK;
}

static bl_status copy_string(bl_torch *t, const unsigned char *bytes, size_t n, const char **out,
                             bl_error *err) {
    char *copy = bl_arena_calloc(t->arena, n + 1, 1);
    if (copy == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (n > 0)
        memcpy(copy, bytes, n);
    *out = copy;
    return BL_OK;
}

static bl_status push_string(bl_torch *t, bl_error *err) {
    const unsigned char *bytes = NULL;
    BL_TRY(take(t, 4, &bytes, err));
    const size_t n = bl_get_u32(bytes);
    BL_TRY(take(t, n, &bytes, err));
    bl_torch_value *value = NULL;
    BL_TRY(push_new(t, BL_TORCH_STRING, &value, err));
    return copy_string(t, bytes, n, &value->string, err);
}

static const allowed_global *find_global(const char *name) {
    for (size_t i = 0; i < sizeof ALLOWED / sizeof ALLOWED[0]; i++) {
        if (strcmp(ALLOWED[i].name, name) == 0)
            return &ALLOWED[i];
    }
    return NULL;
}

/* "module\nname\n" */
static bl_status push_global(bl_torch *t, bl_error *err) {
    const unsigned char *module = t->at;
    const unsigned char *line = memchr(module, '\n', (size_t)(t->end - module));
    const unsigned char *last =
        line != NULL ? memchr(line + 1, '\n', (size_t)(t->end - line - 1)) : NULL;
    if (last == NULL)
        return bad(t, "it ends inside a name", err);
    bl_torch_value *value = NULL;
    BL_TRY(push_new(t, BL_TORCH_GLOBAL, &value, err));
    const char *name = NULL;
    BL_TRY(copy_string(t, module, (size_t)(last - module), &name, err));
    value->string = name;
    char *space = strchr(name, '\n');
    if (space != NULL)
        *space = ' ';
    if (find_global(name) == NULL)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(t->path),
                          "its pickle names %.100s: only plain data and tensors are read", name);
    t->at = last + 1;
    return BL_OK;
}

/* ---- storages and tensors ---------------------------------------------------------------------
 */

/* ("storage", type, key, device, number of items) */
static bl_status push_storage(bl_torch *t, bl_error *err) {
    bl_torch_value *id = NULL, *value = NULL;
    BL_TRY(pop(t, &id, err));
    if (id->type != BL_TORCH_LIST || id->n != 5 || id->items[0]->type != BL_TORCH_STRING ||
        strcmp(id->items[0]->string, "storage") != 0 || id->items[1]->type != BL_TORCH_GLOBAL ||
        id->items[2]->type != BL_TORCH_STRING || id->items[4]->type != BL_TORCH_INT ||
        id->items[4]->integer < 0)
        return bad(t, "a persistent id that is no storage", err);
    const allowed_global *type = find_global(id->items[1]->string);
    if (type == NULL || type->kind == 0)
        return bad(t, "a storage of an unknown type", err);
    char name[64];
    snprintf(name, sizeof name, "data/%.40s", id->items[2]->string);
    const bl_zip_entry *entry = NULL;
    BL_TRY(bl_zip_find(&t->zip, name, &entry, err));
    const uint64_t n_items = (uint64_t)id->items[4]->integer;
    if (entry == NULL || n_items > entry->bytes / (size_t)type->item_bytes)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(t->path),
                          "the storage %s is missing or shorter than its %llu items", name,
                          (unsigned long long)n_items);
    BL_TRY(push_new(t, BL_TORCH_STORAGE, &value, err));
    value->tensor = bl_arena_calloc(t->arena, 1, sizeof *value->tensor);
    if (value->tensor == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    *value->tensor = (bl_torch_tensor){.kind = type->kind,
                                       .item_bytes = type->item_bytes,
                                       .n_dims = 1,
                                       .shape = {(size_t)n_items},
                                       .stride = {1},
                                       .data = entry->data};
    return BL_OK;
}

static bool is_natural(const bl_torch_value *value) {
    return value->type == BL_TORCH_INT && value->integer >= 0;
}

/* Does the last item of the view lie inside the storage? A view that repeats items (stride 0) and so
 * has more of them than the storage is refused, too: it could claim any size. */
static bool view_fits(const bl_torch_tensor *view, size_t offset, size_t n_items) {
    size_t last = offset, total = 1;
    for (int d = 0; d < view->n_dims; d++) {
        size_t reach;
        if (view->shape[d] == 0)
            return true;
        if (!bl_size_mul(view->shape[d] - 1, view->stride[d], &reach) ||
            !bl_size_add(last, reach, &last) || !bl_size_mul(total, view->shape[d], &total))
            return false;
    }
    return last < n_items && total <= n_items;
}

/* (storage, offset, shape, strides, requires_grad, hooks[, metadata]) */
static bl_status rebuild_tensor(bl_torch *t, const bl_torch_value *args, bl_torch_value **value_p,
                                bl_error *err) {
    if (args->n < 6 || args->items[0]->type != BL_TORCH_STORAGE || !is_natural(args->items[1]) ||
        args->items[2]->type != BL_TORCH_LIST || args->items[3]->type != BL_TORCH_LIST ||
        args->items[2]->n != args->items[3]->n || args->items[2]->n > BL_TORCH_MAX_DIMS)
        return bad(t, "a tensor with arguments that make no sense", err);
    const bl_torch_value *shape = args->items[2], *strides = args->items[3];
    BL_TRY(make(t, BL_TORCH_TENSOR, value_p, err));
    bl_torch_tensor *view = bl_arena_calloc(t->arena, 1, sizeof *view);
    if (view == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    *view = *args->items[0]->tensor;
    const size_t n_items = view->shape[0], offset = (size_t)args->items[1]->integer;
    view->n_dims = (int)shape->n;
    for (size_t d = 0; d < shape->n; d++) {
        if (!is_natural(shape->items[d]) || !is_natural(strides->items[d]))
            return bad(t, "a tensor with a negative size", err);
        view->shape[d] = (size_t)shape->items[d]->integer;
        view->stride[d] = (size_t)strides->items[d]->integer;
    }
    if (!view_fits(view, offset, n_items))
        return bad(t, "a tensor larger than its storage", err);
    view->data += offset < n_items ? offset * (size_t)view->item_bytes : 0;
    (*value_p)->tensor = view;
    return BL_OK;
}

static bl_status reduce(bl_torch *t, bl_error *err) {
    bl_torch_value *args = NULL, *callable = NULL, *value = NULL;
    BL_TRY(pop(t, &args, err));
    BL_TRY(pop(t, &callable, err));
    if (callable->type != BL_TORCH_GLOBAL || args->type != BL_TORCH_LIST)
        return bad(t, "a call of something that cannot be called", err);
    if (strcmp(callable->string, "torch._utils _rebuild_tensor_v2") == 0)
        BL_TRY(rebuild_tensor(t, args, &value, err));
    else if (strcmp(callable->string, "collections OrderedDict") == 0 && args->n == 0)
        BL_TRY(make(t, BL_TORCH_DICT, &value, err));
    else
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(t->path),
                          "its pickle calls %.100s: only plain data and tensors are read",
                          callable->string);
    return push(t, value, err);
}

/* ---- opcodes --------------------------------------------------------------------------------- */

static bl_status put_memo(bl_torch *t, size_t index, bl_error *err) {
    if (t->n_stack == 0 || t->stack[t->n_stack - 1] == NULL || index >= t->n_values)
        return bad(t, "nothing to remember", err); /* picklers number what they made from 0 */
    if (index >= t->n_memo) {
        const size_t n = index < 512 ? 1024 : index * 2;
        bl_torch_value **memo = bl_calloc(n, sizeof *memo);
        if (memo == NULL)
            return bl_fail(err, BL_ERR_NOMEM, "out of memory");
        if (t->n_memo > 0)
            memcpy(memo, t->memo, t->n_memo * sizeof *memo);
        free(t->memo);
        t->memo = memo;
        t->n_memo = n;
    }
    t->memo[index] = t->stack[t->n_stack - 1];
    return BL_OK;
}

static bl_status get_memo(bl_torch *t, size_t index, bl_error *err) {
    if (index >= t->n_memo || t->memo[index] == NULL)
        return bad(t, "it recalls what it never remembered", err);
    return push(t, t->memo[index], err);
}

static bl_status memo_op(bl_torch *t, int op, bl_error *err) {
    const bool wide = op == 'r' || op == 'j';
    const unsigned char *bytes = NULL;
    BL_TRY(take(t, wide ? 4 : 1, &bytes, err));
    const size_t index = wide ? bl_get_u32(bytes) : bytes[0];
    return op == 'q' || op == 'r' ? put_memo(t, index, err) : get_memo(t, index, err);
}

/* Move the values above the mark into the list or dict below it. */
static bl_status collect(bl_torch *t, bl_torch_type type, bl_error *err) {
    size_t n = 0;
    bl_torch_value *into = NULL;
    BL_TRY(above_mark(t, &n, err));
    if (type == BL_TORCH_DICT && n % 2 != 0)
        return bad(t, "a key without a value", err);
    bl_torch_value *const *items = t->stack + t->n_stack - n;
    t->n_stack -= n + 1;
    BL_TRY(top(t, type, &into, err));
    return append(t, into, items, n, err);
}

/* One item (append) or a key and its value (setitem) without a mark. */
static bl_status collect_one(bl_torch *t, bl_torch_type type, size_t n, bl_error *err) {
    bl_torch_value *items[2] = {NULL, NULL}, *into = NULL;
    for (size_t i = n; i-- > 0;)
        BL_TRY(pop(t, &items[i], err));
    BL_TRY(top(t, type, &into, err));
    return append(t, into, items, n, err);
}

static bl_status tuple_above_mark(bl_torch *t, bl_error *err) {
    size_t n = 0;
    BL_TRY(above_mark(t, &n, err));
    BL_TRY(tuple(t, n, err));
    t->stack[t->n_stack - 2] = t->stack[t->n_stack - 1]; /* over the mark */
    t->n_stack--;
    return BL_OK;
}

static bl_status simple(bl_torch *t, bl_torch_type type, int64_t integer, bl_error *err) {
    bl_torch_value *value = NULL;
    BL_TRY(push_new(t, type, &value, err));
    value->integer = integer;
    return BL_OK;
}

static bl_status proto(bl_torch *t, bl_error *err) {
    const unsigned char *version = NULL;
    BL_TRY(take(t, 1, &version, err));
    if (*version > 2)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(t->path),
                          "pickle protocol %d; torch.save writes protocol 2", *version);
    return BL_OK;
}

static bl_status long1(bl_torch *t, bl_error *err) {
    const unsigned char *n = NULL;
    BL_TRY(take(t, 1, &n, err));
    return push_int(t, *n, true, err);
}

static bl_status stop(bl_torch *t, bl_error *err) {
    t->stopped = true;
    return pop(t, &t->root, err);
}

/* Opcodes that act on what is on the stack. */
static bl_status operate(bl_torch *t, int op, bl_error *err) {
    switch (op) {
    case 't': /* TUPLE */
        return tuple_above_mark(t, err);
    case 0x85: /* TUPLE1 */
    case 0x86: /* TUPLE2 */
    case 0x87: /* TUPLE3 */
        return tuple(t, (size_t)(op - 0x84), err);
    case 'u': /* SETITEMS */
        return collect(t, BL_TORCH_DICT, err);
    case 'e': /* APPENDS */
        return collect(t, BL_TORCH_LIST, err);
    case 's': /* SETITEM */
        return collect_one(t, BL_TORCH_DICT, 2, err);
    case 'a': /* APPEND */
        return collect_one(t, BL_TORCH_LIST, 1, err);
    case 'q': /* BINPUT */
    case 'r': /* LONG_BINPUT */
    case 'h': /* BINGET */
    case 'j': /* LONG_BINGET */
        return memo_op(t, op, err);
    case 'Q': /* BINPERSID */
        return push_storage(t, err);
    case 'R': /* REDUCE */
        return reduce(t, err);
    case '.': /* STOP */
        return stop(t, err);
    default:
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(t->path),
                          "data.pkl, byte %zu: opcode 0x%02x is not one torch.save needs for plain "
                          "data",
                          (size_t)(t->at - t->start) - 1, op);
    }
}

/* Opcodes that push something new; all others go to operate(). */
static bl_status step(bl_torch *t, int op, bl_error *err) {
    switch (op) {
    case 0x80: /* PROTO */
        return proto(t, err);
    case '(': /* MARK */
        return push(t, NULL, err);
    case '}': /* EMPTY_DICT */
        return simple(t, BL_TORCH_DICT, 0, err);
    case ']': /* EMPTY_LIST */
    case ')': /* EMPTY_TUPLE */
        return simple(t, BL_TORCH_LIST, 0, err);
    case 'N': /* NONE */
        return simple(t, BL_TORCH_NONE, 0, err);
    case 0x88: /* NEWTRUE */
        return simple(t, BL_TORCH_BOOL, 1, err);
    case 0x89: /* NEWFALSE */
        return simple(t, BL_TORCH_BOOL, 0, err);
    case 'K': /* BININT1 */
        return push_int(t, 1, false, err);
    case 'M': /* BININT2 */
        return push_int(t, 2, false, err);
    case 'J': /* BININT */
        return push_int(t, 4, true, err);
    case 0x8a: /* LONG1 */
        return long1(t, err);
    case 'G': /* BINFLOAT */
        return push_real(t, err);
    case 'X': /* BINUNICODE */
        return push_string(t, err);
    case 'c': /* GLOBAL */
        return push_global(t, err);
    default:
        return operate(t, op, err);
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

static bl_status check_byte_order(bl_torch *t, bl_error *err) {
    const bl_zip_entry *order = NULL;
    BL_TRY(bl_zip_find(&t->zip, "byteorder", &order, err));
    if (order != NULL && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0))
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(t->path),
                          "its byte order is \"%.*s\", only little is read",
                          (int)(order->bytes < 16 ? order->bytes : 16), (const char *)order->data);
    return BL_OK;
}

static bl_status run(bl_torch *t, const void *bytes, size_t n_bytes, bl_error *err) {
    const bl_zip_entry *pickle = NULL;
    BL_TRY(bl_zip_open(bytes, n_bytes, t->path, &t->zip, err));
    BL_TRY(check_byte_order(t, err));
    BL_TRY(bl_zip_find(&t->zip, "data.pkl", &pickle, err));
    if (pickle == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(t->path), "a zip without data.pkl");
    t->start = t->at = pickle->data;
    t->end = pickle->data + pickle->bytes;
    while (!t->stopped) {
        const unsigned char *op = NULL;
        BL_TRY(take(t, 1, &op, err));
        BL_TRY(step(t, *op, err));
    }
    return BL_OK;
}

static bl_status open_bytes(const void *bytes, size_t n_bytes, const char *name, char *owned,
                            bl_torch **torch_p, bl_error *err) {
    bl_torch *t = bl_calloc(1, sizeof *t);
    if (t == NULL) {
        free(owned);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    t->file = owned;
    t->path = strdup(name);
    t->arena = bl_arena_new(0);
    bl_status st = t->path != NULL && t->arena != NULL
                       ? run(t, bytes, n_bytes, err)
                       : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (st < 0)
        bl_torch_free(t);
    else
        *torch_p = t;
    return st;
}

bl_status bl_torch_parse(const void *bytes, size_t n_bytes, const char *name, bl_torch **torch_p,
                         bl_error *err) {
    return open_bytes(bytes, n_bytes, name, NULL, torch_p, err);
}

bl_status bl_torch_open(const char *path, bl_torch **torch_p, bl_error *err) {
    char *file = NULL;
    size_t n_bytes = 0;
    BL_TRY(bl_read_file(path, MAX_FILE_BYTES, &file, &n_bytes, err));
    return open_bytes(file, n_bytes, path, file, torch_p, err);
}

void bl_torch_free(bl_torch *t) {
    if (t == NULL)
        return;
    bl_zip_free(&t->zip);
    bl_arena_free(t->arena);
    free(t->stack);
    free(t->memo);
    free(t->path);
    free(t->file);
    free(t);
}

const bl_torch_value *bl_torch_root(const bl_torch *t) {
    return t->root;
}

const bl_torch_value *bl_torch_get(const bl_torch_value *dict, const char *key) {
    for (size_t i = 0; dict->type == BL_TORCH_DICT && i + 1 < dict->n; i += 2) {
        if (dict->items[i]->type == BL_TORCH_STRING && strcmp(dict->items[i]->string, key) == 0)
            return dict->items[i + 1];
    }
    return NULL;
}

int64_t bl_torch_int(const bl_torch_tensor *tensor, size_t offset) {
    const unsigned char *at = tensor->data + offset * (size_t)tensor->item_bytes;
    const bool is_signed = tensor->kind == 'i';
    switch (tensor->item_bytes) {
    case 1:
        return is_signed ? (int8_t)at[0] : at[0];
    case 2:
        return is_signed ? (int16_t)bl_get_u16(at) : bl_get_u16(at);
    case 4:
        return is_signed ? (int32_t)bl_get_u32(at) : (int64_t)bl_get_u32(at);
    default:
        return (int64_t)bl_get_u64(at);
    }
}
