/* stepplan.h - orders of the leader to the other members of a gang, as bytes.
 *
 * The leader alone decides: what a step computes, which blocks and slots it uses, when state is copied,
 * when the gang ends. An order has a number, one more than that of the one before, and a hash of
 * its bytes; a member that gets another number, or bytes that do not fit, ends the gang with the
 * reason instead of computing something else than the others. docs/protocol.md has the layout. */
#ifndef TERN_MODEL_STEPPLAN_H
#define TERN_MODEL_STEPPLAN_H

#include "base/err.h"
#include "model/batch.h"

#include <stddef.h>
#include <stdint.h>

#define ORDER_MAGIC 0x31504754u /* "TGP1" */

/* ORDER_CARD comes first, then ORDER_LOAD, and with several members of a stage ORDER_GROUP. */
enum order_kind {
    ORDER_LOAD = 1,
    ORDER_STEP,
    ORDER_COPY,
    ORDER_END,
    ORDER_CARD,  /* say what you are (gangcard.h) */
    ORDER_GROUP, /* agree with the members of your stage on how sums travel (devgroup.h) */
    ORDER_KINDS
};

struct order {
    uint32_t magic;
    uint32_t kind;
    uint64_t number;
    uint64_t bytes; /* of the body behind it */
    uint64_t hash;  /* of the fields above and the body */
};

enum { ORDER_BODY_MAX = 1 << 28 };

uint64_t order_hash(const struct order *o, const void *body);
/* E_FORMAT: not an order, another number than expected, or too long. */
int order_check(const struct order *o, uint64_t number, struct err *e);
/* E_FORMAT: the body is not the one that was sent. */
int order_check_body(const struct order *o, const void *body, struct err *e);

/* The body of a step: a batch, and how many tokens pass from stage to stage at a time. */
struct stepplan {
    struct batch b; /* arrays in the bytes it was read from; results are not part of it */
    int micro;
};

/* Largest body of a step with these limits. */
size_t stepplan_bytes(const struct runner_limits *lim);
/* Writes at most that many bytes; returns their number. */
size_t stepplan_write(void *out, const struct batch *b, int micro);
/* p: aligned to 4 bytes. Every count is checked against the bytes that are there; whether the batch fits
 * a runner is runner_start's to say. */
int stepplan_read(struct stepplan *out, const void *p, size_t n, struct err *e);
#endif
