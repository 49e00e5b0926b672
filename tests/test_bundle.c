/* Bundles: what is refused by name, and that what moves is all there is. */
#include "runtime/bundle.h"

#include "core/rng.h"
#include "tests/support/foreign.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

/* Rank 0 of two with 6 slots of 12, 8 experts. */
static const bl_bundle_shape shape = {3, 6, 12, 8};

static bl_tensor plain(const char *name, void *base, size_t entries, size_t rows,
                       size_t row_bytes) {
    bl_tensor t = BL_TENSOR_INIT;
    t.name = name;
    t.base = base;
    t.entries = entries;
    t.rows = rows;
    t.row_bytes = row_bytes;
    return t;
}

static bl_layer layer_of(const bl_tensor *tensors, int n) {
    bl_layer layer = BL_LAYER_INIT;
    layer.layer = shape.layer;
    layer.tensors = tensors;
    layer.n_tensors = n;
    return layer;
}

static bl_status create(const bl_tensor *tensors, int n, bl_bundle *out, bl_error *err) {
    const bl_layer layer = layer_of(tensors, n);
    return bl_bundle_create(&layer, &shape, NULL, NULL, out, err);
}

static unsigned char memory[1 << 14];

/* ---- refusals -------------------------------------------------------------------------------- */

/* sgl #13715: leading dimensions [6, ...], [288] and [] in one layer. */
static void test_leading_dimensions(void **state) {
    (void)state;
    bl_error err;
    bl_bundle bundle;
    bl_tensor t[3] = {plain("w13", memory, 6, 4, 8),
                      plain("w13_input_scale", memory + 4096, 288, 1, 4),
                      plain("w2_input_scale", memory + 8192, 0, 1, 4)};
    assert_fails(create(t, 2, &bundle, &err), BL_ERR_SHAPE, "tensor w13_input_scale");
    bl_test_has(err.text, "288");
    bl_test_has(err.text, "per local expert, of which there are 6");
    assert_int_equal(err.layer, 3);
    t[1] = t[2];
    assert_fails(create(t, 2, &bundle, &err), BL_ERR_SHAPE, "tensor w2_input_scale");
    t[1] = plain("w13_input_scale", memory + 4096, 12, 1, 4);
    t[1].scope = BL_SCOPE_SLOT;
    t[2].entries = 1;
    t[2].scope = BL_SCOPE_LAYER;
    assert_ok(create(t, 3, &bundle, &err));
    assert_int_equal(bundle.bytes, 32);
    assert_int_equal(bundle.table_bytes, 48);
    bl_bundle_free(&bundle);
    t[2].entries = 2;
    assert_fails(create(t, 3, &bundle, &err), BL_ERR_SHAPE, "per layer, of which there are 1");
    t[2].scope = 9;
    assert_fails(create(t, 3, &bundle, &err), BL_ERR_RANGE, "w2_input_scale");
}

static void test_undeclared(void **state) {
    (void)state;
    bl_error err;
    bl_bundle bundle;
    const bl_tensor t[] = {plain("w", memory, 6, 4, 8)};
    const char *const names[] = {"w", "w_scale"};
    bl_layer layer = layer_of(t, 1);
    layer.inventory = names;
    layer.n_inventory = 2;
    assert_fails(bl_bundle_create(&layer, &shape, NULL, NULL, &bundle, &err), BL_ERR_SHAPE,
                 "tensor w_scale is not declared");
    layer.n_inventory = 1;
    assert_ok(bl_bundle_create(&layer, &shape, NULL, NULL, &bundle, &err));
    bl_bundle_free(&bundle);
}

