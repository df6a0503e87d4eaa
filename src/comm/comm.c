/* comm.c - collective operations above a link's moves.
 *
 * Small sums are exchanged whole: every member sends its numbers to every other and adds all of
 * them itself, one trip. Large ones are divided: member r adds part r and sends the result to the
 * others, two trips of 1/size of the bytes each. */
#include "comm/comm.h"

#include "base/clock.h"
#include "base/mem.h"
#include "comm/wire.h"

#include <string.h>

enum { WHOLE_BYTES = 64 << 10 }; /* of a sum of more than two members: more is divided */

int comm_open_group(struct comm *c, struct comm_link *link, int first, int step, int n,
                    uint64_t timeout_ns, struct err *e)
{
    *c = (struct comm){ .link = link, .rank = -1, .size = n, .timeout_ns = timeout_ns };
    if (n < 1 || n > COMM_MAX || first < 0 || step < 1 || first + (n - 1) * step >= link->size)
        return err_set(e, E_INVALID, "a group of %d members from %d in steps of %d of %d", n, first,
                       step, link->size);
    for (int i = 0; i < n; i++) {
        c->peers[i] = first + i * step;
        if (c->peers[i] == link->rank) c->rank = i;
    }
    return c->rank >= 0 ? OK : err_set(e, E_INVALID, "member %d is not of its group", link->rank);
}

int comm_open(struct comm *c, struct comm_link *link, uint64_t timeout_ns, struct err *e)
{
    return comm_open_group(c, link, 0, 1, link->size, timeout_ns, e);
}

void comm_release(struct comm *c)
{
    mem_free(c->room);
    c->room = NULL;
    c->n_room = 0;
}

/* ---- one operation ---- */

static int fail(struct comm *c, int rc, const struct err *why, struct err *e)
{
    c->failed = *why;
    if (e) *e = *why;
    return rc;
}

static int move_within(struct comm *c, struct comm_move *m, int n, uint64_t timeout_ns,
                       struct err *e)
{
    uint64_t start = clock_ns();
    struct err why = { 0 };
    int rc;

    if (c->failed.code != OK) {
        if (e) *e = c->failed;
        return c->failed.code;
    }
    for (int i = 0; i < n; i++)
        if (m[i].send) c->stats.bytes += m[i].n;
    rc = c->link->move(c->link, m, n, timeout_ns ? start + timeout_ns : UINT64_MAX, &why);
    c->stats.ns += clock_ns() - start;
    return rc == OK ? OK : fail(c, rc, &why, e);
}

static int move_all(struct comm *c, struct comm_move *m, int n, struct err *e)
{
    return move_within(c, m, n, c->timeout_ns, e);
}

static struct comm_move sending(const struct comm *c, int to, const void *p, size_t n)
{
    return (struct comm_move){ .peer = c->peers[to], .send = true, .p = (void *)p, .n = n };
}

static struct comm_move receiving(const struct comm *c, int from, void *p, size_t n)
{
    return (struct comm_move){ .peer = c->peers[from], .p = p, .n = n };
}

static int ensure_room(struct comm *c, size_t n, struct err *e)
{
    char *p;

    if (n <= c->n_room) return OK;
    if (!(p = mem_grow(c->room, n))) return err_nomem(e, "the contributions of other members");
    c->room = p;
    c->n_room = n;
    return OK;
}

/* ---- sums ---- */

/* A sum of one range of numbers, of which each member has a contribution: those of the others lie
 * in room, by rank, in the form of the wire. */
static void add_all(const struct comm *c, enum comm_wire w, float *x, size_t n, const char *room,
                    size_t each)
{
    for (int r = 0; r < c->size; r++) {
        const char *p = room + (size_t)r * each;
        if (r == 0) wire_get(w, x, p, n);
        else wire_add(w, x, p, n);
    }
}

/* One trip: everybody sends everything. */
static int reduce_whole(struct comm *c, float *x, size_t n, enum comm_wire w, struct err *e)
{
    size_t each = wire_bytes(w, n);
    struct comm_move m[2 * COMM_MAX];
    int k = 0, rc = ensure_room(c, each * (size_t)c->size, e);
    char *mine = c->room + (size_t)c->rank * each;

    if (rc != OK) return rc;
    wire_put(w, mine, x, n);
    for (int i = 1; i < c->size; i++) {
        int to = (c->rank + i) % c->size, from = (c->rank + c->size - i) % c->size;
        m[k++] = sending(c, to, mine, each);
        m[k++] = receiving(c, from, c->room + (size_t)from * each, each);
    }
    if ((rc = move_all(c, m, k, e)) != OK) return rc;
    add_all(c, w, x, n, c->room, each);
    return OK;
}

/* Part r of n numbers, in whole blocks of the wire. */
static size_t part_at(const struct comm *c, size_t n, int r)
{
    size_t blocks = (n + WIRE_BLOCK - 1) / WIRE_BLOCK, at;

    at = blocks * (size_t)r / (size_t)c->size * WIRE_BLOCK;
    return at < n ? at : n;
}

/* First trip: part r of everybody to member r. */
static int scatter_parts(struct comm *c, enum comm_wire w, char *all, size_t n, char *parts,
                         size_t each, struct err *e)
{
    struct comm_move m[2 * COMM_MAX];
    size_t mine = part_at(c, n, c->rank + 1) - part_at(c, n, c->rank);
    int k = 0;

    for (int i = 1; i < c->size; i++) {
        int to = (c->rank + i) % c->size, from = (c->rank + c->size - i) % c->size;
        size_t at = part_at(c, n, to), len = part_at(c, n, to + 1) - at;
        m[k++] = sending(c, to, all + wire_bytes(w, at), wire_bytes(w, len));
        m[k++] = receiving(c, from, parts + (size_t)from * each, wire_bytes(w, mine));
    }
    return move_all(c, m, k, e);
}

