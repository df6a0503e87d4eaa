/* tiers.c - rules of tiers and of the prediction, mincore and readahead. */
#include "pool/tiers.h"

#include "base/confine.h"
#include "pool/modelbytes.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)

enum {
    WARM_MS = 60000,   /* since the last use */
    HINT_S = 60,       /* a hint is worth something for so long */
    AFTER_LEAST = 2,   /* a habit */
    WINDOWS = 256,     /* of a file that are looked at */
    WINDOW_PAGES = 32, /* of each */
    PIECE = 8 << 20    /* that is read ahead at a time */
};
static const double cached_least = 0.9; /* of a file that counts as cached */
static const double resident_least = 0.95;
static const double uses_least = 1.5; /* two uses, one of them recent */
static const double half_life_s = 300;

const char *tier_name(enum tier t)
{
    static const char *const names[] = { "disk", "cached", "mapped", "resident", "warm" };
    return names[t];
}

/* A file of which nothing is known is taken for one in memory if the model is loaded. */
enum tier tier_of(const struct tier_facts *f)
{
    double cached = f->cached < 0 ? 1 : f->cached, in_memory;

    if (!f->loaded) return f->cached >= cached_least ? TIER_CACHED : TIER_DISK;
    in_memory = f->copied + (1 - f->copied) * cached;
    if (in_memory < resident_least) return TIER_MAPPED;
    return f->idle_ms <= WARM_MS ? TIER_WARM : TIER_RESIDENT;
}

/* ---- the prediction ---- */

double tier_decay(double uses, uint64_t ns) { return uses * exp2(-(double)ns / 1e9 / half_life_s); }

static bool is_hinted(const struct tier_model *m, uint64_t now)
{
    return m->hint_ns && now - m->hint_ns < HINT_S * SECOND;
}

/* How strong the sign is that the model is needed: a class, and an order within it. */
static double weigh(const struct tier_model *m, uint64_t now)
{
    if (m->since_ns) return 4e9 + (double)(now - m->since_ns) / 1e9;
    if (is_hinted(m, now)) return 3e9 - (double)(now - m->hint_ns) / 1e9;
    if (m->after >= AFTER_LEAST) return 2e9 + m->after;
    return m->uses >= uses_least ? 1e9 + m->uses : 0;
}

int tier_predict(const struct tier_model *m, int n, uint64_t now_ns)
{
    double most = 0;
    int best = -1;

    for (int i = 0; i < n; i++) {
        double w = m[i].absent && m[i].cached < cached_least ? weigh(&m[i], now_ns) : 0;
        if (w > most) most = w, best = i;
    }
    return best;
}

/* ---- files ---- */

/* Opened, if it is a regular file; -1: it is not. */
static int open_file(const char *path, uint64_t *bytes)
{
    struct stat st;
    int fd = confine_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);

    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        *bytes = (uint64_t)st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

/* The kernel shows the page cache of a file only to its owner and to who could write it, and says "all"
 * to others. */
static bool is_shown(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (st.st_uid == geteuid() || geteuid() == 0);
}

/* Pages of the window that are in the page cache. */
static int look_at_window(const char *map, uint64_t page, uint64_t first, uint64_t n)
{
    unsigned char in[WINDOW_PAGES];
    int found = 0;

    if (mincore((void *)(map + first * page), n * page, in) != 0) return 0;
    for (uint64_t i = 0; i < n; i++) found += in[i] & 1;
    return found;
}

struct look {
    double bytes, cached;
    bool unknown;
};

/* Windows at equal distances; a small file is looked at as a whole. */
static bool look_at_file(void *arg, const char *path)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes, pages, step, seen = 0, found = 0;
    struct look *l = arg;
    int fd = open_file(path, &bytes);
    char *map;

    if (fd < 0) return true;
    pages = (bytes + page - 1) / page;
    step = pages / WINDOWS > WINDOW_PAGES ? pages / WINDOWS : WINDOW_PAGES;
    map = is_shown(fd) ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED) {
        l->unknown = true;
        return false;
    }
    for (uint64_t at = 0; at < pages; at += step) {
        uint64_t n = pages - at < WINDOW_PAGES ? pages - at : WINDOW_PAGES;
        found += (uint64_t)look_at_window(map, page, at, n);
        seen += n;
    }
    munmap(map, bytes);
    l->bytes += (double)bytes;
    l->cached += (double)bytes * (double)found / (double)seen;
    return true;
}

double tier_look(const char *path)
{
    struct look l = { 0 };

    model_each_file(path, look_at_file, &l);
    return l.unknown || l.bytes <= 0 ? -1 : l.cached / l.bytes;
}

struct ahead {
    bool (*may_go_on)(void *arg, uint64_t bytes);
    void *arg;
    uint64_t asked;
};

static bool read_file_ahead(void *arg, const char *path)
{
    struct ahead *a = arg;
    uint64_t bytes, n;
    int fd = open_file(path, &bytes);
    bool goes_on = true;

    if (fd < 0) return true;
    for (uint64_t at = 0; at < bytes && goes_on; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        if ((goes_on = a->may_go_on(a->arg, n)) && readahead(fd, (off64_t)at, n) == 0)
            a->asked += n;
    }
    close(fd);
    return goes_on;
}

uint64_t tier_read_ahead(const char *path, bool (*may_go_on)(void *arg, uint64_t bytes), void *arg)
{
    struct ahead a = { may_go_on, arg, 0 };

    model_each_file(path, read_file_ahead, &a);
    return a.asked;
}
