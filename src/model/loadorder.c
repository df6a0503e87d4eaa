/* loadorder.c - the order to load: filled by the leader, checked by each member. */
#include "model/loadorder.h"

#include "base/buf.h"
#include "format/source.h"
#include "model/parallel.h"
#include "model/weightlist.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool put_text(char *out, size_t cap, const char *s)
{
    int n = snprintf(out, cap, "%s", s ? s : "");

    return n >= 0 && (size_t)n < cap;
}

int loadorder_fill(struct loadorder *o, const struct loadplan *p, const struct gang_shape *shape,
                   struct err *e)
{
    const struct load_opt *l = &p->opt;
    bool fits;
    int rc;

    memset(o, 0, sizeof *o);
    o->size = sizeof *o;
    o->shape = *shape;
    fits = put_text(o->version, sizeof o->version, TERN_VERSION) &&
           put_text(o->path, sizeof o->path, p->path) &&
           put_text(o->arch, sizeof o->arch, p->facts.arch) &&
           put_text(o->isa, sizeof o->isa, cpu_isa_name(&l->backend)) &&
           put_text(o->numa, sizeof o->numa, l->backend.numa);
    if (!fits) return err_set(e, E_INVALID, "%.100s...: a path or name is too long", p->path);
    o->model = (struct fingerprint)FINGERPRINT_START;
    if ((rc = fingerprint_add_model(&o->model, p->source, e)) != OK) return rc;
    o->n_params = p->weights->n_params;
    o->file_bytes = p->weights->file_bytes;
    o->n_vocab = p->facts.n_vocab;
    o->n_layers = p->shard->whole->n_layers;
    o->n_ctx = l->n_ctx;
    o->kv_tokens = l->kv_tokens;
    o->max_batch = l->max_batch;
    o->max_seqs = l->max_seqs;
    o->max_out = l->max_out;
    o->kv_type = (int32_t)l->kv_type;
    o->n_threads = l->backend.n_threads;
    o->reference = l->backend.reference;
    o->allow_nan = l->allow_nan;
    o->no_prefix = l->no_prefix;
    return OK;
}

static bool ends(const char *s, size_t cap) { return memchr(s, 0, cap) != NULL; }

/* Shares and layers that the arithmetic of a division bears. */
static bool are_parts(const struct gang_shape *g)
{
    for (int i = 0; i < COMM_MAX; i++)
        if (g->shares[i] < 0 || g->shares[i] > 1 << 16 || g->layers[i] < 0 ||
            g->layers[i] > 1 << 16)
            return false;
    return (int)g->split >= 0 && g->split < SPLITS;
}

int loadorder_read(struct loadorder *o, const void *p, size_t n, struct err *e)
{
    const struct gang_shape *g = &o->shape;

    if (n != sizeof *o || memcmp(p, &(uint32_t){ sizeof *o }, sizeof(uint32_t)) != 0)
        return err_set(e, E_UNSUPPORTED,
                       "the leader is another build of tern than this member (%s)", TERN_VERSION);
    memcpy(o, p, sizeof *o);
    if (!ends(o->version, sizeof o->version) || !ends(o->path, sizeof o->path) ||
        !ends(o->arch, sizeof o->arch) || !ends(o->isa, sizeof o->isa) ||
        !ends(o->numa, sizeof o->numa))
        return err_set(e, E_FORMAT, "the order to load has a text without an end");
    if (strcmp(o->version, TERN_VERSION) != 0)
        return err_set(e, E_UNSUPPORTED, "the leader is tern %s, this member %s", o->version,
                       TERN_VERSION);
    for (int i = 0; i < COMM_MAX; i++)
        if (!ends(g->devices[i], sizeof g->devices[i]))
            return err_set(e, E_FORMAT, "the order to load has a text without an end");
    if (g->tp < 1 || g->pp < 1 || g->tp > COMM_MAX || g->pp > COMM_MAX ||
        g->tp * g->pp > COMM_MAX || (g->wire != COMM_F32 && g->wire != COMM_Q8) ||
        (int)g->way < 0 || g->way >= WAYS || !are_parts(g) || o->kv_type < 0 ||
        o->kv_type >= DT_COUNT)
        return err_set(e, E_FORMAT, "the order to load has values out of range");
    return OK;
}

struct load_opt loadorder_opt(const struct loadorder *o, int rank)
{
    const char *device = o->shape.devices[rank];

    return (struct load_opt){ .backend = { .device = *device ? device : NULL,
                                           .n_threads = o->n_threads,
                                           .reference = o->reference,
                                           .isa = o->isa[0] ? o->isa : NULL,
                                           .numa = o->numa[0] ? o->numa : NULL },
                              .n_ctx = o->n_ctx,
                              .kv_tokens = o->kv_tokens,
                              .max_batch = o->max_batch,
                              .max_seqs = o->max_seqs,
                              .max_out = o->max_out,
                              .kv_type = (enum dtype)o->kv_type,
                              .no_prefix = o->no_prefix,
                              .allow_nan = o->allow_nan,
                              .shard = parallel_shard(&o->shape, rank) };
}

int loadorder_compare(const struct loadorder *o, const struct loadplan *p, struct err *e)
{
    struct fingerprint mine = FINGERPRINT_START;
    int rc;

    if (strcmp(o->arch, p->facts.arch) == 0 && o->n_vocab == p->facts.n_vocab && p->shard &&
        o->n_layers == p->shard->whole->n_layers && o->n_params == p->weights->n_params &&
        o->file_bytes == p->weights->file_bytes) {
        if ((rc = fingerprint_add_model(&mine, p->source, e)) != OK) return rc;
        if (memcmp(&mine, &o->model, sizeof mine) == 0) return OK;
        return err_set(e, E_UNSUPPORTED,
                       "%s is another model here: it has the shape of the leader's, and other "
                       "weights or settings",
                       o->path);
    }
    return err_set(
        e, E_UNSUPPORTED,
        "%s is another model here: %s with %llu parameters in %llu bytes, the leader's is "
        "%s with %llu in %llu",
        o->path, p->facts.arch, (unsigned long long)p->weights->n_params,
        (unsigned long long)p->weights->file_bytes, o->arch, (unsigned long long)o->n_params,
        (unsigned long long)o->file_bytes);
}

void loadreply_introduce(struct loadreply *y, const struct loadplan *p)
{
    struct buf device = { 0 };

    y->bytes = loadplan_bytes(p);
    y->pid = getpid();
    if (gethostname(y->host, sizeof y->host) != 0) y->host[0] = 0;
    y->host[sizeof y->host - 1] = 0;
    loadplan_describe_devices(p, &device);
    snprintf(y->device, sizeof y->device, "%.95s", buf_cstr(&device));
    buf_release(&device);
    if (!p->shard) return;
    y->first_layer = p->shard->first;
    y->end_layer = p->shard->end;
}

void loadreply_seat(const struct loadreply *y, int rank, struct gang_seat *out)
{
    *out = (struct gang_seat){ .rank = rank,
                               .pid = y->pid,
                               .first_layer = y->first_layer,
                               .end_layer = y->end_layer,
                               .weight_bytes = y->bytes.weights,
                               .kv_bytes = y->bytes.kv,
                               .scratch_bytes = y->bytes.scratch };
    memcpy(out->host, y->host, sizeof out->host - 1);
    memcpy(out->device, y->device, sizeof out->device - 1);
}
