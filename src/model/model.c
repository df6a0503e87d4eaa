#include "model/model.h"

#include "base/mem.h"
#include "model/weights.h"

static void make_kvshape(struct model *m)
{
    m->kv = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *m->kv);
    for (int l = 0; l < m->hp.n_layers; l++) {
        const struct layer_hp *w = &m->hp.layers[l];
        m->kv[l] = (struct kvshape){ w->n_kv_heads, w->head_dim, w->head_dim_v };
    }
}

int model_open(struct model **out, const struct source *src, struct backend *be, struct err *e)
{
    struct model *m = mem_new(struct model);
    int rc;

    m->be = be;
    if ((rc = hparams_read(&m->hp, &m->arena, src, e)) != OK) goto out;
    m->layers = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *m->layers);
    make_kvshape(m);
    if ((rc = weights_load(m, src, e)) != OK) goto out;
    *out = m;
    m = NULL;
out:
    model_close(m);
    return rc;
}

void model_close(struct model *m)
{
    if (!m) return;
    weights_drop(m);
    arena_release(&m->arena);
    mem_free(m);
}

const struct kvshape *model_kvshape(const struct model *m) { return m->kv; }
