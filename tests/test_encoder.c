/* Encoder models (BERT, RoBERTa, Nomic, ModernBERT) through the engine, against plain loops in
 * double over the same random weights; from folders and from GGUF files.
 *
 * Reads no files except those it writes. */
#include "encoder_world.h"

#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "format/ggufw.h"
#include "model/naming.h"

#include <math.h>
#include <string.h>

static struct rng rng;

/* ---- plain loops ---- */

static void multiply(double *y, const float *w, const float *b, const double *x, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        y[r] = b ? (double)b[r] : 0;
        for (int c = 0; c < cols; c++) y[r] += (double)w[r * cols + c] * x[c];
    }
}

static void layer_norm(double *y, const double *x, const float *w, const float *b)
{
    double mean = 0, var = 0;

    for (int i = 0; i < E; i++) mean += x[i] / E;
    for (int i = 0; i < E; i++) var += (x[i] - mean) * (x[i] - mean) / E;
    for (int i = 0; i < E; i++)
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * w[i] + (b ? (double)b[i] : 0);
}

static void rotate(double *x, int pos, double theta)
{
    for (int i = 0; i < DIM / 2; i++) {
        double a = pos * pow(theta, -2.0 * i / DIM), u = x[i], v = x[i + DIM / 2];
        x[i] = u * cos(a) - v * sin(a);
        x[i + DIM / 2] = v * cos(a) + u * sin(a);
    }
}

static double gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double silu(double x) { return x / (1 + exp(-x)); }

static void attend_plain(double out[][E], double qkv[][3 * E], int n, int window)
{
    for (int t = 0; t < n; t++)
        for (int h = 0; h < HEADS; h++) {
            double sum = 0, acc[DIM] = { 0 };
            for (int u = 0; u < n; u++) {
                double s = 0;
                if (window && abs(t - u) > window / 2) continue;
                for (int i = 0; i < DIM; i++) s += qkv[t][h * DIM + i] * qkv[u][E + h * DIM + i];
                s = exp(s / sqrt(DIM));
                sum += s;
                for (int i = 0; i < DIM; i++) acc[i] += s * qkv[u][2 * E + h * DIM + i];
            }
            for (int i = 0; i < DIM; i++) out[t][h * DIM + i] = acc[i] / sum;
        }
}

static void feed_forward(double *y, const struct layer_w *w, const double *x, enum kind kind)
{
    double up[FF], gate[FF];

    multiply(up, w->up, kind <= ROBERTA ? w->up_b : NULL, x, FF, E);
    multiply(gate, w->gate, NULL, x, FF, E);
    for (int i = 0; i < FF; i++)
        up[i] =
            kind <= ROBERTA ? gelu(up[i]) : (kind == NOMIC ? silu(gate[i]) : gelu(gate[i])) * up[i];
    multiply(y, w->down, kind <= ROBERTA ? w->down_b : NULL, up, E, FF);
}

static void run_layer(double x[][E], const struct weights *w, int l, int n, enum kind kind)
{
    static double qkv[MAX_T][3 * E], a[MAX_T][E];
    const struct layer_w *y = &w->l[l];
    bool local = kind == MODERN && l % 3 != 0, after = kind != MODERN;
    double h[E], o[E];

    for (int t = 0; t < n; t++) {
        memcpy(h, x[t], sizeof h);
        if (kind == MODERN && l > 0) layer_norm(h, x[t], y->n1, NULL);
        multiply(qkv[t], y->qkv, kind <= ROBERTA ? y->qkv_b : NULL, h, 3 * E, E);
        for (int i = 0; i < 2 * HEADS && kind >= NOMIC; i++)
            rotate(qkv[t] + i * DIM, t, kind == NOMIC ? 500 : local ? 300 : 900);
    }
    attend_plain(a, qkv, n, local ? WINDOW : 0);
    for (int t = 0; t < n; t++) {
        multiply(o, y->o, kind <= ROBERTA ? y->o_b : NULL, a[t], E, E);
        for (int i = 0; i < E; i++) x[t][i] += o[i];
        if (after) layer_norm(x[t], x[t], y->n1, y->n1_b);
        memcpy(h, x[t], sizeof h);
        if (!after) layer_norm(h, x[t], y->n2, NULL);
        feed_forward(o, y, h, kind);
        for (int i = 0; i < E; i++) x[t][i] += o[i];
        if (after) layer_norm(x[t], x[t], y->n2, y->n2_b);
    }
}

