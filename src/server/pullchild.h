/* pullchild.h - `tern pull --json` as a child process of the server.
 *
 * The server links no client of the network: this program is started again (/proc/self/exe), and that
 * process opens tern-pull.so. Its lines of JSON come over a pipe, its end over a pidfd. It has neither
 * the server's descriptors nor its keys; HF_TOKEN, HF_ENDPOINT and the proxies are in its environment.
 * Downloaded files stay when the child is stopped, and the next pull goes on there.
 *
 * All functions are for the loop's thread. */
#ifndef TERN_SERVER_PULLCHILD_H
#define TERN_SERVER_PULLCHILD_H

#include "base/err.h"
#include "base/str.h"

struct loop;
struct pullchild;

struct pullchild_opt {
    struct loop *loop;
    const char *name; /* "hf:ORG/NAME[@REV][:FILE]", checked: it is an argument of the process */
    void (*line)(void *arg, struct str line); /* without its newline */
    /* Once, after the last line: the process has ended with this code; -1: by a signal. The child is
     * freed when it returns. */
    void (*ended)(void *arg, int code);
    void *arg;
};

int pullchild_start(struct pullchild **out, const struct pullchild_opt *opt, struct err *e);
/* Asks it to end, and kills it if it does not soon. `ended` is still called. */
void pullchild_stop(struct pullchild *c);
/* Kills it and waits for its end; `ended` is not called. NULL is allowed. */
void pullchild_close(struct pullchild *c);
#endif
