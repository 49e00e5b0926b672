/* Which copy serves a row: what each rule promises, over ranks that talk to each other. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "core/split_step.h"
#include "runtime/sharing.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N_RANKS = 4, N_EXPERTS = 16, K = 2, MAX_TOKENS = 200 };

typedef struct seat {
    const bl_layer_placement *map;
    const bl_sharing_rule *rule;
    bl_transport *transport;
    int n_tokens;
    int32_t ids[MAX_TOKENS * K], slot[MAX_TOKENS * K];
    uint64_t exchanged;
    bl_status status;
    bl_error error;
    pthread_t thread;
} seat;

static void *rank_main(void *user) {
    seat *s = user;
    bl_exchange exchange = bl_exchange_over(s->transport, 20);
    bl_sharing *sharing = NULL;
    s->status =
        bl_sharing_create(s->rule, s->map, bl_transport_rank(s->transport), &sharing, &s->error);
    for (int again = 0; again < 2 && s->status >= 0; again++) /* nothing is left of the first */
        s->status = bl_sharing_choose(sharing, &exchange, s->ids, s->n_tokens, K, s->slot,
                                      &s->exchanged, &s->error);
    bl_sharing_free(sharing);
    bl_transport_close(s->transport);
    return NULL;
}

/* Skewed picks, every rank another number of tokens; rank 3 has none. */
static void draw_ids(seat *seats, uint64_t seed) {
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    for (int r = 0; r < N_RANKS; r++) {
        seats[r].n_tokens = r == 3 ? 0 : 60 + 40 * r;
        for (int t = 0; t < seats[r].n_tokens; t++) {
            const uint32_t first = bl_rng_below(&rng, 1 + bl_rng_below(&rng, N_EXPERTS));
            seats[r].ids[t * K] = (int32_t)first;
            seats[r].ids[t * K + 1] =
                (int32_t)((first + 1 + bl_rng_below(&rng, N_EXPERTS - 1)) % N_EXPERTS);
        }
    }
}

static void share_rows(const bl_layer_placement *map, const bl_sharing_rule *rule, seat *seats) {
    bl_error err;
    bl_transport *handles[N_RANKS];
    assert_ok(bl_transport_local_open(N_RANKS, handles, &err));
    for (int r = 0; r < N_RANKS; r++) {
        seats[r].map = map;
        seats[r].rule = rule;
        seats[r].transport = handles[r];
        seats[r].error = BL_ERROR_INIT;
        assert_int_equal(pthread_create(&seats[r].thread, NULL, rank_main, &seats[r]), 0);
    }
    for (int r = 0; r < N_RANKS; r++)
        pthread_join(seats[r].thread, NULL);
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(seats[r].status, BL_OK);
        for (int a = 0; a < seats[r].n_tokens * K; a++) /* a slot of this very expert */
            assert_int_equal(map->expert[seats[r].slot[a]], seats[r].ids[a]);
    }
}

/* Experts 0 to 7 have two copies: on ranks e / 2 and e / 2 + 1 mod 4; 8 to 15 one each. */
static bl_placement two_copies(void) {
    bl_error err;
    bl_placement placement;
    const int layer = 0, slots[N_RANKS] = {6, 6, 6, 6};
    assert_ok(bl_placement_create(N_RANKS, N_EXPERTS, &layer, 1, slots, &placement, &err));
    for (int r = 0; r < N_RANKS; r++) {
        int32_t *at = placement.layers[0].expert + 6 * r;
        const int before = (r + 3) % 4;
        const int32_t held[6] = {2 * r,          2 * r + 1, 2 * before,
                                 2 * before + 1, 8 + 2 * r, 9 + 2 * r};
        memcpy(at, held, sizeof held);
    }
    assert_ok(bl_placement_check(&placement, NULL, &err));
    return placement;
}

static void per_step_is_the_best_split(void **state) {
    (void)state;
    bl_error err;
    static seat seats[N_RANKS];
    bl_placement placement = two_copies();
    const bl_layer_placement *map = &placement.layers[0];
    const bl_sharing_rule rule = {.rule = BL_RULE_PER_STEP};
    bl_step_split *oracle;
    assert_ok(bl_step_split_create(map, &oracle, &err));
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t count[N_EXPERTS] = {0}, rows[N_RANKS] = {0}, busiest = 0;
        int64_t home[N_RANKS][N_EXPERTS] = {{0}};
        bl_step_split_result best;
        draw_ids(seats, seed);
        share_rows(map, &rule, seats);
        for (int r = 0; r < N_RANKS; r++) {
            assert_int_equal(seats[r].exchanged, N_EXPERTS * 4 * (N_RANKS - 1));
            for (int a = 0; a < seats[r].n_tokens * K; a++) {
                count[seats[r].ids[a]]++;
                rows[bl_layer_rank_of(map, seats[r].slot[a])]++;
                home[r][seats[r].ids[a]]++;
            }
        }
        for (int r = 0; r < N_RANKS; r++)
            busiest = rows[r] > busiest ? rows[r] : busiest;
        assert_ok(bl_step_split_solve(oracle, count, 0, &best, &err));
        assert_true(busiest >= best.busiest);
        assert_true((double)busiest <= (double)best.busiest * (1 + BL_SHARING_SLACK));
        /* Rows leave a rank that holds the expert only when its copy takes no more. */
        for (int r = 0; r < N_RANKS; r++) {
            for (int e = 0; e < N_EXPERTS; e++) {
                const int own = bl_layer_find(map, r, e);
                int64_t here = 0, others = 0;
                for (int a = 0; own >= 0 && a < seats[r].n_tokens * K; a++)
                    here += seats[r].slot[a] == own;
                for (int s = 0; own >= 0 && s < N_RANKS; s++) {
                    for (int a = 0; s != r && a < seats[s].n_tokens * K; a++)
                        others += seats[s].slot[a] == own;
                }
                if (own >= 0 && here < home[r][e])
                    assert_int_equal(others, 0);
            }
        }
    }
    bl_step_split_free(oracle);
    bl_placement_free(&placement);
}

