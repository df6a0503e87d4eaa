/* pool_head.c - what the files of a model say about it, without loading it: pool_head.
 *
 * The header of the file is read (GGUF), or config.json and the headers of the weights; of an ONNX model
 * only its size is known. The result is kept until the files are replaced (place_print). */
#include "base/mem.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "pool/modelbytes.h"
#include "pool/pool_impl.h"
#include "pool/registry_impl.h"

#include <stdio.h>

static void set_text(char *to, size_t n, struct str s)
{
    snprintf(to, n, "%.*s", STR_ARG(str_take(s, n - 1)));
}

/* Parameters, and the type that most of the weights' bytes have. */
static void read_tensors(struct pool_head *h, const struct source *s)
{
    uint64_t bytes[DT_COUNT] = { 0 };
    int best = DT_F32;

    for (size_t i = 0; i < source_n_tensors(s); i++) {
        const struct source_tensor *t = source_tensor(s, i);
        uint64_t n = 1;
        for (int d = 0; d < t->n_dims; d++) n *= (uint64_t)t->dims[d];
        h->n_params += n;
        if ((int)t->type >= 0 && t->type < DT_COUNT) bytes[t->type] += t->bytes;
    }
    for (int i = 0; i < DT_COUNT; i++)
        if (bytes[i] > bytes[best]) best = i;
    if (source_n_tensors(s)) set_text(h->dtype, sizeof h->dtype, str_c(dtype_name(best)));
}

/* As the loaded model would tell it. */
static void read_plan(struct pool_head *h, const struct loadplan *p)
{
    const struct model_facts *f = &p->facts;

    set_text(h->arch, sizeof h->arch, str_c(f->arch));
    set_text(h->task, sizeof h->task, str_c(model_task_name(f->task)));
    h->n_ctx = f->n_ctx;
    h->n_vec = f->n_vec;
    read_tensors(h, p->source);
    if (f->n_params) h->n_params = f->n_params;
}

/* A model that does not run here: its header says what it calls itself. */
static void read_names(struct pool_head *h, const struct source *s)
{
    struct str arch;

    if (source_str(s, "general.architecture", &arch) || source_str(s, "model_type", &arch))
        set_text(h->arch, sizeof h->arch, arch);
    read_tensors(h, s);
}

static void read_head(struct pool_head *h, const char *path)
{
    struct loadplan *plan = NULL;
    struct source *s = NULL;

    h->bytes = model_file_bytes(path);
    if (source_open_head(&s, path, NULL) != OK) return;
    if (!h->bytes) h->bytes = source_bytes(s); /* a graph in a folder below */
    if (source_onnx(s)) set_text(h->arch, sizeof h->arch, STR("onnx"));
    else if (loadplan_read(&plan, path, NULL) == OK) read_plan(h, plan);
    else read_names(h, s);
    loadplan_close(plan);
    source_close(s);
}

void pool_head(struct pool *p, int i, bool read, struct pool_head *out)
{
    struct slot *s = p->slots[i];
    const char *path = pool_path(&s->m);
    struct pool_head new = { .n_ctx = 0 };
    int64_t created;
    uint64_t print = place_print(path, &created);

    pthread_mutex_lock(&p->lock);
    *out = s->head;
    if (s->head_print == print) read = false;
    else *out = new;
    pthread_mutex_unlock(&p->lock);
    if (!read) {
        if (!out->bytes) out->bytes = model_file_bytes(path);
        return;
    }
    read_head(&new, path);
    *out = new;
    pthread_mutex_lock(&p->lock);
    s->head = new;
    s->head_print = print;
    pthread_mutex_unlock(&p->lock);
}
