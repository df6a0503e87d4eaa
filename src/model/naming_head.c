/* naming_head.c - the head of a classifier or reranker as tensors and keys of a GGUF file.
 *
 * llama.cpp has names for two layers: cls, with an activation and a norm behind it, and cls.output. A
 * head of one layer is cls.output alone. Its rule for the pooling (ModernBERT: mean, other encoders:
 * the first token) and the activation (ModernBERT: GELU, others: tanh) has no keys there; where a model
 * differs, tern's own keys say so. */
#include "model/naming_impl.h"

#include "model/vechead.h"

static void add(struct gguf_rest *r, const char *name, const float *data, int64_t rows,
                int64_t cols)
{
    if (!data) return;
    r->list[r->n++] = (struct gguf_extra){ .name = name,
                                           .data = data,
                                           .n = rows * (cols ? cols : 1),
                                           .n_dims = cols ? 2 : 1,
                                           .dims = { rows, cols } };
}

/* The last layer is cls.output, the one before it cls. */
static int add_head(struct gguf_rest *r, const struct source *src, struct err *e)
{
    const struct vec_head *h = r->head;
    const struct vec_layer *last = &h->layers[h->n - 1], *first = &h->layers[0];

    if (h->n > 2 || last->norm || last->act != VEC_ACT_NONE)
        return err_set(e, E_UNSUPPORTED, "%s: GGUF has no names for a head of %d layers",
                       source_path(src), h->n);
    if (h->n == 2) {
        add(r, "cls.weight", first->w, first->out, first->in);
        add(r, "cls.bias", first->b, first->out, 0);
        add(r, "cls.norm.weight", first->norm, first->out, 0);
        add(r, "cls.norm.bias", first->norm_b, first->out, 0);
    }
    add(r, "cls.output.weight", last->w, last->out, last->in);
    add(r, "cls.output.bias", last->b, last->out, 0);
    return OK;
}

int naming_rest(struct gguf_rest *out, const struct hparams *hp, const struct source *src,
                struct arena *a, struct err *e)
{
    int rc;

    *out = (struct gguf_rest){ 0 };
    out->n = naming_extras(hp, a, out->list);
    if ((rc = arena_check(a, e)) != OK || !hp->ranks) return rc;
    if ((rc = vechead_read(&out->head, a, src, hp->n_embd, e)) != OK || !out->head) return rc;
    return add_head(out, src, e);
}

void naming_head_keys(const struct hparams *hp, const struct vec_head *h, struct ggufw *w)
{
    struct key_writer k = { .hp = hp, .w = w };
    bool modern = str_is(str_c(hp->arch), "modern-bert");
    enum vec_act usual = modern ? VEC_ACT_GELU : VEC_ACT_TANH;

    if (!h) return;
    ggufw_strs(w, full_name(&k, "classifier.output_labels"), h->labels, (size_t)h->n_labels);
    if (hp->encoder && h->mean != modern)
        ggufw_str(w, full_name(&k, "classifier.pooling"), h->mean ? STR("mean") : STR("cls"));
    if (h->n == 2 && h->layers[0].act != usual)
        ggufw_str(w, full_name(&k, "classifier.activation"), str_c(vec_act_name(h->layers[0].act)));
}
