/* descriptors.c - a connection that is accepted must find a descriptor, and so must everything else
 * that opens files: models, devices, the log. */
#include "server/descriptors.h"

#include "base/log.h"
#include "net/http.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

enum {
    OTHER_FILES = 48, /* standard streams, loop, listeners, devices, files opened for a moment */
    MODEL_FILES = 16  /* parts of a model, its tokenizer and configuration */
};

/* The soft limit that holds from now on. A limit that cannot be raised stays as it is. */
static rlim_t raise_limit(void)
{
    struct rlimit now, raised;

    if (getrlimit(RLIMIT_NOFILE, &now) != 0) return RLIM_INFINITY;
    raised = (struct rlimit){ now.rlim_max, now.rlim_max };
    if (now.rlim_cur == now.rlim_max || setrlimit(RLIMIT_NOFILE, &raised) == 0) return now.rlim_max;
    log_warn("the limit of open files stays %llu: %s", (unsigned long long)now.rlim_cur,
             strerror(errno));
    return now.rlim_cur;
}

int descriptors_fit(int wanted, int n_models, int *fits, struct err *e)
{
    rlim_t limit = raise_limit();
    int other = OTHER_FILES + n_models * MODEL_FILES, n = wanted;
    int room = limit > 1 << 30 ? 1 << 30 : (int)limit - other;

    while (n > 0 && http_descriptors(n) > room) n -= http_descriptors(n) - room;
    *fits = n;
    if (n < 1)
        return err_set(e, E_INVALID,
                       "the limit of open files (ulimit -n) is %llu: tern needs at least %d",
                       (unsigned long long)limit, other + http_descriptors(1));
    if (n < wanted)
        log_warn("max-connections is %d, but the limit of open files (ulimit -n) of %llu has room "
                 "for %d connections only",
                 wanted, (unsigned long long)limit, n);
    return OK;
}
