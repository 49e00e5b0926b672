/* Memory after start is memory after 10 000 moves, on the heap and in the store; and 10 000 plans that
 * need nothing leave nothing behind. */
#include "tests/support/support.h"

#include "rebalancer/agent.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    RANKS = 2,
    EXPERTS = 8,
    SLOTS = 4,
    BUNDLE = 192,
    WARM = 200,
    MOVES = 10000,
    SLACK = 64 << 10
};

typedef struct rank {
    bl_store *store;
    bl_agent *agent;
    bl_transport *transport;
    pthread_t thread;
} rank;

static rank ranks[RANKS];
static atomic_bool over;
static pthread_barrier_t gate;

/* Steps in lockstep, as the engine makes them; rank 0 is the test's own thread. */
static bl_status step(int r, uint64_t number) {
    pthread_barrier_wait(&gate);
    return bl_agent_at_step(ranks[r].agent, number, NULL);
}

static void *other_rank(void *user) {
    (void)user;
    for (uint64_t number = 1;; number++) {
        if (step(1, number) < 0)
            break;
        if (atomic_load(&over))
            break;
    }
    return NULL;
}

static size_t heap_bytes(void) {
    return mallinfo2().uordblks;
}

static bl_placement placement(bool swapped) {
    bl_error err;
    bl_placement made;
    const int layers[] = {1, 2}, slots[] = {SLOTS, SLOTS};
    assert_ok(bl_placement_create(RANKS, EXPERTS, layers, 2, slots, &made, &err));
    bl_placement_fill_contiguous(&made);
    for (int l = 0; swapped && l < 2; l++) { /* two experts change places */
        made.layers[l].expert[0] = SLOTS;
        made.layers[l].expert[SLOTS] = 0;
    }
    return made;
}

/* Apply until `moves` copies have travelled; returns the number of the next step. */
static uint64_t move_often(uint64_t number, int moves, const bl_placement *goals) {
    bl_error err;
    for (int done = 0, turn = 0; done < moves; turn++) {
        int n;
        assert_ok(bl_agent_apply(ranks[0].agent, &goals[turn % 2], &n, &err));
        assert_int_equal(n, 4);
        done += n;
        do
            assert_ok(step(0, number++));
        while (bl_agent_is_busy(ranks[0].agent));
        bl_agent_status status;
        bl_agent_get_status(ranks[0].agent, &status);
        assert_int_equal(status.outcome, BL_TX_MOVED);
    }
    return number;
}

static void test_ten_thousand_moves(void **state) {
    (void)state;
    bl_error err;
    bl_transport *handles[RANKS];
    const int layers[] = {1, 2};
    const bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    bl_placement start = placement(false), swapped = placement(true);
    const bl_placement goals[] = {swapped, start};
    assert_ok(bl_transport_local_open(RANKS, handles, &err));
    assert_int_equal(pthread_barrier_init(&gate, NULL, RANKS), 0);
    for (int r = 0; r < RANKS; r++) {
        ranks[r].transport = handles[r];
        assert_ok(bl_store_create(&start, r, BUNDLE, 1, &ranks[r].store, &err));
        assert_ok(bl_agent_create(ranks[r].store, handles[r], layers, 2, &options, &ranks[r].agent,
                                  &err));
    }
    assert_int_equal(pthread_create(&ranks[1].thread, NULL, other_rank, NULL), 0);
    const size_t resident = bl_store_resident_bytes(ranks[0].store);
    uint64_t number = move_often(1, WARM, goals);
    const size_t before = heap_bytes();
    number = move_often(number, MOVES, goals);
    const size_t after = heap_bytes();
    print_message("# heap %zu bytes after %d moves, %zu after %d more\n", before, WARM, after,
                  MOVES);
    /* The allocator's own caches breathe; the smallest block leaked per move would be 320 KB. */
    assert_true(after <= before + SLACK);
    assert_int_equal(bl_store_resident_bytes(ranks[0].store), resident);
    assert_int_equal(bl_store_spares_free(ranks[0].store), 1);

    for (int plan = 0; plan < 10000; plan++) {
        int n;
        assert_ok(bl_agent_apply(ranks[0].agent, &start, &n, &err));
        assert_int_equal(n, 0);
    }
    assert_true(heap_bytes() <= before + SLACK);
    atomic_store(&over, true);
    assert_ok(step(0, number));
    pthread_join(ranks[1].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        bl_agent_free(ranks[r].agent);
        bl_store_free(ranks[r].store);
        bl_transport_close(ranks[r].transport);
    }
    pthread_barrier_destroy(&gate);
    bl_placement_free(&start);
    bl_placement_free(&swapped);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ten_thousand_moves)};
    return cmocka_run_group_tests_name("move_memory", tests, NULL, NULL);
}
