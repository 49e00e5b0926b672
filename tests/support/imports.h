/*
 * imports.h: what the tests of topology importers share.
 */
#ifndef BL_TESTS_IMPORTS_H
#define BL_TESTS_IMPORTS_H

#include "topologies/import.h"
#include "topologies/topology.h"

/* Import `text` (copied) as `format`; the document's sources, joined by newlines, go to `sources`
 * [room] unless it is NULL. */
bl_status bl_test_import(bl_topology_format format, const char *text,
                         const bl_topology_import *options, bl_topology *out, char *sources,
                         size_t room, bl_error *err);

/* The same for a file of the shared data; skips the test where it is missing. */
bl_status bl_test_import_data(bl_topology_format format, const char *relative,
                              const bl_topology_import *options, bl_topology *out, bl_error *err);

/* "nvlink 2, node 1": names of the levels and their numbers of domains. Static storage. */
const char *bl_test_levels(const bl_topology *topology);

#endif
