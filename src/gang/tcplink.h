/* tcplink.h - a link of one TCP connection between every two members. */
#ifndef TERN_GANG_TCPLINK_H
#define TERN_GANG_TCPLINK_H

#include "comm/comm.h"

/* fds: [size] connected sockets, -1 at the own rank. The link owns them, also after a failure. */
int tcplink_open(struct comm_link **out, const int *fds, int rank, int size, struct err *e);
#endif
