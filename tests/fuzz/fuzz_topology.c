/* Topologies from anywhere: reading ends in a tree whose parts agree and that survives a round
 * trip, or in one clear message. */
#include "topologies/topology.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

static void check(const bl_topology *t) {
    require(t->n_ranks >= 1 && t->n_levels >= 1 && t->n_devices >= 1);
    require(t->levels[t->n_levels].n_domains == 1);
    const int few = t->n_ranks < 24 ? t->n_ranks : 24;
    for (int a = 0; a < few; a++) {
        require(t->device[a] >= 0 && t->device[a] < t->n_devices);
        require(t->host[a] >= 0 && t->host[a] < t->n_hosts);
        for (int level = 0; level <= t->n_levels; level++) {
            const int domain = bl_topology_domain(t, level, a);
            require(domain >= 0 && domain < t->levels[level].n_domains);
        }
        for (int b = 0; b < few; b++) {
            const int level = bl_topology_level(t, a, b);
            require((level == 0) == (a == b));
            require(level == bl_topology_level(t, b, a));
            for (int up = level; up <= t->n_levels; up++) /* domains are nested */
                require(bl_topology_domain(t, up, a) == bl_topology_domain(t, up, b));
            const double seconds = bl_topology_move_s(t, a, b, 1e6);
            require(a == b ? seconds == 0 : seconds > 0 && seconds < 1e300);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root, *form;
    bl_topology topology, again, part;
    bl_error err = BL_ERROR_INIT;
    if (bl_json_parse((const char *)data, size, "fuzz", &root, &err) < 0)
        return 0;
    if (bl_topology_from_json(root, NULL, NULL, "fuzz", &topology, &err) < 0) {
        require(err.code < 0 && err.text[0] != '\0');
        json_decref(root);
        return 0;
    }
    json_decref(root);
    check(&topology);
    require(bl_topology_take(&topology, (topology.n_ranks + 1) / 2, &part, NULL) == BL_OK);
    check(&part);
    bl_topology_free(&part);
    if (topology.n_ranks <= 4096) {
        form = bl_topology_to_json(&topology);
        require(form != NULL);
        require(bl_topology_from_json(form, NULL, NULL, "again", &again, NULL) == BL_OK);
        check(&again);
        require(strcmp(bl_topology_digest(&topology).hex, bl_topology_digest(&again).hex) == 0);
        bl_topology_free(&again);
        json_decref(form);
    }
    bl_topology_free(&topology);
    return 0;
}