/* The normalized embedding of a text, computed with plain loops. */
static void embed_plain(double out[E], const struct weights *w, const int32_t *ids, int n,
                        enum kind kind, enum pooling pool)
{
    static double x[MAX_T][E];
    double sum = 0;

    for (int t = 0; t < n; t++) {
        const float *pos = w->pos + (t + (kind == ROBERTA ? 2 : 0)) * E;
        for (int i = 0; i < E; i++)
            x[t][i] = (double)w->embd[ids[t] * E + i] + (kind <= ROBERTA ? (double)pos[i] : 0) +
                      (kind != MODERN ? (double)w->type[i] : 0);
        layer_norm(x[t], x[t], w->en, kind == MODERN ? NULL : w->en_b);
    }
    for (int l = 0; l < LAYERS; l++) run_layer(x, w, l, n, kind);
    memset(out, 0, E * sizeof *out);
    for (int t = 0; t < n; t++) {
        if (kind == MODERN) layer_norm(x[t], x[t], w->on, NULL);
        if (pool == POOL_MEAN || (pool == POOL_CLS ? t == 0 : t == n - 1))
            for (int i = 0; i < E; i++) out[i] += x[t][i];
    }
    for (int i = 0; i < E; i++) sum += out[i] * out[i];
    for (int i = 0; i < E; i++) out[i] /= sqrt(sum);
}

/* ---- through the engine ---- */

static struct engine *open_engine(const char *path, bool reference, int max_batch)
{
    struct engine_opt o = { .reference = reference,
                            .n_threads = 2,
                            .manual = true,
                            .kv_type = DT_NONE,
                            .max_batch = max_batch };
    struct engine *g = NULL;
    struct err e = { 0 };

