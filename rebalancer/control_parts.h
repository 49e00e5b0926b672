/*
 * control_parts.h: what server (control.c) and client (control_client.c) share.
 */
#ifndef BL_REBALANCER_CONTROL_PARTS_H
#define BL_REBALANCER_CONTROL_PARTS_H

#include "rebalancer/control.h"

#include <sys/socket.h>
#include <sys/un.h>

/* ---- control_look.c -------------------------------------------------------------------------- */

json_t *bl_control_look(const bl_control_request *request, const bl_control_cluster *cluster,
                        const bl_control_epochs *epochs, const bl_agent *agent);
/* [{"layer","epoch","slots"}]: the placement in force. */
json_t *bl_control_map(const bl_agent *agent);
/* {"uid","pid"}, or null. */
json_t *bl_control_who_to_json(const bl_control_who *who);

/* ---- control_peer.c -------------------------------------------------------------------------- */

bl_control_who bl_control_peer(int fd);

/* ---- control_client.c ------------------------------------------------------------------------ */

bl_status bl_control_address(const char *path, struct sockaddr_un *out, bl_error *err);
int bl_control_socket(void); /* closed on exec; -1 with errno */

#endif
