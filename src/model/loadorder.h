/* loadorder.h - what the leader tells the other members to load, and what they answer.
 *
 * Both are structs as they lie in memory: all members are of the same build, which the order's first
 * fields show. Texts end with a zero byte inside their arrays. */
#ifndef TERN_MODEL_LOADORDER_H
#define TERN_MODEL_LOADORDER_H

#include "comm/gang.h"
#include "format/fingerprint.h"
#include "model/loadplan.h"

struct loadorder {
    uint32_t size;    /* of this struct */
    char version[28]; /* of the program */
    struct gang_shape shape;
    /* the model, as the leader sees it: a member whose files differ refuses */
    char path[4096];
    char arch[32];
    uint64_t n_params, file_bytes;
    struct fingerprint model;
    int32_t n_vocab, n_layers;
    /* sizes, as the leader has chosen them */
    int32_t n_ctx, kv_tokens, max_batch, max_seqs, max_out, kv_type;
    int32_t n_threads;
    uint8_t reference, allow_nan, no_prefix;
    char isa[16]; /* the set that the leader computes with: sets differ in their roundings, and
                     members that choose experts by other sums would add up different ones */
    char numa[16];
};

struct loadreply {
    int32_t code; /* OK, or an error and its text */
    char text[480];
    struct load_bytes bytes;
    double ms;
    int64_t pid;
    char host[64], device[96];
    int32_t first_layer, end_layer;
};

/* From the leader's plan. E_INVALID: a text is too long; E_IO. */
int loadorder_fill(struct loadorder *o, const struct loadplan *p, const struct gang_shape *shape,
                   struct err *e);
/* Who this process is and what it has loaded. */
void loadreply_introduce(struct loadreply *y, const struct loadplan *p);
/* The same as the leader keeps it; texts that do not end are cut. */
void loadreply_seat(const struct loadreply *y, int rank, struct gang_seat *out);
/* Checks bytes that came as an order. E_UNSUPPORTED: of another build or version; E_FORMAT. */
int loadorder_read(struct loadorder *o, const void *p, size_t n, struct err *e);
/* Options of the load as rank. */
struct load_opt loadorder_opt(const struct loadorder *o, int rank);
/* Is the model of these files the leader's? E_UNSUPPORTED says what differs. */
int loadorder_compare(const struct loadorder *o, const struct loadplan *p, struct err *e);
#endif
