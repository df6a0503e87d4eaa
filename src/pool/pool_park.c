/* pool_park.c - where KV blocks of models stay that are not loaded. On the pool's thread, and after it
 * has ended on the one that closes the pool.
 *
 * The park is the pool's: what one engine leaves when it closes, the next one of the same model takes
 * when it opens. Models go first: parked blocks have the memory that models leave of the budget, and
 * are dropped where a model lacks it. A pool of another process (a worker) has its own, which counts
 * here as long as that process sleeps, and goes with it. */
#include "pool/pool_impl.h"

#include "base/log.h"
#include "engine/engine.h"
#include "kv/park.h"
#include "base/memavail.h"

#include <errno.h>
#include <string.h>

enum {
    END_MS = 2000,  /* for all models together when the pool closes: the process is about to end */
    FREE_SHARE = 4, /* parked blocks take at most a quarter of the free memory at a time */
    OWNER_ONLY = 0700
};

/* A folder that is not there is made, for its owner only. */
static int make_dir(const char *dir, struct err *e)
{
    struct stat st;

    if (!dir || !*dir) return err_set(e, E_INVALID, "park file needs a folder: park-dir");
    if (mkdir(dir, OWNER_ONLY) == 0) return OK;
    if (errno != EEXIST)
        return err_set(e, E_IO, "park-dir %s: cannot be made: %s", dir, strerror(errno));
    if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode)) return OK;
    return err_set(e, E_IO, "park-dir %s: is not a folder", dir);
}

int pool_open_park(struct pool *p, struct err *e)
{
    const struct pool_park_opt *o = &p->opt.park;
    struct park_opt how = { .max_bytes = o->max_bytes };
    int rc;

    if (o->where == POOL_PARK_OFF || !o->max_bytes) return OK;
    if (o->where == POOL_PARK_FILE && o->has_fd) {
        how.has_fd = true;
        how.fd = o->fd;
    } else if (o->where == POOL_PARK_FILE) {
        if ((rc = make_dir(o->dir, e)) != OK) return rc;
        how.dir = o->dir;
    }
    return park_open(&p->park, &how, e);
}

static void note_bytes(struct pool *p) { atomic_store(&p->parked_bytes, park_bytes(p->park)); }

void pool_end_park(struct pool *p)
{
    if (p->park) park_set_end(p->park, clock_ns() + END_MS * MS);
}

void pool_close_park(struct pool *p) { park_close(p->park); }

void pool_set_park_room(struct pool *p, uint64_t bytes) { atomic_store(&p->park_room, bytes); }

/* Bytes that a set may take in memory now, beside the models but for the one that is about to close. */
uint64_t pool_room_to_park(struct pool *p, const struct pool_instance *m)
{
    uint64_t limit = p->opt.memory_limit, others;
    uint64_t parked = pool_parked_bytes(p);
    struct memavail a;

    others = atomic_load(&p->taken_host) - membudget_on_host(&m->need);
    if (limit == 0) return UINT64_MAX;
    if (limit != POOL_MEMORY_AUTO) return limit > others + parked ? limit - others - parked : 0;
    room_read_free(p, &a);
    return a.free == UINT64_MAX ? a.free : a.free / FREE_SHARE;
}

static void set_room(struct pool *p, const struct pool_instance *m)
{
    uint64_t room = pool_room_to_park(p, m), most = atomic_load(&p->park_room);

    park_set_room(p->park, room < most ? room : most);
}

void pool_save_blocks(struct pool_instance *m)
{
    struct pool *p = m->pool;
    struct err e = { 0 };
    int n = 0;

    if (!p->park || !m->engine) return;
    if (atomic_load(&p->stop) && !park_has_files(p->park)) return; /* nobody will take them */
    if (!park_has_files(p->park)) set_room(p, m);
    engine_stop(m->engine);
    if (engine_park(m->engine, p->park, &n, &e) != OK)
        log_warn("model '%s': its KV blocks are not parked: %s", m->id, e.msg);
    else if (n) log_info("model '%s': %d KV blocks are parked", m->id, n);
    pool_note_parked(m, n);
    note_bytes(p);
}

void pool_note_parked(struct pool_instance *m, int n)
{
    atomic_store(&slot_of(m)->parked_blocks, n);
}

struct park *pool_park_of(const struct pool_instance *m) { return m->pool->park; }

void pool_note_restored(struct pool *p)
{
    if (p->park) note_bytes(p);
}

void pool_trim_park(struct pool *p)
{
    if (p->park) park_drop_files(p->park);
}

/* Blocks of this process first: a process that sleeps goes with its blocks. */
bool pool_shrink_park(struct pool *p, uint64_t bytes)
{
    const struct pool_host *h = p->opt.host;
    uint64_t given = p->park ? park_shrink(p->park, bytes) : 0;

    if (given) note_bytes(p);
    else if (h && h->drop_parked) given = h->drop_parked(h);
    if (!given) return false;
    log_info("%.1f MiB of parked KV blocks are dropped to make room for a model",
             (double)given / (1024.0 * 1024.0));
    return true;
}