    if (engine_open(&g, path, &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static struct request *submit_text(struct engine *g, const int32_t *ids, int n)
{
    struct request *r = request_open();
    struct err e = { 0 };

    for (int i = 0; i < n; i++) ids_push(&r->prompt, ids[i]);
    r->embed = true;
    if (engine_submit(g, r, &e) != OK) fail_msg("%s", e.msg);
    return r;
}

static void check_embeddings(const char *path, const struct weights *w, enum kind kind,
                             enum pooling pool, bool reference)
{
    enum { N = 6 };
    static const int lens[N] = { 1, 33, 7, 20, 2, 12 };
    struct engine *g = open_engine(path, reference, 48);
    struct request *r[N];
    int32_t ids[N][MAX_T];

    for (int i = 0; i < N; i++) {
        for (int k = 0; k < lens[i]; k++) ids[i][k] = (int32_t)(rng_u64(&rng) % VOCAB);
        r[i] = submit_text(g, ids[i], lens[i]);
    }
    while (engine_step(g)) {}
    for (int i = 0; i < N; i++) {
        struct event ev = { 0 };
        double want[E], worst = 0;
        assert_true(request_next(r[i], &ev));
        assert_int_equal(ev.finish, FINISH_STOP);
        embed_plain(want, w, ids[i], lens[i], kind, pool);
        for (int k = 0; k < E; k++) worst = fmax(worst, fabs(want[k] - r[i]->vec[k]));
        if (!(worst < (reference ? 2e-6 : 2e-3)))
            fail_msg("%s, text %d: the largest error is %g", types[kind], i, worst);
        request_unref(r[i]);
    }
    engine_close(g);
}

static void embeddings_of_encoders_agree_with_plain_loops(void **state)
{
    static const struct {
        const char *key;
        enum pooling pooling;
    } pools[] = { { "mean_tokens", POOL_MEAN },
                  { "cls_token", POOL_CLS },
                  { "lasttoken", POOL_LAST } };
    (void)state;

    for (int kind = 0; kind < KINDS; kind++)
        for (int p = 0; p < 3; p++) {
            struct weights *w = random_weights(&rng);
            struct folder f;
            const char *dir = write_encoder(&f, w, (enum kind)kind, pools[p].key);
            check_embeddings(dir, w, (enum kind)kind, pools[p].pooling, true);
            check_embeddings(dir, w, (enum kind)kind, pools[p].pooling, false);
            mem_free(w);
        }
}

/* ---- GGUF ---- */

static void write_gguf(const char *dir, const char *path)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct gguf_item *items;
    struct ggufw *w = NULL;
    struct err e = { 0 };
    int n = 0;

    if (source_open(&src, dir, &e) != OK || hparams_read(&hp, &a, src, &e) != OK ||
        naming_plan(&hp, src, &a, &items, &n, &e) != OK || ggufw_open(&w, path, &e) != OK)
        fail_msg("%s", e.msg);
    if (naming_keys(&hp, w, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < n; i++)
        ggufw_tensor(w, items[i].name, DT_F32, items[i].dims, items[i].n_dims);
    for (int i = 0; i < n; i++)
        for (int64_t r = 0; r < items[i].rows; r++) {
            float row[512], tmp[512];
            naming_row(&items[i], r, DT_F32, row, tmp);
            ggufw_data(w, row, (size_t)items[i].cols * sizeof *row);
        }
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
    arena_release(&a);
    source_close(src);
}

static void a_gguf_file_of_an_encoder_gives_the_same_embeddings(void **state)
{
    (void)state;

    for (int kind = 0; kind < KINDS; kind++) {
        struct weights *w = random_weights(&rng);
        struct folder f;
        char path[512];
        const char *dir = write_encoder(&f, w, (enum kind)kind, "cls_token");
        snprintf(path, sizeof path, "%s.gguf", dir);
        write_gguf(dir, path);
        check_embeddings(path, w, (enum kind)kind, POOL_CLS, true);
        mem_free(w);
    }
}

static void dense_layers_of_an_encoder_are_not_lost_in_gguf(void **state)
{
    struct weights *w = random_weights(&rng);
    struct folder f;
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct gguf_item *items;
    struct err e = { 0 };
    int n = 0;
    const char *dir = write_encoder(&f, w, BERT, "mean_tokens");
    (void)state;

    folder_write(&f, "modules.json",
                 STR("[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
                     "{\"path\":\"2_Dense\",\"type\":\"sentence_transformers.models.Dense\"}]"));
    if (source_open(&src, dir, &e) != OK || hparams_read(&hp, &a, src, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(naming_plan(&hp, src, &a, &items, &n, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "dense layers after the pooling"));
    arena_release(&a);
    source_close(src);
    folder_write(&f, "modules.json", STR("[]")); /* other tests write to the same folder */
    mem_free(w);
}

/* ---- refused requests ---- */

static void an_encoder_refuses_generation_and_texts_longer_than_a_step(void **state)
{
    struct weights *w = random_weights(&rng);
    struct folder f;
    struct engine *g = open_engine(write_encoder(&f, w, BERT, "mean_tokens"), true, 16);
    struct request *r = request_open();
    struct err e = { 0 };
    (void)state;

    for (int i = 0; i < 20; i++) ids_push(&r->prompt, i);
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "embeddings"));
    r->embed = true;
    assert_int_equal(engine_submit(g, r, &e), E_CONTEXT); /* a step has space for 16 tokens */
    assert_non_null(strstr(e.msg, "16"));
    request_unref(r);
    engine_close(g);
    mem_free(w);
}

static void unsupported_pooling_modes_are_refused_by_name(void **state)
{
    struct weights *w = random_weights(&rng);
    struct engine *g = NULL;
    struct folder f;
    struct err e = { 0 };
    const char *dir = write_encoder(&f, w, BERT, "mean_tokens");
    (void)state;

    folder_write(&f, "1_Pooling/config.json",
                 STR("{\"pooling_mode_mean_tokens\":false,\"pooling_mode_max_tokens\":true}"));
    assert_int_equal(engine_open(&g, dir, &(struct engine_opt){ .kv_type = DT_NONE }, &e),
                     E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "pooling"));
    mem_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_of_encoders_agree_with_plain_loops),
        cmocka_unit_test(a_gguf_file_of_an_encoder_gives_the_same_embeddings),
        cmocka_unit_test(dense_layers_of_an_encoder_are_not_lost_in_gguf),
        cmocka_unit_test(an_encoder_refuses_generation_and_texts_longer_than_a_step),
        cmocka_unit_test(unsupported_pooling_modes_are_refused_by_name),
    };
    rng_seed(&rng, 11);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