static void test_views(void **state) {
    (void)state;
    bl_error err;
    bl_bundle bundle;
    bl_tensor t = plain("w", memory, 6, 4, 8);
    t.row_stride = 7; /* rows over each other */
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_SHAPE, "tensor w cannot be viewed");
    t.row_stride = 16;
    t.entry_stride = 48; /* entries of 56 bytes */
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_SHAPE, "tensor w cannot be viewed");
    t.entry_stride = 56;
    assert_ok(create(&t, 1, &bundle, &err));
    bl_bundle_free(&bundle);
    t.entry_stride = 8; /* transposed: [rows][experts] */
    t.row_stride = 48;
    assert_ok(create(&t, 1, &bundle, &err));
    bl_bundle_free(&bundle);
    t.row_stride = 40;
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_SHAPE, "tensor w cannot be viewed");
    t = plain("w", memory, 6, SIZE_MAX / 8, 16);
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_RANGE, "tensor w");
    t = plain("w", NULL, 6, 4, 8);
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_USAGE, "tensor w has no memory");
    t = plain("w", memory, 6, 4, 0);
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_SHAPE, "0 bytes");
    t = plain(NULL, memory, 6, 4, 8);
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_USAGE, "without a name");
    t = plain("w", memory, 6, 4, 8);
    t.size = 8;
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_VERSION, "BL_TENSOR_INIT");
    const bl_tensor twice[] = {plain("w", memory, 6, 4, 8), plain("w", memory + 4096, 6, 4, 8)};
    assert_fails(create(twice, 2, &bundle, &err), BL_ERR_USAGE, "declared twice");
    t = plain("w", memory, 6, 4, 8);
    t.recomputed = 1;
    assert_fails(create(&t, 1, &bundle, &err), BL_ERR_SHAPE, "no tensor moves");
}

static bl_status check_two(bl_tensor a, bl_tensor b, bl_error *err) {
    bl_bundle bundle;
    const bl_tensor both[] = {a, b};
    BL_TRY(create(both, 2, &bundle, err));
    const bl_status st = bl_bundles_check_apart(&bundle, 1, err);
    bl_bundle_free(&bundle);
    return st;
}

static void test_tensors_over_each_other(void **state) {
    (void)state;
    bl_error err;
    bl_tensor a = plain("a", memory, 6, 4, 8), b = plain("b", memory + 191, 6, 4, 8);
    assert_fails(check_two(a, b, &err), BL_ERR_SHAPE, "tensor b lies over tensor a");
    b.base = memory + 192;
    assert_ok(check_two(a, b, &err));
    /* columns of one table: weights of 8 bytes and a scale of 4 behind them, rows 12 apart */
    a = plain("a", memory, 6, 4, 8);
    b = plain("b", memory + 8, 6, 4, 4);
    a.row_stride = b.row_stride = 12;
    assert_ok(check_two(a, b, &err));
    b.base = memory + 7;
    assert_fails(check_two(a, b, &err), BL_ERR_SHAPE, "lies over");
    /* one struct per expert: 32 bytes of rows, then 4 of scale */
    a = plain("a", memory, 6, 4, 8);
    b = plain("b", memory + 32, 6, 1, 4);
    a.entry_stride = b.entry_stride = 36;
    assert_ok(check_two(a, b, &err));
    b.base = memory + 33;
    assert_fails(check_two(a, b, &err), BL_ERR_SHAPE, "lies over");
    /* what stays may be shared */
    a = plain("a", memory, 8, 1, 8);
    b = plain("b", memory, 8, 1, 8);
    a.scope = b.scope = BL_SCOPE_EXPERT;
    const bl_tensor three[] = {a, b, plain("w", memory + 4096, 6, 4, 8)};
    bl_bundle bundle;
    assert_ok(create(three, 3, &bundle, &err));
    assert_ok(bl_bundles_check_apart(&bundle, 1, &err));
    bl_bundle_free(&bundle);
}

/* ---- pointers -------------------------------------------------------------------------------- */

static void *weights[8], *scales[8];

/* Six slots and two spares, 64 bytes apart; scales behind each. */
static bl_tensor pointed(const char *name, void **at, size_t offset, size_t rows,
                         size_t row_bytes) {
    bl_tensor t = plain(name, NULL, 6, rows, row_bytes);
    for (size_t i = 0; i < 8; i++)
        at[i] = memory + 64 * i + offset;
    t.pointers = at;
    return t;
}

static bl_status create_pointed(const bl_tensor *tensors, int n, size_t n_spares, bl_error *err) {
    bl_bundle bundle;
    bl_layer layer = layer_of(tensors, n);
    layer.n_spares = n_spares;
    BL_TRY(bl_bundle_create(&layer, &shape, NULL, NULL, &bundle, err));
    const bl_status st = bl_bundles_check_apart(&bundle, 1, err);
    bl_bundle_free(&bundle);
    return st;
}

