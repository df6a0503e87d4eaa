#include "cluster/stored.h"

#include "cluster/affinity.h"
#include "cluster/fleet.h"

#include <string.h>

static uint64_t hash_id(struct str id)
{
    char text[AFFINITY_BYTES] = "stored answer ";
    size_t at = strlen(text), room = sizeof text - at;
    uint64_t h = 0;

    if (id.n > CALL_BYTES) id = str_skip(id, id.n - CALL_BYTES);
    memcpy(text + at, id.p, id.n < room ? id.n : room);
    affinity_hash_text(1, text, sizeof text, &h);
    return h;
}

/* Every path works without "/v1", too. */
static struct str skip_version(struct str path)
{
    return str_starts(path, STR("/v1/")) ? str_skip(path, 3) : path;
}

uint64_t stored_key(struct str path, struct str previous)
{
    struct str prefix = STR("/responses/"), id = STR("");

    path = skip_version(path);
    if (str_starts(path, prefix)) {
        ptrdiff_t slash;
        id = str_skip(path, prefix.n);
        if ((slash = str_find(id, STR("/"))) >= 0) id = str_take(id, (size_t)slash);
    } else if (str_is(path, "/responses")) {
        id = previous;
    }
    return id.n ? hash_id(id) : 0;
}

void stored_note(struct affinity *a, const char *path, const char *call, int worker)
{
    uint64_t key = hash_id(str_c(call));

    if (str_is(skip_version(str_c(path)), "/responses")) affinity_add(a, &key, 1, worker);
}

bool stored_is_work(struct str path)
{
    static const char *const below[] = { "/files", "/batches", "/jobs" };

    path = skip_version(path);
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        struct str p = str_c(below[i]);
        if (str_eq(path, p) || (str_starts(path, p) && path.p[p.n] == '/')) return true;
    }
    return false;
}

bool stored_can_be_durable(struct str path)
{
    path = skip_version(path);
    return str_ends(path, STR("/completions")) || str_is(path, "/responses") ||
           str_is(path, "/embeddings");
}

struct worker *stored_work_keeper(struct fleet *f)
{
    struct worker *best = NULL;

    for (int i = 0; i < fleet_n(f); i++) {
        struct worker *w = fleet_at(f, i);
        if (!w || w->state == WORKER_GONE || w->store == STORE_NONE) continue;
        if (!best || strcmp(w->url, best->url) < 0) best = w;
    }
    return best;
}

struct worker *stored_keeper(struct fleet *f, struct affinity *a, uint64_t key, const bool *tried)
{
    int match[FLEET_MAX];

    if (!key) return NULL;
    affinity_match(a, &key, 1, match, fleet_n(f));
    for (int i = 0; i < fleet_n(f); i++) {
        struct worker *w = fleet_at(f, i);
        if (w && match[i] && w->state == WORKER_READY && !tried[i]) return w;
    }
    return NULL;
}
