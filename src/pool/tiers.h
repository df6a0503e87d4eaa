/* tiers.h - how near a model is to its first token, and which model is asked for next. Pure functions over
 * numbers, and what the kernel says about files; pool_ahead.c keeps the numbers.
 *
 *     disk      not loaded; its file has to be read
 *     cached    not loaded; its file is in the page cache, so loading reads nothing
 *     mapped    loaded; some of its weights have to be read from the file when they are used
 *     resident  loaded; all weights are in memory
 *     warm      resident, and used lately: caches, KV blocks and clocks are as after a request
 */
#ifndef TERN_POOL_TIERS_H
#define TERN_POOL_TIERS_H

#include <stdbool.h>
#include <stdint.h>

enum tier { TIER_DISK, TIER_CACHED, TIER_MAPPED, TIER_RESIDENT, TIER_WARM };
const char *tier_name(enum tier t); /* "disk", "cached", ... */

struct tier_facts {
    bool loaded;
    double cached;   /* share of the file's bytes in the page cache; below 0: not known */
    double copied;   /* loaded: share of the weights that do not lie in the file */
    int64_t idle_ms; /* loaded: since its last use */
};
enum tier tier_of(const struct tier_facts *f);

/* A model as the prediction sees it. */
struct tier_model {
    bool absent;       /* not loaded, not being loaded, and there */
    double cached;     /* as above */
    uint64_t since_ns; /* requests wait for it: the oldest; 0: none do */
    uint64_t hint_ns;  /* when a request last said that it is needed soon; 0: never */
    int after;         /* how often in a row it was the next model after the one used last */
    double uses;       /* of the last minutes: see tier_decay */
};
/* Whose file should be read ahead: in this order, the model whose requests have waited longest, the one
 * that was hinted at last, the one that follows the one in use now, and the one that was used most
 * lately. Not one that is in the page cache already. -1: none is likely. */
int tier_predict(const struct tier_model *m, int n, uint64_t now_ns);
/* A count of uses after this time without one: half of it is left after some minutes. */
double tier_decay(double uses, uint64_t ns);

/* ---- files ---- */

/* The share of a model's weights that is in the page cache, by samples; -1: not known. Files are opened,
 * not read. Any thread. */
double tier_look(const char *path);
/* Asks the kernel to read the model's files into the page cache, a piece at a time. may_go_on is asked
 * before each piece of so many bytes. Returns the bytes asked for. Any thread; waits for the disk. */
uint64_t tier_read_ahead(const char *path, bool (*may_go_on)(void *arg, uint64_t bytes), void *arg);
#endif
