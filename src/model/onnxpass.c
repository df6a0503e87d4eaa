#include "model/onnxpass.h"

#include "base/mem.h"
#include "kernel/cpu/cpu.h"

static void share_rows(void *team, int rows, long long work, onnx_rows_fn *fn, const void *arg)
{
    cpu_rows(team, rows, work, fn, arg);
}

static void count(struct onnxpass *p, enum mem_kind kind, size_t bytes)
{
    p->counted[kind] += bytes;
    p->be->used_bytes[kind] += bytes;
}

int onnxpass_open(struct onnxpass **out, const struct source *src, struct backend *be,
                  struct err *e)
{
    struct onnxpass *p = mem_new(struct onnxpass);
    struct cpu *cpu = cpu_of(be);
    struct onnx_run_opt opt = { .host = { .vec = cpu->vec, .rows = share_rows, .team = cpu } };
    int rc;

    p->be = be;
    if ((rc = onnx_open(&p->file, source_onnx(src), e)) != OK) goto out;
    if ((rc = card_read(&p->card, &p->arena, src, p->file, e)) != OK) goto out;
    opt.output = p->card.output;
    if ((rc = onnx_run_open(&p->run, p->file, &opt, e)) != OK) goto out;
    count(p, MEM_WEIGHTS, onnx_run_const_bytes(p->run));
    /* Its bytes are scaled by the largest number of all texts that are in. */
    p->alone = p->card.fixed_batch == 1 || onnx_run_uses(p->run, "DynamicQuantizeLinear");
    *out = p;
    p = NULL;
out:
    onnxpass_close(p);
    return rc;
}

void onnxpass_close(struct onnxpass *p)
{
    if (!p) return;
    for (int k = 0; k < MEM_KINDS; k++) p->be->used_bytes[k] -= p->counted[k];
    onnx_run_close(p->run);
    onnx_close(p->file);
    for (int k = 0; k < CARD_INPUTS; k++) mem_free(p->data[k]);
    mem_free(p->first);
    mem_free(p->len);
    mem_free(p->slot);
    arena_release(&p->arena);
    mem_free(p);
}

/* ---- inputs ---- */

static enum onnx_type type_of(const struct onnxpass *p, int k)
{
    return p->file->graph.inputs[p->card.inputs[k]].type;
}

static void put(const struct onnxpass *p, int k, size_t at, int64_t v)
{
    if (p->card.inputs[k] < 0) return;
    switch (type_of(p, k)) {
    case ONNX_F32: ((float *)p->data[k])[at] = (float)v; break;
    case ONNX_I64: ((int64_t *)p->data[k])[at] = v; break;
    default: ((uint8_t *)p->data[k])[at] = v != 0;
    }
}

static void set_inputs(struct onnxpass *p, int64_t batch, int64_t len)
{
    int64_t dims[2] = { batch, len };

    for (int k = 0; k < CARD_INPUTS; k++)
        if (p->card.inputs[k] >= 0) onnx_run_set(p->run, p->card.inputs[k], 2, dims, p->data[k]);
}

/* A row of the graph's input: the text, and padding up to len. */
static void put_text(const struct onnxpass *p, const struct batch *b, int seq, int row, int len)
{
    size_t at = (size_t)row * (size_t)len;
    int second = b->second ? b->second[seq] : 0;

    for (int i = 0; i < len; i++, at++) {
        bool in = i < p->len[seq];
        put(p, CARD_IDS, at, in ? b->ids[p->first[seq] + i] : p->card.pad);
        put(p, CARD_MASK, at, in);
        put(p, CARD_TYPES, at, in && second > 0 && i >= second);
        put(p, CARD_POSITIONS, at, i + p->card.first_pos);
    }
}

/* ---- memory ---- */

