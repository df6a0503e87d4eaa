#include "cli/loadbar.h"

#include "base/clock.h"
#include "base/mem.h"
#include "pool/modelbytes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MS = 300, NEXT_MS = 100 };

struct loadbar {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t end;
    bool ended;
    atomic_int percent; /* of the weights */
    uint64_t bytes;     /* of the files */
    char name[64];
};

/* Waits; true: the model is open. */
static bool wait_end(struct loadbar *b, int ms)
{
    struct timespec until;
    bool ended;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&b->lock);
    while (!b->ended && pthread_cond_timedwait(&b->end, &b->lock, &until) == 0) continue;
    ended = b->ended;
    pthread_mutex_unlock(&b->lock);
    return ended;
}

static void *draw(void *arg)
{
    struct loadbar *b = arg;
    uint64_t start = clock_ns();
    bool drawn = false;

    for (int ms = FIRST_MS; !wait_end(b, ms); ms = NEXT_MS, drawn = true) {
        fprintf(stderr, "\rloading %.50s (%.1f MB): %3d %%, %.1f s", b->name,
                (double)b->bytes / 1e6, atomic_load(&b->percent), clock_ms_since(start) / 1e3);
        fflush(stderr);
    }
    if (drawn) fprintf(stderr, "\r%95s\r", "");
    return NULL;
}

static bool init_lock(struct loadbar *b)
{
    pthread_condattr_t a;
    bool ok;

    if (pthread_mutex_init(&b->lock, NULL) != 0) return false;
    if (pthread_condattr_init(&a) != 0) return pthread_mutex_destroy(&b->lock), false;
    ok = pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0 && pthread_cond_init(&b->end, &a) == 0;
    pthread_condattr_destroy(&a);
    if (!ok) pthread_mutex_destroy(&b->lock);
    return ok;
}

struct loadbar *loadbar_start(const char *path, const char *name, bool quiet)
{
    struct loadbar *b;

    if (quiet || !isatty(STDERR_FILENO) || !(b = mem_new(struct loadbar))) return NULL;
    b->bytes = model_file_bytes(path);
    snprintf(b->name, sizeof b->name, "%s", name);
    if (!init_lock(b)) return mem_free(b), NULL;
    if (pthread_create(&b->thread, NULL, draw, b) == 0) return b;
    pthread_cond_destroy(&b->end);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
    return NULL;
}

void loadbar_tell(void *bar, int percent)
{
    struct loadbar *b = bar;

    if (b) atomic_store(&b->percent, percent);
}

void loadbar_stop(struct loadbar *b)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->ended = true;
    pthread_cond_signal(&b->end);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->end);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}