static void test_tables_of_pointers(void **state) {
    (void)state;
    bl_error err;
    bl_tensor t[2] = {pointed("w", weights, 0, 4, 8), pointed("w_scale", scales, 32, 1, 16)};
    assert_ok(create_pointed(t, 2, 2, &err));
    scales[7] = NULL;
    assert_ok(create_pointed(t, 2, 1, &err));
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_USAGE,
                 "tensor w_scale: its pointer 7 (of a spare) is NULL");
    t[1] = pointed("w_scale", scales, 32, 1, 16);
    scales[2] = NULL;
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_USAGE, "pointer 2 (of a slot)");
    scales[2] = memory + 31 + 128; /* into the last row of w */
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_SHAPE, "tensor w_scale lies over tensor w");
    scales[2] = scales[3];
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_SHAPE,
                 "tensor w_scale: two of its pointers lead to the same memory");
    scales[2] = scales[7]; /* a spare that is a slot's */
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_SHAPE, "two of its pointers");
    t[1] = pointed("w_scale", scales, 32, 1, 16);
    t[1].base = memory + 4096;
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_USAGE, "a base and pointers");
    t[1].pointers = NULL;
    assert_fails(create_pointed(t, 2, 0, &err), BL_ERR_SHAPE, "found in one way");
    assert_fails(create_pointed(&t[1], 1, 1, &err), BL_ERR_USAGE, "n_spares is for pointers");
    t[1] = pointed("w_scale", scales, 32, 1, 16);
    t[1].entry_stride = 16;
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_SHAPE, "tensor w_scale: entries found by");
    t[1].entry_stride = 0;
    t[1].recomputed = 1;
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_USAGE, "this one is recomputed");
    t[1].recomputed = 0;
    t[1].scope = BL_SCOPE_EXPERT;
    t[1].entries = 8;
    assert_fails(create_pointed(t, 2, 2, &err), BL_ERR_USAGE, "per global expert");
    t[0].row_stride = 4;
    assert_fails(create_pointed(t, 1, 2, &err), BL_ERR_SHAPE, "cannot be viewed row by row");
    t[0].row_stride = 16; /* every second row of each entry is another tensor's */
    t[1] = pointed("w3", scales, 8, 4, 8);
    t[1].row_stride = 16;
    assert_ok(create_pointed(t, 2, 2, &err));
    assert_fails(create_pointed(t, 1, (size_t)1 << 40, &err), BL_ERR_RANGE, "spares");
}

/* Layers by pointers share their spares: what one holds another must be able to hold. */
static void test_layers_by_pointers_are_alike(void **state) {
    (void)state;
    bl_error err;
    static void *others[8], *more[8];
    bl_bundle b[2];
    bl_tensor t[2] = {pointed("w", weights, 0, 4, 8), pointed("w_scale", scales, 32, 1, 16)};
    const struct {
        size_t rows, row_bytes, row_stride;
        const char *name, *text;
    } cases[] = {{4, 8, 0, "w", NULL},
                 {8, 4, 0, "w", "layer"},
                 {4, 8, 9, "w", "9 apart"},
                 {4, 8, 0, "up", "tensor up: layer 3 has none such"}};
    assert_ok(create(t, 2, &b[0], &err));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        bl_tensor u[2] = {pointed(cases[c].name, others, 2048, cases[c].rows, cases[c].row_bytes),
                          pointed("w_scale", more, 2048 + 40, 1, 16)};
        u[0].row_stride = cases[c].row_stride;
        assert_ok(create(u, 2, &b[1], &err));
        if (cases[c].text == NULL)
            assert_ok(bl_bundles_check_alike(b, 2, &err));
        else
            assert_fails(bl_bundles_check_alike(b, 2, &err), BL_ERR_SHAPE, cases[c].text);
        bl_bundle_free(&b[1]);
    }
    const bl_tensor fewer[] = {pointed("w", others, 2048, 4, 8)};
    assert_ok(create(fewer, 1, &b[1], &err));
    assert_fails(bl_bundles_check_alike(b, 2, &err), BL_ERR_SHAPE, "tensor w_scale");
    bl_bundle_free(&b[1]);
    const bl_tensor by_base[] = {plain("w", memory, 6, 4, 8)};
    assert_ok(create(by_base, 1, &b[1], &err));
    assert_fails(bl_bundles_check_alike(b, 2, &err), BL_ERR_SHAPE, "declared in one way");
    bl_bundle_free(&b[1]);
    bl_bundle_free(&b[0]);
}

/* ---- copying --------------------------------------------------------------------------------- */