static int check_shape(const struct onnxpass *p, const struct onnx_tensor *t, int64_t batch,
                       int64_t len, struct err *e)
{
    const struct card *c = &p->card;
    bool rows = c->pool != CARD_NONE, good = t->type == ONNX_F32 && t->n_dims == 2 + rows;

    good = good && t->dims[0] == batch && (!rows || t->dims[1] == len) &&
           t->dims[t->n_dims - 1] == c->width;
    if (good) return OK;
    return err_set(e, E_FORMAT,
                   "%s: for %lld texts of %lld tokens the output is %s of %d dimensions (%lld x "
                   "%lld x %lld), but %s of %d "
                   "were expected: see tern.json",
                   p->file->path, (long long)batch, (long long)len, onnx_type_name(t->type),
                   t->n_dims, (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                   c->task == CARD_EMBED ? "vectors" : "classes", c->width);
}

int onnxpass_plan(struct onnxpass *p, int max_tokens, int max_seqs, int n_ctx, struct err *e)
{
    int64_t longest = n_ctx < p->card.n_ctx ? n_ctx : p->card.n_ctx;
    int64_t len = p->card.fixed_len > 0  ? p->card.fixed_len
                  : longest < max_tokens ? longest
                                         : max_tokens;
    int64_t batch = p->alone || p->card.fixed_batch > 0 ? 1 : max_tokens / len;
    struct onnx_tensor shape;
    int rc;

    if (p->card.fixed_batch > 1)
        return err_set(e, E_UNSUPPORTED, "%s: the graph is for %lld texts at a time only",
                       p->file->path, (long long)p->card.fixed_batch);
    if (batch < 1) batch = 1;
    p->max_tokens = (int)(batch * len);
    p->max_seqs = max_seqs;
    for (int k = 0; k < CARD_INPUTS; k++)
        if (p->card.inputs[k] >= 0 &&
            !(p->data[k] = mem_array((size_t)p->max_tokens, sizeof(int64_t))))
            return err_set(e, E_NOMEM, "no memory for %d tokens", p->max_tokens);
    p->first = mem_array((size_t)max_seqs, sizeof *p->first);
    p->len = mem_array((size_t)max_seqs, sizeof *p->len);
    p->slot = mem_array((size_t)max_seqs, sizeof *p->slot);
    for (int i = 0; i < p->max_tokens; i++) put(p, CARD_MASK, (size_t)i, 1);
    for (int i = 0; i < p->max_tokens; i++)
        put(p, CARD_POSITIONS, (size_t)i, i % len + p->card.first_pos);
    set_inputs(p, batch, len);
    if ((rc = onnx_run_plan(p->run, &shape, e)) != OK) return rc;
    count(p, MEM_SCRATCH, onnx_run_bytes(p->run));
    return check_shape(p, &shape, batch, len, e);
}

/* ---- a batch ---- */

static int find_texts(struct onnxpass *p, const struct batch *b, struct err *e)
{
    for (int i = 0; i < b->n_seqs; i++) p->len[i] = 0;
    for (int t = 0; t < b->n_tokens; t++) {
        int s = b->seq[t];
        if (p->len[s]++ == 0) p->first[s] = t;
        if (t != p->first[s] + p->len[s] - 1)
            return err_set(e, E_INVALID,
                           "token %d: the tokens of sequence %d do not follow each other", t, s);
    }
    return OK;
}

static void take_rows(const struct onnxpass *p, const struct batch *b,
                      const struct onnx_tensor *out, int len)
{
    size_t width = (size_t)p->card.width;

    for (int i = 0; i < b->n_hidden; i++) {
        int t = b->hidden_rows[i], s = b->seq[t];
        size_t row = (size_t)p->slot[s];
        if (p->slot[s] < 0) continue;
        if (p->card.pool != CARD_NONE) row = row * (size_t)len + (size_t)(t - p->first[s]);
        memcpy(b->hidden + (size_t)i * width, (const float *)out->data + row * width,
               width * sizeof(float));
    }
}

/* Those from s on that are as long as it, as many as go in. */
static int gather(struct onnxpass *p, const struct batch *b, int s, int len)
{
    int n = 0, want = p->len[s];

    for (int i = 0; i < b->n_seqs; i++) p->slot[i] = -1;
    for (int i = s; i < b->n_seqs; i++) {
        if (p->len[i] != want || (n + 1) * len > p->max_tokens || (n > 0 && p->alone)) continue;
        p->slot[i] = n;
        put_text(p, b, i, n++, len);
        p->len[i] = i == s ? want : -want; /* taken */
    }
    return n;
}

int onnxpass_run(struct onnxpass *p, const struct batch *b, struct err *e)
{
    const struct onnx_tensor *out;
    int rc = find_texts(p, b, e);

    for (int s = 0; s < b->n_seqs && rc == OK; s++) {
        int len = p->card.fixed_len > 0 ? (int)p->card.fixed_len : p->len[s], n;
        if (p->len[s] <= 0) continue;
        n = gather(p, b, s, len);
        set_inputs(p, n, len);
        if ((rc = onnx_run_execute(p->run, b->stop, b->stop_arg, &out, e)) != OK) break;
        if ((rc = check_shape(p, out, n, len, e)) == OK) take_rows(p, b, out, len);
    }
    return rc;
}
