#include "base/ids.h"

#include "base/mem.h"

#include <string.h>

bool ids_reserve(struct ids *v, size_t more)
{
    size_t need;

    if (v->failed || !mem_add(v->n, more, &need)) return !(v->failed = true);
    if (need <= v->cap) return true;
    if (need < 64) need = 64;
    return !(v->failed = !mem_ensure(v->p, v->cap, need));
}

void ids_push(struct ids *v, int32_t id)
{
    if (v->n == v->cap && !ids_reserve(v, 1)) return;
    v->p[v->n++] = id;
}

void ids_add(struct ids *v, const int32_t *ids, size_t n)
{
    if (n == 0 || !ids_reserve(v, n)) return;
    memcpy(v->p + v->n, ids, n * sizeof *ids);
    v->n += n;
}

int ids_check(const struct ids *v, struct err *e)
{
    return v->failed ? err_nomem(e, "token ids") : OK;
}

void ids_release(struct ids *v)
{
    mem_free(v->p);
    *v = (struct ids){ 0 };
}
