/* gone.c - polling a socket for the close of its peer. POLLRDHUP is reported without reading the
 * input that may be before it. */
#include "net/gone.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

static enum gone gone_of_errno(int err) { return err == ETIMEDOUT ? GONE_SLOW : GONE_RESET; }

enum gone gone_poll(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLRDHUP };
    int err = 0;
    socklen_t n = sizeof err;

    if (poll(&p, 1, 0) <= 0) return GONE_NOT;
    if (p.revents & POLLERR) {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n);
        return gone_of_errno(err);
    }
    return p.revents & (POLLRDHUP | POLLHUP) ? GONE_CLOSED : GONE_NOT;
}

const char *gone_name(enum gone g)
{
    switch (g) {
    case GONE_CLOSED: return "closed";
    case GONE_RESET: return "reset";
    case GONE_SLOW: return "slow reader";
    default: return "";
    }
}