/* Memory that only `copy` can reach: pointers to it are off by a constant, and so are its bytes. */
#define DEVICE_OFFSET ((size_t)1 << 40)
static unsigned char device[1 << 12];
static int n_copies;

static bool is_device(const void *p) {
    const uintptr_t at = (uintptr_t)p - DEVICE_OFFSET;
    return at >= (uintptr_t)device && at < (uintptr_t)device + sizeof device;
}

static int device_copy(void *user, void *to, size_t to_stride, const void *from, size_t from_stride,
                       size_t row_bytes, size_t rows) {
    unsigned char *t = is_device(to) ? (unsigned char *)((uintptr_t)to - DEVICE_OFFSET) : to;
    const unsigned char *f =
        is_device(from) ? (const unsigned char *)((uintptr_t)from - DEVICE_OFFSET) : from;
    n_copies++;
    if (*(const int *)user != 0)
        return *(const int *)user;
    for (size_t row = 0; row < rows; row++)
        memcpy(t + row * to_stride, f + row * from_stride, row_bytes);
    return 0;
}

/* Every stretch of every bundle equals the one put together by hand; and what is written into another
 * slot is there, and nowhere else. */
static void test_every_stretch(void **state) {
    (void)state;
    bl_error err;
    bl_bundle bundle;
    int failing = 0;
    unsigned char *base = (unsigned char *)((uintptr_t)device + DEVICE_OFFSET);
    bl_tensor t[3] = {plain("b", base, 6, 3, 5), plain("c", base + 512, 6, 1, 4),
                      plain("a", base + 1024, 6, 2, 3)};
    t[0].row_stride = 8;
    t[0].entry_stride = 32;
    t[2].entry_stride = 3; /* transposed */
    t[2].row_stride = 18;
    const bl_layer layer = layer_of(t, 3);
    assert_ok(bl_bundle_create(&layer, &shape, device_copy, &failing, &bundle, &err));
    assert_int_equal(bundle.bytes, 15 + 4 + 6);
    for (size_t i = 0; i < sizeof device; i++)
        device[i] = (unsigned char)(i * 7 + i / 256);
    for (int slot = 0; slot < 6; slot++) {
        unsigned char whole[32] = {0}, got[32];
        size_t at = 0; /* by name: a, b, c */
        for (size_t row = 0; row < 2; row++, at += 3)
            memcpy(whole + at, device + 1024 + row * 18 + (size_t)slot * 3, 3);
        for (size_t row = 0; row < 3; row++, at += 5)
            memcpy(whole + at, device + (size_t)slot * 32 + row * 8, 5);
        memcpy(whole + at, device + 512 + slot * 4, 4);
        for (size_t begin = 0; begin < sizeof whole; begin++) {
            for (size_t n = 0; begin + n <= sizeof whole; n++) {
                memset(got, 0xee, sizeof got);
                assert_ok(bl_bundle_read(&bundle, slot, begin, got, n, &err));
                assert_memory_equal(got, whole + begin, n);
            }
        }
    }
    unsigned char before[sizeof device], moved[32], kept[32], after[32];
    memcpy(before, device, sizeof device);
    assert_ok(bl_bundle_read(&bundle, 1, 0, moved, 25, &err));
    assert_ok(bl_bundle_read(&bundle, 4, 0, kept, 25, &err));
    assert_ok(bl_bundle_write(&bundle, 4, 0, moved, 25, &err));
    assert_ok(bl_bundle_read(&bundle, 4, 0, after, 25, &err));
    assert_memory_equal(after, moved, 25);
    assert_ok(bl_bundle_write(&bundle, 4, 0, kept, 25, &err));
    assert_memory_equal(device, before, sizeof device); /* gaps and neighbours too */
    assert_ok(bl_bundle_copy(&bundle, 4, 1, &err));
    assert_ok(bl_bundle_read(&bundle, 4, 0, after, 25, &err));
    assert_memory_equal(after, moved, 25);
    failing = 7;
    assert_fails(bl_bundle_read(&bundle, 0, 0, after, 25, &err), BL_ERR_IO, "failed with 7");
    bl_test_has(err.text, "tensor a");
    bl_bundle_free(&bundle);
}

/* sgl #17162: two experts, the same int8 weights, scales 1.0 and 2.0: swapped, the dequantised rows
 * swap. */
