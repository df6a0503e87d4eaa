/* stepplan.c - orders and steps as bytes: a head of ten integers, then the arrays. */
#include "model/stepplan.h"

#include "model/runner.h"

#include <string.h>

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    const unsigned char *c = p;
    uint64_t v;

    for (; n >= sizeof v; c += sizeof v, n -= sizeof v) {
        memcpy(&v, c, sizeof v);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; n; n--) h = (h ^ *c++) * 0x100000001b3u;
    return h;
}

uint64_t order_hash(const struct order *o, const void *body)
{
    return hash_bytes(hash_bytes(0xcbf29ce484222325u, o, offsetof(struct order, hash)), body,
                      o->bytes);
}

int order_check(const struct order *o, uint64_t number, struct err *e)
{
    if (o->magic != ORDER_MAGIC || o->kind == 0 || o->kind >= ORDER_KINDS)
        return err_set(e, E_FORMAT, "what came is no order of a leader (%08x, kind %u)", o->magic,
                       o->kind);
    if (o->number != number)
        return err_set(e, E_FORMAT, "order %llu came, expected %llu: the members are not in step",
                       (unsigned long long)o->number, (unsigned long long)number);
    if (o->bytes > ORDER_BODY_MAX)
        return err_set(e, E_FORMAT, "order %llu has %llu bytes: more than any order",
                       (unsigned long long)number, (unsigned long long)o->bytes);
    return OK;
}

int order_check_body(const struct order *o, const void *body, struct err *e)
{
    if (order_hash(o, body) == o->hash) return OK;
    return err_set(e, E_FORMAT, "order %llu is not what the leader sent: its hash differs",
                   (unsigned long long)o->number);
}

/* ---- steps ---- */

enum { HAS_SLOTS = 1, HAS_LENGTHS = 2, HAS_SECOND = 4 };
enum { F_TOKENS, F_SEQS, F_STRIDE, F_OUT, F_HIDDEN, F_FLAGS, F_MICRO, F_FIELDS };

size_t stepplan_bytes(const struct runner_limits *lim)
{
    size_t t = (size_t)lim->max_tokens, s = (size_t)lim->max_seqs;

    return sizeof(int32_t) *
           (F_FIELDS + 4 * t + s * (size_t)lim->max_table + 3 * s + (size_t)lim->max_out);
}

static int32_t *put(int32_t *to, const int32_t *from, size_t n)
{
    if (n) memcpy(to, from, n * sizeof *to);
    return to + n;
}

/* Blocks that the batch reads: of each row of the table as many as its longest sequence has. */
static int used_stride(const struct batch *b)
{
    int n = 1;

    for (int t = 0; t < b->n_tokens; t++)
        if (b->pos[t] / KV_BLOCK + 1 > n) n = b->pos[t] / KV_BLOCK + 1;
    return n < b->table_stride ? n : b->table_stride;
}

size_t stepplan_write(void *out, const struct batch *b, int micro)
{
    int32_t *head = out, *p = head + F_FIELDS;
    size_t t = (size_t)b->n_tokens, s = (size_t)b->n_seqs;
    int stride = used_stride(b);

    head[F_TOKENS] = b->n_tokens;
    head[F_SEQS] = b->n_seqs;
    head[F_STRIDE] = stride;
    head[F_OUT] = b->n_out;
    head[F_HIDDEN] = b->n_hidden;
    head[F_FLAGS] =
        (b->slots ? HAS_SLOTS : 0) | (b->seq_len ? HAS_LENGTHS : 0) | (b->second ? HAS_SECOND : 0);
    head[F_MICRO] = micro;
    p = put(p, b->ids, t);
    p = put(p, b->pos, t);
    p = put(p, b->seq, t);
    for (int i = 0; i < b->n_seqs; i++)
        p = put(p, b->table + (size_t)i * (size_t)b->table_stride, (size_t)stride);
    p = put(p, b->out_rows, (size_t)b->n_out);
    p = put(p, b->hidden_rows, (size_t)b->n_hidden);
    if (b->slots) p = put(p, b->slots, s);
    if (b->seq_len) p = put(p, b->seq_len, s);
    if (b->second) p = put(p, b->second, s);
    return (size_t)(p - head) * sizeof *p;
}

/* The next n integers; NULL: there are not so many. */
static const int32_t *take(const int32_t **at, size_t *left, size_t n)
{
    const int32_t *p = *at;

    if (n > *left) return NULL;
    *at += n;
    *left -= n;
    return p;
}

static bool in_range(const int32_t *head)
{
    const int32_t most = 1 << 24;

    return head[F_TOKENS] >= 1 && head[F_TOKENS] <= most && head[F_SEQS] >= 1 &&
           head[F_SEQS] <= most && head[F_STRIDE] >= 1 && head[F_STRIDE] <= most &&
           head[F_OUT] >= 0 && head[F_OUT] <= most && head[F_HIDDEN] >= 0 &&
           head[F_HIDDEN] <= head[F_TOKENS] && head[F_MICRO] >= 1 && head[F_FLAGS] >= 0 &&
           head[F_FLAGS] < 8;
}

int stepplan_read(struct stepplan *out, const void *data, size_t n, struct err *e)
{
    const int32_t *at = data, *head;
    size_t left = n / sizeof *at, tokens, seqs;
    struct batch b = { 0 };
    bool good;

    if (n % sizeof *at || !(head = take(&at, &left, F_FIELDS)) || !in_range(head))
        return err_set(e, E_FORMAT, "a step of %zu bytes has no head that could be one", n);
    tokens = (size_t)head[F_TOKENS], seqs = (size_t)head[F_SEQS];
    b.n_tokens = head[F_TOKENS];
    b.n_seqs = head[F_SEQS];
    b.table_stride = head[F_STRIDE];
    b.n_out = head[F_OUT];
    b.n_hidden = head[F_HIDDEN];
    good = (b.ids = take(&at, &left, tokens)) && (b.pos = take(&at, &left, tokens)) &&
           (b.seq = take(&at, &left, tokens)) &&
           (b.table = take(&at, &left, seqs * (size_t)b.table_stride)) &&
           (b.out_rows = take(&at, &left, (size_t)b.n_out)) &&
           (b.hidden_rows = take(&at, &left, (size_t)b.n_hidden));
    if (good && head[F_FLAGS] & HAS_SLOTS) good = (b.slots = take(&at, &left, seqs));
    if (good && head[F_FLAGS] & HAS_LENGTHS) good = (b.seq_len = take(&at, &left, seqs));
    if (good && head[F_FLAGS] & HAS_SECOND) good = (b.second = take(&at, &left, seqs));
    if (!good || left)
        return err_set(e, E_FORMAT,
                       "a step of %d tokens of %d sequences with %d blocks each does not have %zu "
                       "bytes",
                       b.n_tokens, b.n_seqs, b.table_stride, n);
    *out = (struct stepplan){ .b = b, .micro = head[F_MICRO] };
    return OK;
}
