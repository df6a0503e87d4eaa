/* model.c - a model from its input: parts on devices, layers, weights. */
#include "model/model.h"

#include "base/mem.h"
#include "model/pass.h"
#include "model/weightlist.h"
#include "model/weights.h"

/* Empty layers and the shapes of what they keep per token and per sequence. */
static int make_layers(struct model *m, struct err *e)
{
    size_t n = (size_t)m->hp.n_layers;

    m->layers = arena_array(&m->arena, n, sizeof *m->layers);
    m->kv = arena_array(&m->arena, n, sizeof *m->kv);
    m->state = arena_array(&m->arena, n, sizeof *m->state);
    if (!m->layers || !m->kv || !m->state) return err_nomem(e, "the model's layers");
    for (int l = 0; l < m->hp.n_layers; l++) {
        m->kv[l] = mix_kvshape(&m->hp, l);
        m->state[l] = mix_stateshape(&m->hp, l);
    }
    return OK;
}

/* Every share has at least one layer, and together they have all. */
static int make_parts(struct model *m, const struct backend_share *shares, int n, struct err *e)
{
    int at = 0;

    for (int i = 0; i < n && i < MODEL_PARTS; i++) {
        if (shares[i].n_layers < 1) goto fail;
        m->parts[i] =
            (struct part){ .be = shares[i].be, .first = at, .end = at + shares[i].n_layers };
        at += shares[i].n_layers;
    }
    if (n < 1 || n > MODEL_PARTS || at != m->hp.n_layers) goto fail;
    m->n_parts = n;
    return OK;
fail:
    return err_set(e, E_INVALID, "%d devices with %d layers, but the model has %d layers", n, at,
                   m->hp.n_layers);
}

/* Experts of layers that lie on the same device anyway are not apart. */
static int place_experts(struct model *m, const struct expert_place *x, struct err *e)
{
    bool *apart = arena_array(&m->arena, (size_t)m->hp.n_layers, sizeof *apart);

    if (!apart) return err_nomem(e, "the places of experts");
    m->apart = apart;
    for (int l = 0; l < m->hp.n_layers; l++) {
        apart[l] = m->hp.layers[l].moe && experts_lie_apart(x, model_part(m, l)->be, l);
        if (apart[l]) m->experts.be = x->be;
    }
    if (!m->experts.be) return OK;
    if (!backend_is_host(m->experts.be))
        return err_set(e, E_UNSUPPORTED,
                       "experts apart from their layers run on the CPU, not on %s",
                       m->experts.be->name);
    return pass_check(&m->hp, m->experts.be, e);
}

/* Every device has the operations that its layers need. */
static int check_devices(const struct model *m, struct err *e)
{
    int rc = OK;

    if (m->n_parts > 1 && hparams_is_joined(&m->hp))
        return err_set(e, E_UNSUPPORTED,
                       "the layers of this %s model depend on each other: they cannot be divided "
                       "between devices",
                       m->hp.arch);
    for (int i = 0; i < m->n_parts && rc == OK; i++) {
        const struct part *p = &m->parts[i];
        rc = pass_check(&m->hp, p->be, e);
        if (rc == OK) rc = mix_check(&m->hp, p->be, p->first, p->end, e);
    }
    return rc;
}

int model_open(struct model **out, const struct model_input *in, struct err *e)
{
    struct model *m = mem_new(struct model);
    int rc;

    if (!m) return err_nomem(e, "the model");
    m->hp = *in->hp;
    m->weight_bytes = in->weights->file_bytes;
    if ((rc = make_parts(m, in->shares, in->n_shares, e)) != OK) goto out;
    if ((rc = check_devices(m, e)) != OK) goto out;
    if ((rc = place_experts(m, &in->experts, e)) != OK) goto out;
    if ((rc = make_layers(m, e)) != OK) goto out;
    if ((rc = weights_load(m, in, e)) != OK) goto out;
    *out = m;
    m = NULL;
out:
    model_close(m);
    return rc;
}

/* There are at most a few parts: a linear search. */
struct part *model_part(struct model *m, int l)
{
    int i = 0;

    while (i < m->n_parts - 1 && l >= m->parts[i].end) i++;
    return &m->parts[i];
}

struct part *model_experts(struct model *m, int l)
{
    return m->apart && m->apart[l] ? &m->experts : model_part(m, l);
}

void model_close(struct model *m)
{
    if (!m) return;
    weights_drop(m);
    arena_release(&m->arena);
    mem_free(m);
}

bool model_has_state(const struct model *m) { return state_bytes(m->state, m->hp.n_layers) > 0; }
