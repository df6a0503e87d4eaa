/* apart.h - the routed experts of layers whose rest lies on another device.
 *
 * The layer's device makes the inputs of its experts and chooses them; inputs, choices and weights go to
 * host memory, the experts run there on the threads of the CPU, and their sum goes back:
 *
 *     apart_send    queues the three copies, and starts the device on all that is queued
 *                   (work that does not need the experts can be queued and started here)
 *     apart_run     waits for the copies and runs the experts
 *     apart_return  queues the copy back
 *
 * Experts compute in host memory, so their device is the CPU. All memory is taken by apart_open: a step
 * allocates nothing. A failure is kept in `failed` until the step ends, because the calls of a step
 * return nothing. */
#ifndef TERN_MODEL_APART_H
#define TERN_MODEL_APART_H

#include "kernel/backend.h"

struct hparams;

struct apart {
    struct backend *be; /* of the experts; NULL: none lie apart */
    struct backend *of; /* of their layers */
    /* host memory, one block, page-locked where `of` has such */
    char *host;
    size_t host_bytes;
    float *x, *y;   /* [max_tokens][in] inputs, sums */
    float *weights; /* [max_tokens][n_used] */
    int32_t *ids;
    /* memory of be, one block */
    char *scratch;
    size_t scratch_bytes;
    float *xs, *hs, *us, *ys; /* see experts_opt */
    int32_t *order;
    /* the step */
    struct tensor tx, ty;
    struct experts_opt opt;
    int n_after; /* parts that were started since the copies to the host */
    struct err failed;
};

/* Bytes of memory on the experts' device for steps of that size, and of the host for the copies. */
uint64_t apart_scratch_bytes(const struct hparams *hp, int max_tokens);
uint64_t apart_host_bytes(const struct hparams *hp, int max_tokens);

/* a is zeroed. After a failure apart_close releases what there is. */
int apart_open(struct apart *a, struct backend *be, struct backend *of, const struct hparams *hp,
               int max_tokens, struct err *e);
void apart_close(struct apart *a); /* a zeroed one is allowed */

/* ids and weights [x->rows][n_used]: the choices, in memory of `of` as x is. */
void apart_send(struct apart *a, const struct tensor *x, const int32_t *ids, const float *weights,
                int n_used);
/* Starts what was queued since apart_send, to run beside the experts. */
void apart_start_more(struct apart *a);
/* o: of the layer; its scratch and `add` are not used. */
void apart_run(struct apart *a, const struct experts_opt *o);
/* out = the sum. */
void apart_return(struct apart *a, const struct tensor *out);
#endif
