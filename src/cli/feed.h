/* feed.h - texts of arguments, a file or stdin through an engine, so many at once, shown in their
 * order. */
#ifndef TERN_CLI_FEED_H
#define TERN_CLI_FEED_H

#include "base/buf.h"
#include "engine/engine.h"

#include <pthread.h>

#define FEED_INIT .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER

struct feed {
    struct engine *engine; /* the caller opens it; feed_run closes it */
    /* Fills in what is asked of a text; then it is shown. */
    int (*encode)(struct feed *j, const struct tokenizer *t, struct str text, struct request *r,
                  struct err *e);
    int (*show)(struct feed *j, const struct request *r, int i, struct err *e);
    void *arg;
    struct str *texts;
    int n, cap;
    struct buf input;
    pthread_mutex_t lock;
    pthread_cond_t news;
    int n_news; /* times the engine told of some */
};

void feed_add(struct feed *j, struct str text);
/* The lines of a file; NULL or "-": of stdin. None is a failure. */
int feed_read(struct feed *j, const char *file, struct err *e);
int feed_run(struct feed *j, struct err *e);
int feed_print(struct buf *out, struct err *e); /* to stdout, and empties it */
void feed_release(struct feed *j);
#endif
