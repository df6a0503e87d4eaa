/* gone.h - has the client left? Asked of the socket, whatever lies unread in it. */
#ifndef TERN_NET_GONE_H
#define TERN_NET_GONE_H

enum gone { GONE_NOT, GONE_CLOSED, GONE_RESET, GONE_SLOW };

/* One poll() without waiting. A peer that closed only its sending side counts as gone; so does one
 * that the kernel gave up on, which is GONE_SLOW. */
enum gone gone_poll(int fd);
const char *gone_name(enum gone g); /* "closed", "reset", "slow reader"; "" */
#endif
