#include "model/model.h"

#include "base/mem.h"
#include "model/pass.h"
#include "model/onnxpass.h"
#include "model/weights.h"

static void make_kvshape(struct model *m)
{
    m->kv = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *m->kv);
    m->state = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *m->state);
    for (int l = 0; l < m->hp.n_layers; l++) {
        m->kv[l] = mix_kvshape(&m->hp, l);
        m->state[l] = mix_stateshape(&m->hp, l);
    }
}

static int share_out(struct model *m, const struct backend_share *shares, int n, struct err *e)
{
    int at = 0;

    for (int i = 0; i < n && i < MODEL_PARTS; i++) {
        m->parts[i] =
            (struct part){ .be = shares[i].be, .first = at, .end = at + shares[i].n_layers };
        at += shares[i].n_layers;
        if (shares[i].n_layers < 1) at = -1 - m->hp.n_layers;
    }
    m->n_parts = n;
    if (n >= 1 && n <= MODEL_PARTS && at == m->hp.n_layers) return OK;
    m->n_parts = 0;
    return err_set(e, E_INVALID, "%d devices do not share out %d layers", n, m->hp.n_layers);
}

static int open_graph(struct model *m, const struct source *src, struct err *e)
{
    int rc = onnxpass_open(&m->onnx, src, m->parts[0].be, e);

    if (rc != OK) return rc;
    m->weight_bytes = m->onnx->file->weight_bytes;
    m->n_params = m->onnx->file->n_params;
    return OK;
}

/* shares NULL: all of it on be. */
static int open_model(struct model **out, const struct source *src, struct backend *be,
                      const struct backend_share *shares, int n_shares, struct err *e)
{
    struct model *m = mem_new(struct model);
    struct backend_share whole;
    int rc;

    if ((rc = hparams_read(&m->hp, &m->arena, src, e)) != OK) goto out;
    whole = (struct backend_share){ be, m->hp.n_layers };
    if ((rc = share_out(m, shares ? shares : &whole, shares ? n_shares : 1, e)) != OK) goto out;
    if (m->hp.card) {
        m->layers = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *m->layers);
        make_kvshape(m);
        if ((rc = open_graph(m, src, e)) == OK) *out = m, m = NULL;
        goto out;
    }
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = blocks_check(&m->hp, m->parts[i].be, e)) != OK ||
            (rc = mix_check(&m->hp, m->parts[i].be, m->parts[i].first, m->parts[i].end, e)) != OK)
            goto out;
    m->layers = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *m->layers);
    make_kvshape(m);
    if ((rc = weights_load(m, src, e)) != OK) goto out;
    *out = m;
    m = NULL;
out:
    model_close(m);
    return rc;
}

int model_open(struct model **out, const struct source *src, struct backend *be, struct err *e)
{
    return open_model(out, src, be, NULL, 1, e);
}

int model_open_over(struct model **out, const struct source *src,
                    const struct backend_share *shares, int n_shares, struct err *e)
{
    return open_model(out, src, NULL, shares, n_shares, e);
}

struct part *model_part(struct model *m, int l)
{
    int i = 0;
    while (i < m->n_parts - 1 && l >= m->parts[i].end) i++;
    return &m->parts[i];
}

void model_close(struct model *m)
{
    if (!m) return;
    onnxpass_close(m->onnx);
    weights_drop(m);
    arena_release(&m->arena);
    mem_free(m);
}

const struct kvshape *model_kvshape(const struct model *m) { return m->kv; }
const struct stateshape *model_stateshape(const struct model *m) { return m->state; }
bool model_has_state(const struct model *m) { return state_bytes(m->state, m->hp.n_layers) > 0; }
bool model_can_share_prefix(const struct model *m) { return !m->hp.encoder; }
