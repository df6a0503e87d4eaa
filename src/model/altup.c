/* altup.c - several residual streams of which a layer computes one (AltUp, Baykal et al.), and the
 * low-rank residual beside attention (LAuReL, Menghani et al.): gemma 3n.
 *
 * S are the streams of a token, E elements each. Before a layer every stream is predicted from all
 * of them; the layer works on the active one; afterwards the difference between its result and the
 * prediction corrects all streams. Coefficients depend on the token, by a small router. */
#include "model/altup.h"

#include <math.h>

#define RMS_EPS 1e-5f /* least mean square of a stream, fixed in the reference library */

void altup_plan(struct scratch *s, const struct model *m, int n)
{
    const struct hparams *hp = &m->hp;
    struct altup_step *y = &s->altup;
    int k = hp->altup.n, wide = hp->n_embd;

    if (!k) return;
    y->s = tensor_f32(s->altup_s, n, k * wide);
    y->p = tensor_f32(s->altup_p, n, k * wide);
    y->modal = tensor_f32(s->altup_modal, n, k);
    y->coefs = tensor_f32(s->altup_coefs, n, k * k);
    y->correct = tensor_f32(s->altup_coefs, n, k);
    y->low = tensor_f32(s->altup_low, n, hp->altup.rank);
    y->laurel = tensor_f32(s->altup_laurel, n, wide);
    y->x = tensor_f32(s->x, n, wide);
    y->t = tensor_f32(s->t, n, wide);
    for (int i = 0; i < k; i++) {
        y->si[i] = tensor_cols(y->s, i * wide, wide);
        y->pi[i] = tensor_cols(y->p, i * wide, wide);
    }
    for (int i = 1; i < k; i++) {
        y->in[i] = (struct linear){ .out = y->si[i], .w = &m->altup_in[i - 1] };
        y->out[i] = (struct linear){ .out = y->t, .w = &m->altup_out[i - 1] };
    }
    for (int l = s->part->first; l < s->part->end; l++) {
        const struct layer *w = &m->layers[l];
        struct altup_layer *a = &s->steps[l].altup;
        a->route =
            (struct linear){ .out = y->modal, .w = &w->altup_router, .scale = 1 / (float)wide };
        a->predict = (struct linear){ .out = y->coefs, .w = &w->altup_predict };
        a->correct = (struct linear){ .out = y->correct, .w = &w->altup_correct };
        a->left = (struct linear){ .out = y->low, .w = &w->laurel_left };
        a->right = (struct linear){ .out = y->laurel, .w = &w->laurel_right };
        /* One row for all tokens. */
        a->scale = (struct tensor){ DT_F32, n, wide, 0, w->altup_scale };
    }
}

static void copy_rows(struct backend *be, const struct tensor *to, const struct tensor *from)
{
    be->act(be, to, from, NULL, ACT_NONE);
}

/* The first stream is the embedding; the others are projections of it, of the same size. */
void altup_begin(struct pass *d)
{
    struct backend *be = d->be;
    struct altup_step *y = &d->s.altup;

    copy_rows(be, &y->si[0], &y->x);
    for (int i = 1; i < d->m->hp.altup.n; i++) {
        be->linear(be, &y->x, &y->in[i], 1);
        be->match_rms(be, &y->si[i], &y->x, RMS_EPS);
    }
}

/* modal = tanh(W norm(x) / E) */
static void queue_router(struct pass *d, int l, const struct tensor *x)
{
    struct backend *be = d->be;
    struct layer_step *p = &d->s.steps[l];

    be->rmsnorm(be, &p->h, x, d->m->layers[l].altup_norm, d->m->hp.norm_eps);
    be->linear(be, &p->h, &p->altup.route, 1);
    be->softcap(be, &d->s.altup.modal, 1);
}

void altup_predict(struct pass *d, int l)
{
    struct backend *be = d->be;
    struct altup_step *y = &d->s.altup;
    int active = d->m->hp.altup.active;

    queue_router(d, l, &y->si[active]);
    be->linear(be, &y->modal, &d->s.steps[l].altup.predict, 1);
    be->mix_streams(be, &y->p, &y->s, &y->coefs, d->m->hp.altup.n);
    copy_rows(be, &y->x, &y->pi[active]);
}

/* laurel = h + norm(right(left h)), h the layer's normalized input. */
void altup_laurel(struct pass *d, int l, const struct tensor *h)
{
    struct backend *be = d->be;
    struct altup_step *y = &d->s.altup;

    be->linear(be, h, &d->s.steps[l].altup.left, 1);
    be->linear(be, &y->low, &d->s.steps[l].altup.right, 1);
    be->rmsnorm(be, &y->laurel, &y->laurel, d->m->layers[l].laurel_norm, d->m->hp.norm_eps);
    be->add(be, &y->laurel, h, 1);
}

void altup_join(struct pass *d)
{
    d->be->add(d->be, &d->s.altup.x, &d->s.altup.laurel, 1);
    d->be->scale(d->be, &d->s.altup.x, sqrtf(0.5f));
}

void altup_correct(struct pass *d, int l)
{
    struct backend *be = d->be;
    struct altup_step *y = &d->s.altup;
    struct layer_step *p = &d->s.steps[l];
    int active = d->m->hp.altup.active;

    queue_router(d, l, &y->x);
    be->linear(be, &y->modal, &p->altup.correct, 1);
    be->add(be, &y->x, &y->pi[active], -1);
    copy_rows(be, &y->s, &y->p);
    for (int i = 0; i < d->m->hp.altup.n; i++)
        be->add_weighted(be, &y->si[i], &y->x, &y->correct, i, 1);
    /* The gate of the layer's own input. */
    if (d->m->hp.altup.scaled) be->act(be, &y->x, &y->si[active], &p->altup.scale, ACT_NONE);
    else copy_rows(be, &y->x, &y->si[active]);
}

void altup_add(struct pass *d, const struct tensor *y)
{
    for (int i = 1; i < d->m->hp.altup.n; i++) d->be->add(d->be, &d->s.altup.si[i], y, 1);
}

/* x = the mean of the streams, projected back. */
const struct tensor *altup_end(struct pass *d)
{
    struct backend *be = d->be;
    struct altup_step *y = &d->s.altup;
    int n = d->m->hp.altup.n;

    copy_rows(be, &y->x, &y->si[0]);
    for (int i = 1; i < n; i++) {
        be->linear(be, &y->si[i], &y->out[i], 1);
        be->match_rms(be, &y->t, &y->si[0], RMS_EPS);
        be->add(be, &y->x, &y->t, 1);
    }
    be->scale(be, &y->x, 1 / (float)n);
    return &y->x;
}
