/* slots.c - a stack of free ids, and a flag per id that catches a slot given back twice. */
#include "kv/slots.h"

#include "base/mem.h"

#include <assert.h>

int slots_init(struct slots *s, int n, struct err *e)
{
    *s = (struct slots){ 0 };
    if (n <= 0) return OK;
    s->free = mem_array((size_t)n, sizeof *s->free);
    s->taken = mem_array((size_t)n, sizeof *s->taken);
    if (!s->free || !s->taken) {
        slots_release(s);
        return err_nomem(e, "the slots of recurrent state");
    }
    s->n = s->n_free = n;
    for (int i = 0; i < n; i++) s->free[i] = n - 1 - i;
    return OK;
}

void slots_release(struct slots *s)
{
    mem_free(s->free);
    mem_free(s->taken);
    *s = (struct slots){ 0 };
}

int slots_get(struct slots *s)
{
    int slot;

    if (s->n_free == 0) return -1;
    slot = s->free[--s->n_free];
    assert(!s->taken[slot]);
    s->taken[slot] = true;
    return slot;
}

void slots_put(struct slots *s, int slot)
{
    if (slot < 0) return;
    assert(slot < s->n && s->taken[slot]);
    s->taken[slot] = false;
    s->free[s->n_free++] = slot;
}