static void test_scales_travel(void **state) {
    (void)state;
    bl_error err;
    bl_bundle bundle;
    int8_t w[6][4][8];
    float scale[6][4];
    memset(w, 3, sizeof w);
    for (int slot = 0; slot < 6; slot++)
        for (int row = 0; row < 4; row++)
            scale[slot][row] = slot == 1 ? 2.0f : 1.0f;
    const bl_tensor t[] = {plain("w", w, 6, 4, 8), plain("w_scale", scale, 6, 1, 16)};
    assert_ok(create(t, 2, &bundle, &err));
    unsigned char zero[48], one[48];
    assert_ok(bl_bundle_read(&bundle, 0, 0, zero, 48, &err));
    assert_ok(bl_bundle_read(&bundle, 1, 0, one, 48, &err));
    assert_int_equal(bundle.bytes, 48);
    assert_memory_not_equal(zero, one, 48);
    assert_ok(bl_bundle_write(&bundle, 0, 0, one, 48, &err));
    assert_ok(bl_bundle_write(&bundle, 1, 0, zero, 48, &err));
    for (int row = 0; row < 4; row++) {
        assert_true((float)w[0][row][5] * scale[0][row] == 6.0f);
        assert_true((float)w[1][row][5] * scale[1][row] == 3.0f);
    }
    bl_bundle_free(&bundle);
}

static void test_e4m3(void **state) {
    (void)state;
    assert_true(bl_e4m3(0x38) == 1.0f);
    assert_true(bl_e4m3(0xc0) == -2.0f);
    assert_true(bl_e4m3(0x7e) == 448.0f);
    assert_true(bl_e4m3(0x01) == 0.001953125f);
    assert_true(bl_e4m3(0x7f) != bl_e4m3(0x7f));
}

/* A table over the slots of all ranks follows its experts, copies included. */
static void test_tables_over_all_slots(void **state) {
    (void)state;
    bl_error err;
    bl_bundle bundle;
    const int layers[] = {3}, slots[] = {6, 6};
    float table[12];
    unsigned char scratch[48], w[6 * 8];
    bl_tensor t[2] = {plain("w", w, 6, 1, 8), plain("scale", table, 12, 1, 4)};
    t[1].scope = BL_SCOPE_SLOT;
    assert_ok(create(t, 2, &bundle, &err));
    bl_placement now, next;
    assert_ok(bl_placement_create(2, 8, layers, 1, slots, &now, &err));
    assert_ok(bl_placement_create(2, 8, layers, 1, slots, &next, &err));
    static const int32_t a[12] = {0, 1, 2, 3, 4, -1, 5, 6, 7, 0, 1, 2};
    static const int32_t b[12] = {7, 1, 2, 3, 0, 6, 5, 4, 7, -1, 0, 2};
    memcpy(now.layers[0].expert, a, sizeof a);
    memcpy(next.layers[0].expert, b, sizeof b);
    for (int i = 0; i < 12; i++)
        table[i] = a[i] < 0 ? -99.0f : (float)(100 + a[i]);
    assert_ok(bl_bundle_reorder(&bundle, &now.layers[0], &next.layers[0], scratch, &err));
    for (int i = 0; i < 12; i++)
        if (b[i] >= 0)
            assert_true(table[i] == (float)(100 + b[i]));
    uint64_t one, other;
    assert_ok(
        bl_bundle_hash_tensor(&bundle, &bundle.tensors[0], &next.layers[0], scratch, &one, &err));
    table[9] = 12345.0f; /* an empty slot's row is nobody's */
    assert_ok(
        bl_bundle_hash_tensor(&bundle, &bundle.tensors[0], &next.layers[0], scratch, &other, &err));
    assert_true(one == other);
    table[3] = 12345.0f;
    assert_ok(
        bl_bundle_hash_tensor(&bundle, &bundle.tensors[0], &next.layers[0], scratch, &other, &err));
    assert_true(one != other);
    bl_placement_free(&now);
    bl_placement_free(&next);
    bl_bundle_free(&bundle);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leading_dimensions),
        cmocka_unit_test(test_undeclared),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_tensors_over_each_other),
        cmocka_unit_test(test_tables_of_pointers),
        cmocka_unit_test(test_layers_by_pointers_are_alike),
        cmocka_unit_test(test_every_stretch),
        cmocka_unit_test(test_scales_travel),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_tables_over_all_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
