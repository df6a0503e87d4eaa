/* expertplace.h - which layers have their routed experts on another device than the rest.
 *
 * Routed experts are most of a mixture's weights, and a token reads few of them: on the CPU they take no
 * memory of the GPU and cost less time than layers of the same size would. Everything else of
 * such a layer (attention, router, shared experts, norms, KV cache) stays on the GPU. apart.h runs
 * them.
 *
 * Three options say which (struct backend_opt), the first that names a layer's experts decides:
 *
 *   place      "PATTERN=DEVICE,...": experts whose tensor name the pattern matches lie on DEVICE, "cpu"
 *              or the model's own. A regular expression, found anywhere in the name as the file has it,
 *              or in "blk.LAYER.ffn_gate_exps.weight" (up, down; bias). The experts of a layer go
 *              together: one match places all of them. Only experts can be placed.
 *   n_cpu_moe  those of the first so many layers lie on the CPU
 *   cpu_moe    those of all layers */
#ifndef TERN_MODEL_EXPERTPLACE_H
#define TERN_MODEL_EXPERTPLACE_H

#include "base/arena.h"
#include "kernel/backend.h"

struct hparams;
struct weight_list;

struct expert_place {
    struct backend *be; /* NULL: all experts lie with their layers */
    const bool *layers; /* [n_layers] those whose experts lie on be */
};

/* Is any of the three options given? */
bool expert_place_is_given(const struct backend_opt *o);
/* What can be said without a model: E_INVALID names the option, and what is wrong with it. */
int expert_place_check(const struct backend_opt *o, struct err *e);
/* *out: [n_layers] whose experts are to lie on the CPU, in a; NULL: none, or the device is the CPU.
 * E_INVALID: a model without experts, more layers than it has, a pattern that matches no tensor or one
 * that cannot be placed; with place_loose the first three are told in the log only. */
int expert_place_find(const bool **out, struct arena *a, const struct hparams *hp,
                      const struct weight_list *weights, const struct backend_opt *o,
                      struct err *e);

/* Do the experts of layer l lie elsewhere, if the layer is on be? */
static inline bool experts_lie_apart(const struct expert_place *x, const struct backend *be, int l)
{
    return x->be && x->be != be && x->layers[l];
}

/* Which of the layers [first, end), on be, have their experts with them, and which apart. */
enum { EXPERTS_HERE = 1, EXPERTS_APART = 2 };
unsigned expert_place_kinds(const struct expert_place *x, const struct hparams *hp,
                            const struct backend *be, int first, int end);
#endif
