/* place.h - which devices a model lies on: all of it on one, or its first layers on the CPU and the
 * last ones, with the head, on a GPU.
 *
 * A place owns the backends it opened; model, KV and decoder on them end before it does. */
#ifndef TERN_MODEL_PLACE_H
#define TERN_MODEL_PLACE_H

#include "base/buf.h"
#include "kernel/backend.h"
#include "model/model.h"

enum { PLACE_DEVICES = 2 };

struct place_opt {
    struct backend_opt backend;
    /* What has to fit beside the weights, when the layers on a GPU are to be as many as fit. */
    uint64_t kv_tokens;
    enum dtype kv_type;
    int max_tokens, max_out; /* of a step */
    int n_states;            /* slots of recurrent state */
};

struct place {
    struct backend_share shares[PLACE_DEVICES];
    int n_shares;
};

/* Opens the devices and the model on them. A GPU without room for a single layer, or for all of
 * them with vram_only, is E_NOMEM with the numbers. After a failure p holds nothing. */
int place_model(struct place *p, struct model **out, const struct place_opt *o,
                const struct source *src, struct err *e);
void place_release(struct place *p); /* a zeroed one is fine */

/* The one that makes logits. */
static inline struct backend *place_last(const struct place *p)
{
    return p->shares[p->n_shares - 1].be;
}
uint64_t place_used(const struct place *p, enum mem_kind kind);
/* "cuda:0 (NVIDIA H200)", or "cpu (avx2, 8 threads): 12 layers, cuda:0 (…): 20 layers". */
void place_describe(const struct place *p, struct buf *out);

/* How many of a model's last layers fit into `room` bytes: layer_bytes[l] each, `fixed` whatever
 * the number. */
int place_fit(const uint64_t *layer_bytes, int n_layers, uint64_t fixed, uint64_t room);
#endif
