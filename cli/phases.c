#include "cli/phases.h"

const char *const bl_phase_choices[] = {"prefill", "midfill", "decode", "mixed", "verify",
                                        "idle",    "unknown", "all",    NULL};

int bl_phase_filter(int choice) {
    return choice >= 0 && choice < BL_N_PHASES ? choice : -1;
}

int bl_phases_of(const bl_demand *requests, int choice, int phases[BL_N_PHASES]) {
    int n = 0;
    for (int p = 0; p < BL_N_PHASES; p++) {
        if (requests->phases[p].tokens > 0 && (bl_phase_filter(choice) < 0 || p == choice))
            phases[n++] = p;
    }
    return n;
}
