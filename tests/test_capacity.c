/* Slots per rank: what is asked for, what divides, and what is said when it does not. */
#include "tests/support/support.h"

#include "planner/capacity.h"

#include <stdlib.h>
#include <string.h>

static bl_capacity_request request(int experts, int ranks) {
    return (bl_capacity_request){
        .n_experts = experts, .n_ranks = ranks, .slots = -1, .redundant = -1};
}

/* The cases that engines fail on, with the remedy as a number. */
static void sizes_that_do_not_divide(void **state) {
    (void)state;
    bl_error err;
    static const struct {
        int experts, ranks, redundant, first, last, remedy;
    } cases[] = {
        {256, 3, 0, 86, 85, 2}, {384, 36, 0, 11, 10, 12}, {60, 8, 0, 8, 7, 4},
        {30, 8, 0, 4, 3, 2},    {128, 6, 0, 22, 21, 4},   {256, 32, 32, 9, 9, 32},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_capacity_request r = request(cases[c].experts, cases[c].ranks);
        r.redundant = cases[c].redundant;
        bl_capacity capacity;
        assert_ok(bl_capacity_of(&r, &capacity, &err));
        assert_int_equal(capacity.slots_per_rank[0], cases[c].first);
        assert_int_equal(capacity.slots_per_rank[r.n_ranks - 1], cases[c].last);
        assert_int_equal(capacity.n_slots, cases[c].experts + cases[c].redundant);
        assert_int_equal(capacity.uneven, cases[c].first != cases[c].last);
        assert_int_equal(capacity.even_redundant, cases[c].remedy);
        bl_capacity_free(&capacity);
    }
}

static void thirty_on_eight(void **state) {
    (void)state;
    bl_error err;
    static const int want[8] = {4, 4, 4, 4, 4, 4, 3, 3};
    bl_capacity_request r = request(30, 8);
    r.slots = 30;
    bl_capacity capacity;
    assert_ok(bl_capacity_of(&r, &capacity, &err));
    assert_memory_equal(capacity.slots_per_rank, want, sizeof want);
    bl_capacity_free(&capacity);
}

static void automatic_redundancy(void **state) {
    (void)state;
    bl_error err;
    static const struct {
        int experts, ranks, slots;
    } cases[] = {{256, 3, 258}, {384, 36, 396}, {60, 8, 64}, {256, 32, 288}, {8, 1, 8}, {2, 2, 4}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_capacity_request r = request(cases[c].experts, cases[c].ranks);
        r.redundant_auto = true;
        bl_capacity capacity;
        assert_ok(bl_capacity_of(&r, &capacity, &err));
        assert_int_equal(capacity.n_slots, cases[c].slots);
        assert_false(capacity.uneven);
        bl_capacity_free(&capacity);
    }
}

static void masked_ranks_lose_their_slots(void **state) {
    (void)state;
    bl_error err;
    const bool masked[4] = {false, false, true, false};
    bl_capacity_request r = request(8, 4);
    bl_capacity capacity;
    r.masked = masked;
    r.slots = 12;
    assert_ok(bl_capacity_of(&r, &capacity, &err));
    static const int want[4] = {3, 3, 0, 3};
    assert_memory_equal(capacity.slots_per_rank, want, sizeof want);
    assert_int_equal(capacity.n_active, 3);
    assert_int_equal(capacity.n_slots, 9);
    bl_capacity_free(&capacity);
    r.slots = 8; /* two slots are gone: expert 6 is the first without one */
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_INFEASIBLE, "--redundant 4");
    assert_int_equal(err.expert, 6);
    r.slots = -1;
    r.redundant_auto = true; /* 3 ranks of 3 hold 8 experts and one spare */
    assert_ok(bl_capacity_of(&r, &capacity, &err));
    assert_int_equal(capacity.n_slots, 9);
    bl_capacity_free(&capacity);
    r.n_experts = 9; /* 3 slots each would hold them without a spare */
    assert_ok(bl_capacity_of(&r, &capacity, &err));
    assert_int_equal(capacity.n_slots, 12);
    bl_capacity_free(&capacity);
    const bool all[4] = {true, true, true, true};
    r.masked = all;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_INFEASIBLE, "all 4 ranks");
}

static void lists_and_contradictions(void **state) {
    (void)state;
    bl_error err;
    static const int list[3] = {4, 2, 3};
    bl_capacity_request r = request(8, 3);
    bl_capacity capacity;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_USAGE, "--slots S");
    r.list = list;
    r.n_list = 3;
    assert_ok(bl_capacity_of(&r, &capacity, &err));
    assert_memory_equal(capacity.slots_per_rank, list, sizeof list);
    assert_false(capacity.uneven);
    bl_capacity_free(&capacity);
    r.slots = 10;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_USAGE, "9 slots, not to 10");
    r.redundant = 1;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_USAGE, "not both");
    r.slots = r.redundant = -1;
    r.n_list = 2;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_USAGE, "names 2 ranks");
    r = request(8, 3);
    r.slots = 27;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_INFEASIBLE, "only 8 experts");
    r.slots = 7;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_INFEASIBLE, "3 slots on each rank");
    r.slots = INT64_MAX;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_RANGE, "too many");
    r.slots = -1;
    r.redundant = INT64_MAX - 100;
    assert_fails(bl_capacity_of(&r, &capacity, &err), BL_ERR_RANGE, "too many");
}

static void command_line_lists(void **state) {
    (void)state;
    bl_error err;
    bool marks[8] = {false};
    assert_ok(bl_parse_marks("0,3,5-7", "--mask", marks, 8, &err));
    static const bool want[8] = {true, false, false, true, false, true, true, true};
    assert_memory_equal(marks, want, sizeof want);
    static const char *const bad[] = {"", "8", "1,", "-1", "3-1", "1-9", "a", "1;2", "99999999999"};
    for (size_t c = 0; c < sizeof bad / sizeof bad[0]; c++)
        assert_fails(bl_parse_marks(bad[c], "--mask", marks, 8, &err), BL_ERR_USAGE, "--mask");
    int *values, n;
    assert_ok(bl_parse_counts("9,0,12", "--slots-per-rank", &values, &n, &err));
    assert_int_equal(n, 3);
    assert_int_equal(values[2], 12);
    free(values);
    static const char *const worse[] = {"", "1,,2", "1,", "-1", "1.5", "99999999999999999999"};
    for (size_t c = 0; c < sizeof worse / sizeof worse[0]; c++)
        assert_fails(bl_parse_counts(worse[c], "--slots-per-rank", &values, &n, &err), BL_ERR_USAGE,
                     "--slots-per-rank");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_do_not_divide), cmocka_unit_test(thirty_on_eight),
        cmocka_unit_test(automatic_redundancy),     cmocka_unit_test(masked_ranks_lose_their_slots),
        cmocka_unit_test(lists_and_contradictions), cmocka_unit_test(command_line_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
