/* gangcard.c - cards of members: made, checked as bytes, compared. */
#include "model/gangcard.h"

#include "base/cores.h"
#include "base/memavail.h"
#include "kernel/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends(const char *s, size_t cap) { return memchr(s, 0, cap) != NULL; }

static bool is_gpu(const struct gangcard *c) { return strcmp(c->dev.kind, "cpu") != 0; }

/* ---- questions ---- */

void gangask_fill(struct gangask *a, const struct gang_shape *shape, const struct backend_opt *opt)
{
    const char *isa = cpu_isa_name(opt);

    memset(a, 0, sizeof *a);
    a->magic = GANGCARD_MAGIC;
    a->size = sizeof *a;
    a->reference = opt->reference;
    a->n_threads = opt->n_threads;
    snprintf(a->version, sizeof a->version, "%s", TERN_VERSION);
    snprintf(a->isa, sizeof a->isa, "%s", isa ? isa : "");
    memcpy(a->devices, shape->devices, sizeof a->devices);
}

static int refuse_version(const char *theirs, const char *who, struct err *e)
{
    return err_set(e, E_UNSUPPORTED, "%s is tern %.27s, this is %s: members must be of one version",
                   who, theirs, TERN_VERSION);
}

/* The first fields of every version; false: none of a gang's messages. */
static bool has_head(const void *p, size_t n)
{
    struct gangask head;

    if (n < offsetof(struct gangask, reference)) return false;
    memcpy(&head, p, offsetof(struct gangask, reference));
    return head.magic == GANGCARD_MAGIC && ends(head.version, sizeof head.version);
}

int gangask_read(struct gangask *a, const void *p, size_t n, struct err *e)
{
    if (!has_head(p, n))
        return err_set(e, E_FORMAT, "%zu bytes came that are no question of a leader", n);
    if (strcmp((const char *)p + offsetof(struct gangask, version), TERN_VERSION) != 0)
        return refuse_version((const char *)p + offsetof(struct gangask, version), "the leader", e);
    if (n != sizeof *a || memcmp((const char *)p + offsetof(struct gangask, size),
                                 &(uint32_t){ sizeof *a }, sizeof(uint32_t)) != 0)
        return err_set(e, E_UNSUPPORTED, "the leader is another build of tern %s", TERN_VERSION);
    memcpy(a, p, sizeof *a);
    for (int i = 0; i < COMM_MAX; i++)
        if (!ends(a->devices[i], sizeof a->devices[i]))
            return err_set(e, E_FORMAT, "the question of the leader has a text without an end");
    if (!ends(a->isa, sizeof a->isa) || a->reference > 1 || a->measure > 1 || a->n_threads < 0 ||
        a->n_threads > 1 << 16)
        return err_set(e, E_FORMAT, "the question of the leader has values out of range");
    return OK;
}

/* ---- cards ---- */

/* The number of this rank in a list with commas, in an environment variable. */
static bool read_given(const char *name, int rank, double *out)
{
    const char *p = getenv(name);
    char *end;

    for (; p && rank > 0; rank--) p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL;
    if (!p || !*p) return false;
    *out = strtod(p, &end);
    return end > p && *out > 0 && *out < 1e9;
}

static void fill_memory(struct gangcard *c, int rank)
{
    struct memavail m;
    double given;

    memavail_read(&m, "");
    c->memory_bytes = is_gpu(c) ? c->dev.total_bytes : m.free;
    if (is_gpu(c) && c->speed.free_bytes) c->memory_bytes = c->speed.free_bytes;
    if (c->memory_bytes == 0) c->memory_bytes = UINT64_MAX;
    if (!read_given("TERN_GANG_MEMORY", rank, &given)) return;
    c->memory_bytes = (uint64_t)(given * 1048576);
    c->own_memory = 1;
}

static int fill_speed(struct gangcard *c, const struct backend_opt *opt, int rank, struct err *e)
{
    double given;

    if (!read_given("TERN_GANG_SPEEDS", rank, &given)) return gangspeed_measure(&c->speed, opt, e);
    c->speed.read_gb_s = c->speed.product_gflops = given;
    return OK;
}

