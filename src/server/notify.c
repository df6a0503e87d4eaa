/* notify.c - see notify.h. The loop's thread calls all of it; a send never waits. */
#include "server/notify.h"

#include "base/buf.h"
#include "base/log.h"
#include "server/server_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MORE_TIME "EXTEND_TIMEOUT_USEC=60000000\n"

/* A name that begins with @ is in the abstract namespace, whose names begin with NUL. */
void notify_open(struct notify *n)
{
    const char *path = getenv("NOTIFY_SOCKET"), *watchdog = getenv("WATCHDOG_USEC");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    size_t len = path ? strlen(path) : 0;
    int fd;

    *n = (struct notify){ 0 };
    if (len < 2 || len >= sizeof to.sun_path || (*path != '/' && *path != '@')) return;
    memcpy(to.sun_path, path, len);
    if (*path == '@') to.sun_path[0] = 0;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    if (connect(fd, (struct sockaddr *)&to,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) != 0) {
        log_warn("NOTIFY_SOCKET %s: no service manager listens there", path);
        close(fd);
        return;
    }
    n->on = true;
    n->fd = fd;
    n->watchdog = watchdog && *watchdog;
}

static void send_text(struct notify *n, const char *text)
{
    if (n->on && send(n->fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        log_debug("the service manager was not told: %s", text);
}

/* "ready", or why not. */
static void describe(const struct server *v, char out[200])
{
    const struct health *h = &v->health;
    snprintf(out, 200, "%.160s", h->reason[0] ? h->reason : health_name(h->ready));
}

void notify_update(struct server *v)
{
    struct notify *n = &v->notify;
    bool loading = v->health.ready == READY_LOADING, first = !n->ready && !loading;
    char state[200], text[400];

    if (!n->on) return;
    describe(v, state);
    snprintf(text, sizeof text, "%s%s%sSTATUS=%s\n", first ? "READY=1\n" : "",
             n->watchdog ? "WATCHDOG=1\n" : "", !n->ready && loading ? MORE_TIME : "", state);
    if (n->ready && !n->watchdog && n->said && strcmp(state, n->state) == 0) return;
    send_text(n, text);
    n->ready |= first;
    n->said = true;
    memcpy(n->state, state, sizeof state);
}

void notify_stopping(struct server *v) { send_text(&v->notify, "STOPPING=1\nSTATUS=draining\n"); }

void notify_close(struct notify *n)
{
    if (n->on) close(n->fd);
    n->on = false;
}