/* Ranks 0, 2 on one machine, 1, 3 on another. Expert 0 lives on ranks 0 and 1: rank 2 takes its own
 * machine's copy. Expert 4 lives on ranks 2 and 3. */
static void nearest_and_fixed_stay_close(void **state) {
    (void)state;
    static seat seats[N_RANKS];
    static const int host[N_RANKS] = {0, 1, 0, 1};
    static const int copy_of_0[N_RANKS] = {0, 1, 0, 1}, copy_of_4[N_RANKS] = {2, 3, 2, 3};
    bl_placement placement = two_copies();
    const bl_layer_placement *map = &placement.layers[0];
    for (int which = 0; which < 2; which++) {
        const bl_sharing_rule rule = {.rule = which == 0 ? BL_RULE_NEAREST : BL_RULE_FIXED,
                                      .host = host};
        for (int r = 0; r < N_RANKS; r++) {
            seats[r].n_tokens = 3;
            for (int t = 0; t < 3; t++) {
                seats[r].ids[t * K] = 0;
                seats[r].ids[t * K + 1] = 4;
            }
        }
        share_rows(map, &rule, seats);
        for (int r = 0; r < N_RANKS; r++) {
            for (int t = 0; t < 3; t++) {
                assert_int_equal(bl_layer_rank_of(map, seats[r].slot[t * K]), copy_of_0[r]);
                assert_int_equal(bl_layer_rank_of(map, seats[r].slot[t * K + 1]), copy_of_4[r]);
            }
        }
    }
    bl_placement_free(&placement);
}

/* All on one machine: expert 0 on ranks 0 and 1. Ranks 2 and 3 draw, one each copy; rank 0 and 1
 * serve their own. */
static void nearest_draws_evenly(void **state) {
    (void)state;
    static seat seats[N_RANKS];
    bl_placement placement = two_copies();
    const bl_sharing_rule rule = {.rule = BL_RULE_NEAREST};
    int drawn[N_RANKS] = {0};
    for (int r = 0; r < N_RANKS; r++) {
        seats[r].n_tokens = 1;
        seats[r].ids[0] = 0;
        seats[r].ids[1] = 8;
    }
    share_rows(&placement.layers[0], &rule, seats);
    for (int r = 0; r < N_RANKS; r++)
        drawn[bl_layer_rank_of(&placement.layers[0], seats[r].slot[0])]++;
    assert_int_equal(bl_layer_rank_of(&placement.layers[0], seats[0].slot[0]), 0);
    assert_int_equal(bl_layer_rank_of(&placement.layers[0], seats[1].slot[0]), 1);
    assert_true(drawn[0] == 2 && drawn[1] == 2);
    bl_placement_free(&placement);
}

static void even_and_fractions_follow_their_shares(void **state) {
    (void)state;
    static seat seats[N_RANKS];
    bl_placement placement = two_copies();
    const bl_layer_placement *map = &placement.layers[0];
    double share[24];
    const double *shares[1] = {share};
    for (int slot = 0; slot < 24; slot++) /* a quarter to the first rank that holds it */
        share[slot] = slot % 6 >= 4 ? 1 : slot % 6 < 2 ? 0.25 : 0.75;
    for (int which = 0; which < 2; which++) {
        const bl_sharing_rule rule = {.rule = which == 0 ? BL_RULE_EVEN : BL_RULE_FRACTIONS,
                                      .share = shares};
        for (int r = 0; r < N_RANKS; r++) {
            seats[r].n_tokens = 100;
            for (int t = 0; t < 100; t++) {
                seats[r].ids[t * K] = 3;
                seats[r].ids[t * K + 1] = 10;
            }
        }
        share_rows(map, &rule, seats);
        for (int r = 0; r < N_RANKS; r++) {
            int on_first = 0;
            for (int t = 0; t < 100; t++)
                on_first += bl_layer_rank_of(map, seats[r].slot[t * K]) == 1;
            const int want = which == 0 ? 50 : 25;
            assert_true(abs(on_first - want) <= 1);
        }
    }
    bl_placement_free(&placement);
}

/* Nodes {0, 1} and {2, 3}. Experts 2 (on ranks 1 and 2) and 6 (on 3 and 0) are on both: a token is
 * served on its own. */
static void local_visits_few_nodes(void **state) {
    (void)state;
    static seat seats[N_RANKS];
    static const int node[N_RANKS] = {0, 0, 1, 1};
    bl_placement placement = two_copies();
    const bl_layer_placement *map = &placement.layers[0];
    const bl_sharing_rule rule = {.rule = BL_RULE_LOCAL, .node = node};
    for (int r = 0; r < N_RANKS; r++) {
        seats[r].n_tokens = 5;
        for (int t = 0; t < 5; t++) {
            seats[r].ids[t * K] = 2;
            seats[r].ids[t * K + 1] = 6;
        }
    }
    share_rows(map, &rule, seats);
    for (int r = 0; r < N_RANKS; r++) {
        for (int a = 0; a < 5 * K; a++)
            assert_int_equal(node[bl_layer_rank_of(map, seats[r].slot[a])], node[r]);
    }
    bl_placement_free(&placement);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_step_is_the_best_split),
        cmocka_unit_test(nearest_and_fixed_stay_close),
        cmocka_unit_test(nearest_draws_evenly),
        cmocka_unit_test(even_and_fractions_follow_their_shares),
        cmocka_unit_test(local_visits_few_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
