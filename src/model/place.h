/* place.h - which devices a model lies on: all of it on one, or its first layers on the CPU and the
 * last ones, with the head, on a GPU; and of these, routed experts on the CPU.
 *
 * A place owns the backends it opened; everything that was allocated on them is closed before the
 * place is released. */
#ifndef TERN_MODEL_PLACE_H
#define TERN_MODEL_PLACE_H

#include "kernel/backend.h"
#include "model/expertplace.h"

struct hparams;
struct weight_list;
struct decoder_opt;

enum { PLACE_DEVICES = 2 };

/* What has to fit on the devices. */
struct place_need {
    const char *path; /* of the model, for messages */
    const struct hparams *hp;
    const struct weight_list *weights;
    const struct decoder_opt *dec; /* KV cache, recurrent state and scratch */
    uint64_t most;                 /* bytes of the GPU that the model may take; 0: what is free */
};

struct place {
    struct backend_share shares[PLACE_DEVICES]; /* the first may have experts only, and no layers */
    int n_shares;
    struct expert_place experts; /* its be is that of the first share; borrows the layers */
    uint64_t lack; /* bytes that the GPU has not for all layers, which place_fit_gpu looked for */
};

/* Everything on one device, whatever its room. After a failure p is empty. */
int place_open_one(struct place *p, const struct backend_opt *opt, int n_layers, struct err *e);
/* The same, but with gpu_layers only the last so many layers lie on the GPU. apart: of expert_place_find,
 * in memory that outlives p. */
int place_open(struct place *p, const struct backend_opt *opt, int n_layers, const bool *apart,
               struct err *e);
/* Without gpu_layers: leaves as many of the last layers on the GPU as fit; the others go to the CPU.
 * A GPU without room for a single layer, or for all of them with vram_only, is E_DEVICE_MEMORY with
 * the numbers. */
int place_fit_gpu(struct place *p, const struct backend_opt *opt, const struct place_need *need,
                  struct err *e);
/* Bytes of weights on a GPU that all layers lie on, as place_fit_gpu counts them. */
uint64_t place_gpu_weights(const struct hparams *hp, const struct weight_list *weights,
                           const struct expert_place *x);
/* Shares of layers: those without the first, if that has experts only. */
static inline const struct backend_share *place_layers(const struct place *p, int *n)
{
    int skip = p->n_shares > 1 && p->shares[0].n_layers == 0;

    *n = p->n_shares - skip;
    return p->shares + skip;
}
/* The model has another number of layers than the place was opened for: they lie as place_open puts
 * them. Not with experts of their own place. */
void place_set_layers(struct place *p, const struct backend_opt *opt, int n_layers);
void place_release(struct place *p); /* a zeroed one is allowed */

/* The device that makes logits. */
static inline struct backend *place_last(const struct place *p)
{
    return p->shares[p->n_shares - 1].be;
}

/* The calling thread runs the model from now on. */
static inline void place_drive(const struct place *p)
{
    for (int i = 0; i < p->n_shares; i++)
        if (p->shares[i].be->drive) p->shares[i].be->drive(p->shares[i].be);
}

/* E_INVALID: vram_only, but not all layers are wanted on a GPU. */
int place_check_vram_only(const struct backend_opt *b, int n_layers, struct err *e);
bool place_is_gpu(const struct backend_opt *b);

/* How many of a model's last layers fit into `room` bytes: layer l takes layer_bytes[l], and
 * `fixed` bytes are needed whatever the number. */
int place_fit(const uint64_t *layer_bytes, int n_layers, uint64_t fixed, uint64_t room);
#endif