/* Second trip: the sum of part r from member r to everybody. */
static int gather_parts(struct comm *c, enum comm_wire w, char *all, size_t n, struct err *e)
{
    struct comm_move m[2 * COMM_MAX];
    size_t mine = part_at(c, n, c->rank), len = part_at(c, n, c->rank + 1) - mine;
    int k = 0;

    for (int i = 1; i < c->size; i++) {
        int to = (c->rank + i) % c->size, from = (c->rank + c->size - i) % c->size;
        size_t at = part_at(c, n, from), its = part_at(c, n, from + 1) - at;
        m[k++] = sending(c, to, all + wire_bytes(w, mine), wire_bytes(w, len));
        m[k++] = receiving(c, from, all + wire_bytes(w, at), wire_bytes(w, its));
    }
    return move_all(c, m, k, e);
}

/* Room for a part, in whole blocks. */
static size_t part_room(const struct comm *c, size_t total)
{
    return (total / (size_t)c->size + 2 * WIRE_BLOCK * 4) / 64 * 64 + 64;
}

int comm_reserve(struct comm *c, size_t n, struct err *e)
{
    size_t total = wire_bytes(COMM_F32, n), whole = total < WHOLE_BYTES ? total : WHOLE_BYTES,
           parts = total + part_room(c, total) * (size_t)c->size;

    if (c->size == 1) return OK;
    if (c->size == 2) return ensure_room(c, 2 * total, e);
    return ensure_room(c, whole * (size_t)c->size > parts ? whole * (size_t)c->size : parts, e);
}

static int reduce_parts(struct comm *c, float *x, size_t n, enum comm_wire w, struct err *e)
{
    size_t total = wire_bytes(w, n), each = part_room(c, total);
    int rc = ensure_room(c, total + each * (size_t)c->size, e);
    size_t at = part_at(c, n, c->rank), len = part_at(c, n, c->rank + 1) - at;
    char *all = c->room, *parts = all + total;

    if (rc != OK) return rc;
    wire_put(w, all, x, n);
    if ((rc = scatter_parts(c, w, all, n, parts, each, e)) != OK) return rc;
    memcpy(parts + (size_t)c->rank * each, all + wire_bytes(w, at), wire_bytes(w, len));
    add_all(c, w, x + at, len, parts, each);
    wire_put(w, all + wire_bytes(w, at), x + at, len);
    if ((rc = gather_parts(c, w, all, n, e)) != OK) return rc;
    wire_get(w, x, all, n);
    return OK;
}

int comm_all_reduce(struct comm *c, float *x, size_t n, enum comm_wire wire, struct err *e)
{
    uint64_t start = clock_ns(), before = c->stats.ns;
    int rc;

    if (c->size == 1 || n == 0) return OK;
    c->stats.n_ops++;
    rc = c->size == 2 || n * sizeof *x <= WHOLE_BYTES ? reduce_whole(c, x, n, wire, e)
                                                      : reduce_parts(c, x, n, wire, e);
    c->stats.ns = before + (clock_ns() - start); /* with the additions */
    return rc;
}

/* ---- the others ---- */

int comm_all_gather(struct comm *c, const void *mine, size_t n, void *all, struct err *e)
{
    struct comm_move m[2 * COMM_MAX];
    char *to = (char *)all + (size_t)c->rank * n;
    int k = 0;

    if (mine != to) memmove(to, mine, n);
    if (c->size == 1 || n == 0) return OK;
    c->stats.n_ops++;
    for (int i = 1; i < c->size; i++) {
        int next = (c->rank + i) % c->size, from = (c->rank + c->size - i) % c->size;
        m[k++] = sending(c, next, to, n);
        m[k++] = receiving(c, from, (char *)all + (size_t)from * n, n);
    }
    return move_all(c, m, k, e);
}

int comm_broadcast(struct comm *c, int root, void *p, size_t n, struct err *e)
{
    struct comm_move m[COMM_MAX];
    int k = 0;

    if (c->size == 1 || n == 0) return OK;
    c->stats.n_ops++;
    for (int i = 0; i < c->size && c->rank == root; i++)
        if (i != root) m[k++] = sending(c, i, p, n);
    if (c->rank != root) m[k++] = receiving(c, root, p, n);
    return move_all(c, m, k, e);
}

int comm_send(struct comm *c, int to, const void *p, size_t n, struct err *e)
{
    struct comm_move m = sending(c, to, p, n);

    c->stats.n_ops++;
    return n ? move_all(c, &m, 1, e) : OK;
}

int comm_recv_within(struct comm *c, int from, void *p, size_t n, uint64_t timeout_ns,
                     struct err *e)
{
    struct comm_move m = receiving(c, from, p, n);

    c->stats.n_ops++;
    return n ? move_within(c, &m, 1, timeout_ns, e) : OK;
}

int comm_recv(struct comm *c, int from, void *p, size_t n, struct err *e)
{
    return comm_recv_within(c, from, p, n, c->timeout_ns, e);
}

int comm_barrier(struct comm *c, struct err *e)
{
    char all[COMM_MAX] = { 0 };

    return comm_all_gather(c, &all[c->rank], 1, all, e);
}

void comm_abort(struct comm *c, const char *why) { c->link->abort(c->link, why); }
