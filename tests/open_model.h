/* open_model.h - for tests: opens a model straight from its source, without a load plan. */
#ifndef TERN_TESTS_OPEN_MODEL_H
#define TERN_TESTS_OPEN_MODEL_H

#include "model/weights.h"

/* Hyper-parameters and the tensor list are allocated in a, which the caller releases after the
 * model. in has the rest. */
static inline int open_model_input(struct model **out, struct arena *a, struct model_input in,
                                   struct err *e)
{
    struct hparams *hp = arena_new(a, struct hparams);
    struct weight_list *list = arena_new(a, struct weight_list);
    int rc = hparams_read(hp, a, in.source, e);

    in.hp = hp;
    in.weights = list;
    if (rc == OK) rc = weights_find(list, a, hp, in.source, e);
    return rc == OK ? model_open(out, &in, e) : rc;
}

static inline int open_model_with(struct model **out, struct arena *a, const struct source *src,
                                  const struct backend_share *shares, int n, bool allow_nan,
                                  struct err *e)
{
    struct model_input in = {
        .source = src, .shares = shares, .n_shares = n, .allow_nan = allow_nan
    };

    return open_model_input(out, a, in, e);
}

/* Routed experts of all layers that are not on `experts` anyway lie there; NULL: with their layers. */
static inline int open_model_apart(struct model **out, struct arena *a, const struct source *src,
                                   const struct backend_share *shares, int n,
                                   struct backend *experts, struct err *e)
{
    struct model_input in = { .source = src, .shares = shares, .n_shares = n };
    int n_layers = 0;
    bool *all;

    for (int i = 0; i < n; i++) n_layers += shares[i].n_layers;
    if (!(all = arena_array(a, (size_t)n_layers, sizeof *all))) return err_nomem(e, "a test");
    for (int l = 0; l < n_layers; l++) all[l] = true;
    in.experts = (struct expert_place){ experts, all };
    return open_model_input(out, a, in, e);
}

static inline int open_model_over(struct model **out, struct arena *a, const struct source *src,
                                  const struct backend_share *shares, int n, struct err *e)
{
    return open_model_with(out, a, src, shares, n, false, e);
}

static inline int open_model_allowing(struct model **out, struct arena *a, const struct source *src,
                                      struct backend *be, bool allow_nan, struct err *e)
{
    struct hparams *hp = arena_new(a, struct hparams);
    struct backend_share all = { .be = be };
    int rc = hparams_read(hp, a, src, e);

    if (rc != OK) return rc;
    all.n_layers = hp->n_layers;
    return open_model_with(out, a, src, &all, 1, allow_nan, e);
}

static inline int open_model(struct model **out, struct arena *a, const struct source *src,
                             struct backend *be, struct err *e)
{
    return open_model_allowing(out, a, src, be, false, e);
}
#endif
