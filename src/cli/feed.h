/* feed.h - sends texts from arguments, a file or stdin through an engine and prints the results in
 * their order. For `embed`, `classify` and `rerank`.
 *
 * Up to 32 texts are in the engine at once, so that they share batches. The engine's thread signals
 * progress; everything else happens on the calling thread. */
#ifndef TERN_CLI_FEED_H
#define TERN_CLI_FEED_H

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "token/tokenizer.h"

#include <pthread.h>

#define FEED_INIT .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER

struct feed {
    struct engine *engine; /* opened by the caller, closed by feed_run or feed_release */
    /* Fills the request for a text: the prompt, and what is wanted of it. */
    int (*encode)(struct feed *f, const struct tokenizer *t, struct str text, struct request *r,
                  struct err *e);
    /* Prints the result of text i. */
    int (*show)(struct feed *f, const struct request *r, int i, struct err *e);
    void *arg;
    struct str *texts; /* borrowed from the arguments or from input */
    int n, cap;
    struct buf input; /* the file's bytes */
    pthread_mutex_t lock;
    pthread_cond_t news;
    int n_news; /* notifications of the engine so far */
};

void feed_add(struct feed *f, struct str text);
/* Adds the non-empty lines of a file, or of stdin for NULL and "-". No line at all is E_INVALID. */
int feed_read(struct feed *f, const char *file, struct err *e);
int feed_run(struct feed *f, struct err *e);
void feed_release(struct feed *f);
#endif
