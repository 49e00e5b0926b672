/*
 * scatter.h: how far an expert's load may be from what a scenario shows.
 *
 * Scenarios are texts, or blocks of steps. Two of the same kind differ by what cannot be planned
 * for: some expert runs hot for a while. From n scenarios, each in mean rank loads,
 *
 *     t(s)     the scenario most like s (least squared distance over all experts)
 *     m_e(s)   = (x_e(s) + x_e(t)) / 2                what texts of this kind ask of e
 *     v_e      = mean over s of (x_e(s) - x_e(t))^2 / 2
 *     v_e(s)   = v_e / 2  +  (f + f_e) / 4 * m_e(s)^(3/2)      the estimate
 *     f_e      = v_e / mean over s of m_e(s)^(3/2),   f the same of the sums over experts
 *
 * The second term says that who has more to do scatters more (on GLM-5.2's shards the variance grows
 * with the 1.5th power of the mean) and borrows strength: a dozen of pairs say little about one
 * expert, so half of it follows what is true of all experts. Both means are weighted by the
 * scenarios' weights.
 */
#ifndef BL_PLANNER_SCATTER_H
#define BL_PLANNER_SCATTER_H

#include "core/status.h"

/* variance[n_experts][n_scenarios] of load[n_experts][n_scenarios] (finite, >= 0). A scenario of
 * weight 0 is looked at by none and gets 0, and so does everything when it is the only other one.
 * Weights sum to 1. O(n_scenarios^2 n_experts). */
bl_status bl_scatter(const double *load, const double *weight, int n_experts, int n_scenarios,
                     double *variance, bl_error *err);

#endif
