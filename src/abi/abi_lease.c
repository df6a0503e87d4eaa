/* abi_lease.c - the engine of a model for the time of a call or a request. */
#include "abi/abi_impl.h"

#include "engine/engine.h"
#include "pool/pool.h"

int lease_take(struct lease *l, struct tern_model *m, uint64_t deadline_ns, struct err *e)
{
    int rc;

    *l = (struct lease){ .engine = m->engine, .prompter = m->prompter };
    if (!m->rt) return OK;
    if ((rc = abi_runtime_acquire(m, deadline_ns, &l->hold, e)) != OK) return rc;
    l->engine = l->hold->engine;
    l->prompter = l->hold->prompter;
    return OK;
}

/* The end of a use counts for keep_alive_ms. */
void lease_end(struct lease *l)
{
    if (l->hold) pool_touch(l->hold, POOL_KEEP_SAME);
    pool_release(l->hold);
    *l = (struct lease){ 0 };
}

const struct tokenizer *lease_tokenizer(const struct lease *l, const struct tern_model *m,
                                        struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(l->engine);

    if (!t)
        err_set(e, E_UNSUPPORTED, "%s has no tokenizer: only token ids can be submitted",
                m->facts.info.name);
    return t;
}