void gangcard_fill(struct gangcard *c, const struct gangask *a, int rank)
{
    struct backend_opt opt = { .device = a->devices[rank][0] ? a->devices[rank] : NULL,
                               .reference = a->reference,
                               .n_threads = a->n_threads,
                               .isa = a->isa[0] && !a->reference ? a->isa : NULL };
    struct group_offer host;
    struct err e = { 0 };
    bool cpu = !opt.device || strcmp(opt.device, "cpu") == 0;

    memset(c, 0, sizeof *c);
    c->magic = GANGCARD_MAGIC;
    c->size = sizeof *c;
    snprintf(c->version, sizeof c->version, "%s", TERN_VERSION);
    group_offer_init(&host);
    memcpy(c->host, host.host, sizeof c->host);
    c->code = cpu && !a->reference ? cpu_check_isa(opt.isa, &e) : OK;
    if (c->code == OK) c->code = backend_card(&c->dev, &opt, &e);
    if (cpu) c->threads = a->n_threads ? a->n_threads : cores_find()->n;
    if (c->code == OK && a->measure) c->code = fill_speed(c, &opt, rank, &e);
    if (c->code == OK) fill_memory(c, rank);
    if (c->code != OK) snprintf(c->text, sizeof c->text, "%.255s", e.msg);
}

/* Not negative, and a number. */
static bool is_speed(const struct gangspeed *s)
{
    return s->read_gb_s >= 0 && s->read_gb_s < 1e9 && s->product_gflops >= 0 &&
           s->product_gflops < 1e12;
}

int gangcard_check(const struct gangcard *c, int rank, struct err *e)
{
    char who[32];

    snprintf(who, sizeof who, "member %d", rank);
    if (!has_head(c, sizeof *c)) return err_set(e, E_FORMAT, "%s has sent no card", who);
    if (strcmp(c->version, TERN_VERSION) != 0) return refuse_version(c->version, who, e);
    if (c->size != sizeof *c)
        return err_set(e, E_UNSUPPORTED, "%s is another build of tern %s", who, TERN_VERSION);
    if (!ends(c->text, sizeof c->text) || !ends(c->host, sizeof c->host) ||
        !ends(c->dev.kind, sizeof c->dev.kind) || !ends(c->dev.name, sizeof c->dev.name) ||
        c->code > 0 || c->threads < 0 || !is_speed(&c->speed))
        return err_set(e, E_FORMAT, "the card of %s is damaged", who);
    if (c->code != OK) return err_set(e, c->code, "%s: %s", who, c->text);
    return OK;
}

/* ---- who can work with whom ---- */

/* "member 1 (cuda, NVIDIA H200)" */
struct card_name {
    char s[112];
};
static struct card_name name_of(const struct gangcard *cards, int r)
{
    const struct device_card *d = &cards[r].dev;
    struct card_name out;

    snprintf(out.s, sizeof out.s, "member %d (%s%s%s)", r, d->kind, d->name[0] ? ", " : "",
             d->name);
    return out;
}

static bool same_kind(const struct gangcard *a, const struct gangcard *b)
{
    return strcmp(a->dev.kind, b->dev.kind) == 0 && a->dev.cc == b->dev.cc &&
           (is_gpu(a) || strcmp(a->dev.name, b->dev.name) == 0);
}

static bool same_card(const struct gangcard *a, const struct gangcard *b)
{
    return strcmp(a->host, b->host) == 0 &&
           memcmp(a->dev.card, b->dev.card, sizeof a->dev.card) == 0;
}

bool gangcards_alike(const struct gangcard *cards, int n)
{
    for (int r = 1; r < n; r++)
        if (!same_kind(&cards[0], &cards[r]) || cards[0].threads != cards[r].threads ||
            strcmp(cards[0].dev.name, cards[r].dev.name) != 0)
            return false;
    return true;
}

