/*
 * control_parts.h: what server (control.c) and client (control_client.c) share.
 */
#ifndef BL_REBALANCER_CONTROL_PARTS_H
#define BL_REBALANCER_CONTROL_PARTS_H

#include "rebalancer/control.h"

#include <sys/socket.h>
#include <sys/un.h>

bl_status bl_control_address(const char *path, struct sockaddr_un *out, bl_error *err);
int bl_control_socket(void); /* closed on exec; -1 with errno */

#endif
