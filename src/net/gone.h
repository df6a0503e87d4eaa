/* gone.h - has the client closed its connection? Asks the socket, without reading its input. */
#ifndef TERN_NET_GONE_H
#define TERN_NET_GONE_H

enum gone { GONE_NOT, GONE_CLOSED, GONE_RESET, GONE_SLOW };

/* One poll() that does not block. A peer that closed only its sending side counts as GONE_CLOSED; a
 * peer whose kernel stopped acknowledging (ETIMEDOUT) is GONE_SLOW. */
enum gone gone_poll(int fd);
const char *gone_name(enum gone g); /* "closed", "reset", "slow reader"; "" for GONE_NOT */
#endif
