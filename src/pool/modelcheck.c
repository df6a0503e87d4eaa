/* modelcheck.c - see modelcheck.h. */
#include "pool/modelcheck.h"

#include "base/arena.h"
#include "base/keyring.h"
#include "format/manifest.h"
#include "model/loadplan.h"
#include "model/onnxrunner.h"
#include "model/scan.h"
#include "model/weightlist.h"
#include "pool/pool_impl.h"
#include "token/tokenizer.h"

struct files {
    struct loadplan *plan; /* NULL: a lone .safetensors file */
    struct source *source; /* of the plan, or its own */
    struct arena arena;
};

/* A .safetensors file without config.json is tensors only. */
static int open_files(struct files *f, const char *path, struct err *e)
{
    uint64_t n;
    struct value type;
    int rc = source_open_head(&f->source, path, e);

    if (rc != OK) return rc;
    if (!source_onnx(f->source) && source_kind(f->source) == SOURCE_HF &&
        !source_key(f->source, "model_type", &type) && !source_u64(f->source, "hidden_size", &n))
        return OK;
    source_close(f->source);
    f->source = NULL;
    if ((rc = loadplan_read(&f->plan, path, e)) == OK) f->source = f->plan->source;
    return rc;
}

/* Every tensor that the architecture has is there and has its shape and a type for it. */
static int check_tensors(struct files *f, struct err *e)
{
    struct weight_list list;

    if (!f->plan || !f->plan->hp) return OK;
    return weights_find(&list, &f->arena, f->plan->hp, f->source, e);
}

/* A model without a tokenizer is fine; one with a damaged tokenizer is not. */
static int check_tokenizer(const struct files *f, struct err *e)
{
    struct tokenizer *t = NULL;
    int rc = f->plan ? tokenizer_open(&t, source_path(f->source), e) : OK;

    tokenizer_close(t);
    return rc == E_NOTFOUND ? OK : rc;
}

static int check_stop(const struct modelcheck *m, struct err *e)
{
    if (!m->stop || !atomic_load_explicit(m->stop, memory_order_relaxed)) return OK;
    return err_set(e, E_CANCELLED, "%s: the check was stopped", m->path);
}

/* All finds are told. */
static int check_numbers(struct modelcheck *m, const struct files *f, struct err *e)
{
    int rc = f->plan && f->plan->graph ? scan_graph(f->plan->graph->file, e) : OK;

    for (size_t i = 0; i < m->n_tensors && rc == OK; i++) {
        if ((rc = check_stop(m, e)) != OK) return rc;
        if (scan_tensor(f->source, source_tensor(f->source, i), e) == OK) continue;
        if (m->found) m->found(m->arg, e->msg);
        m->n_bad++;
    }
    if (rc != OK || !m->n_bad) return rc;
    return err_set(e, E_DAMAGED, "%s: %zu of %zu tensors contain NaN or infinity", m->path,
                   m->n_bad, m->n_tensors);
}

static int check_files(struct modelcheck *m, struct files *f, struct err *e)
{
    int rc = open_files(f, m->path, e);

    if (rc != OK) return rc;
    m->n_tensors = source_n_tensors(f->source);
    m->bytes = source_bytes(f->source);
    if ((rc = source_fill(f->source, m->decrypting, m->arg, e)) != OK) return rc;
    if ((rc = check_tensors(f, e)) != OK) return rc;
    if ((rc = check_tokenizer(f, e)) != OK) return rc;
    if ((rc = check_numbers(m, f, e)) != OK) return rc;
    return source_is_damaged(f->source, e) ? E_DAMAGED : OK;
}

int modelcheck_run(struct modelcheck *m, struct err *e)
{
    struct files f = { 0 };
    int rc;

    m->n_tensors = m->n_bad = 0;
    m->bytes = 0;
    rc = check_files(m, &f, e);
    if (!f.plan) source_close(f.source);
    loadplan_close(f.plan);
    arena_release(&f.arena);
    return rc;
}

int modelcheck_pool(struct modelcheck *m, struct pool *p, int i, struct err *e)
{
    const struct pool_model *x = pool_at(p, i);
    const struct pool_opt *o = &p->opt;
    bool own = x->key_file || x->key_command;
    struct manifest_opt opt = { .n_threads = 1, .stop = m->stop };
    struct manifest_result r;
    struct keyset *keys = NULL;
    int rc = pool_read_keys(x->entry, own ? x->key_file : o->key_file,
                            own ? x->key_command : o->key_command, &keys, e);

    if (rc != OK) return rc;
    m->path = pool_path(x);
    keyset_join(keys);
    rc = manifest_check(m->path, &opt, &r, e);
    if (rc == OK || rc == E_NOTFOUND) rc = modelcheck_run(m, e); /* it need not have one */
    keyset_close(keys);
    return rc;
}
