/*
 * rules.h: hard rules beyond those of every problem: where experts may live, and in how many fault
 * domains they must.
 *
 *     may[rank][expert]   experts of a group that is kept whole live on the ranks of its node only
 *     domain[rank]        a host, a node, a rack, the rank itself: what fails together
 *     least[expert]       the expert has copies in at least so many different domains
 *
 * Search, GLPK models, construction and repair ask the functions here and in state.h, and every
 * plan is checked by bl_rules_check() whoever made it. A problem without rules pays one comparison
 * with NULL.
 *
 * Whether the rules can be kept at all is a flow: every expert sends `least` units, at most one into
 * each domain, one per rank, to ranks that have as many places as slots,
 *
 *     expert --least--> (expert, domain) --1--> rank --slots--> out
 *
 * and the rules can be kept if all of it arrives and every rank may hold as many experts as it has
 * slots: what is left over is filled with any experts the rank may hold and does not. The same flow
 * lays out a placement that keeps them, starting from one that does not with few copies displaced.
 */
#ifndef BL_PLANNER_RULES_H
#define BL_PLANNER_RULES_H

#include "planner/holds.h"

struct bl_problem;

/* Nobody asks for more, and a count that stops there needs no memory. */
#define BL_MOST_DOMAINS 8

typedef struct bl_rules {
    const bl_holds *may; /* as bits; NULL: everywhere. Borrowed, as all of it */
    const int *domain;   /* [n_ranks], from 0; NULL: no rule about domains */
    const int *least;    /* [n_experts], 1 to BL_MOST_DOMAINS; with `domain` */
} bl_rules;

static inline bool bl_rules_may(const bl_rules *rules, int rank, int expert) {
    return rules == NULL || rules->may == NULL || bl_holds_has(rules->may, rank, expert);
}

static inline int bl_rules_least(const bl_rules *rules, int expert) {
    return rules == NULL || rules->domain == NULL ? 1 : rules->least[expert];
}

/* Counts different domains, up to the number that an expert needs. */
typedef struct bl_domain_count {
    int least, n, seen[BL_MOST_DOMAINS];
} bl_domain_count;

static inline void bl_domain_count_add(bl_domain_count *count, int domain) {
    if (count->n >= count->least)
        return;
    for (int i = 0; i < count->n; i++) {
        if (count->seen[i] == domain)
            return;
    }
    count->seen[count->n++] = domain;
}

/* Can they be kept by any placement? BL_ERR_INFEASIBLE says what falls short, in numbers. */
bl_status bl_rules_check_problem(const struct bl_problem *problem, bl_error *err);

/* Does a placement keep them? BL_ERR_INFEASIBLE names the expert and the rank or the domains. */
bl_status bl_rules_check(const struct bl_problem *problem, const bl_layer_placement *placement,
                         bl_error *err);

/* May two ranks exchange all they hold without any rule noticing? Equally many slots included. */
bool bl_rules_alike(const struct bl_problem *problem, int rank, int other);

/* Change `placement` (of the problem's shape; slots may be empty, experts missing) so that the rules
 * are kept and every expert has a copy. What may stay stays, as long as there is room; slots that
 * come free are left empty. load[n_experts]: the hottest experts choose first and take the least
 * loaded ranks. The problem has been checked. */
bl_status bl_rules_repair(const struct bl_problem *problem, const double *load,
                          bl_layer_placement *placement, bl_error *err);

#endif