/* Members of one machine share its memory, those on one GPU the GPU's. */
void gangcards_memories(const struct gangcard *cards, int n, int *memories)
{
    int next = 0;

    for (int r = 0; r < n; r++) {
        memories[r] = -1;
        for (int k = 0; k < r && memories[r] < 0; k++)
            if (is_gpu(&cards[k]) == is_gpu(&cards[r]) && same_card(&cards[k], &cards[r]) &&
                !cards[r].own_memory)
                memories[r] = memories[k];
        if (memories[r] < 0) memories[r] = next++;
    }
}

/* Two members of one stage. */
static int match_pair(const struct gangcard *cards, int a, int b, const struct gangneeds *needs,
                      struct err *e)
{
    const struct gangcard *x = &cards[a], *y = &cards[b];
    uint64_t differ = (x->dev.types ^ y->dev.types) & needs->types;
    int type = 0;

    if (same_kind(x, y)) return OK;
    if (needs->experts)
        return err_set(e, E_UNSUPPORTED,
                       "%s and %s are of one stage of a model with experts: they would choose "
                       "different ones. Use the same kind of device for both, or pp",
                       name_of(cards, a).s, name_of(cards, b).s);
    if (!differ) return OK;
    while (!(differ >> type & 1)) type++;
    return err_set(
        e, E_UNSUPPORTED,
        "%s does not read weights of type %s as they are, %s does: a matrix of one stage "
        "would be of two types. Use the same kind of device for both, or pp",
        name_of(cards, x->dev.types >> type & 1 ? b : a).s, dtype_name(type),
        name_of(cards, x->dev.types >> type & 1 ? a : b).s);
}

/* Can these two sum in the way that was asked for? */
static int match_way(const struct gangcard *cards, int a, int b, enum gang_way way, struct err *e)
{
    const char *name = way == WAY_IPC ? "ipc" : "nccl";

    if (way != WAY_IPC && way != WAY_NCCL) return OK;
    for (int i = 0; i < 2; i++)
        if (!is_gpu(&cards[i ? b : a]))
            return err_set(e, E_UNSUPPORTED, "comm %s: %s is no GPU", name,
                           name_of(cards, i ? b : a).s);
    if (way == WAY_IPC && strcmp(cards[a].host, cards[b].host) != 0)
        return err_set(e, E_UNSUPPORTED, "comm ipc: %s and %s are on different machines",
                       name_of(cards, a).s, name_of(cards, b).s);
    if (way == WAY_NCCL && same_card(&cards[a], &cards[b]))
        return err_set(e, E_UNSUPPORTED,
                       "comm nccl: %s and %s share one GPU; NCCL wants one for each",
                       name_of(cards, a).s, name_of(cards, b).s);
    return OK;
}

static int match_alone(const struct gangcard *cards, int r, const struct gang_shape *shape,
                       const struct gangneeds *needs, struct err *e)
{
    if (!is_gpu(&cards[r])) return OK;
    if (needs->reference)
        return err_set(e, E_INVALID, "%s: the reference kernels run on the CPU only",
                       name_of(cards, r).s);
    if (shape->ep)
        return err_set(e, E_UNSUPPORTED,
                       "ep: %s needs a part of every expert; leave out ep, or use CPUs",
                       name_of(cards, r).s);
    return OK;
}

int gangcards_match(const struct gangcard *cards, const struct gang_shape *shape,
                    const struct gangneeds *needs, struct err *e)
{
    int n = shape->tp * shape->pp, rc = OK;

    for (int r = 0; r < n && rc == OK; r++) rc = match_alone(cards, r, shape, needs, e);
    for (int a = 0; a < n && rc == OK; a++)
        for (int b = a + 1; b < (a / shape->tp + 1) * shape->tp && rc == OK; b++) {
            rc = match_pair(cards, a, b, needs, e);
            if (rc == OK) rc = match_way(cards, a, b, shape->way, e);
        }
    return rc;
}
