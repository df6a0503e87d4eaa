/* Quantized Hugging Face folders on the GPU: matrix products of every layout of DT_GROUPED against
 * the reference backend, over odd shapes and group sizes; the memory that they take; and whole
 * folders against their golden logits.
 *
 * Random weights, tests/golden/quant, and ../shared/fixtures/quant (skipped without it). Skipped
 * without a GPU. */
#include "model_world.h"
/* Behind model_world.h, whose functions have variables of the same names as its globals. */
#include "cuda_both.h"

#include "kernel/quant.h"

#include <dirent.h>

/* ---- random matrices ---- */

struct scheme {
    const char *name;
    enum group_code code;
    enum group_scale scale;
    int group; /* 0: a whole row */
    bool zeros;
    int zero;
    float factor;
    bool ordered;
    bool kept; /* at its bits; otherwise it becomes F16 */
};

static const struct scheme schemes[] = {
    { "gptq 4, groups of 128", CODE_U4, SCALE_F16, 128, true, 1, 1, false, true },
    { "gptq 4, groups of 64", CODE_U4, SCALE_F16, 64, true, 1, 1, false, true },
    { "gptq 4, groups of 32, ordered", CODE_U4, SCALE_F16, 32, true, 1, 1, true, true },
    { "gptq 4, groups of 128, ordered", CODE_U4, SCALE_F16, 128, true, 1, 1, true, true },
    { "gptq 8, groups of 128", CODE_U8, SCALE_F16, 128, true, 0, 1, false, true },
    { "gptq 2, groups of 128", CODE_U2, SCALE_F16, 128, true, 0, 1, false, true },
    { "awq 4, groups of 256", CODE_U4, SCALE_F16, 256, true, 0, 1, false, true },
    { "w4a16, groups of 32", CODE_U4, SCALE_BF16, 32, false, 8, 1, false, true },
    { "w4a16, groups of 32, zero points", CODE_U4, SCALE_BF16, 32, true, 0, 0.25f, false, true },
    { "w4a16, rows", CODE_U4, SCALE_BF16, 0, false, 8, 1, false, true },
    { "w8a16, rows", CODE_U8, SCALE_BF16, 0, false, 128, 1, false, true },
    { "w8a8, rows, zero points", CODE_U8, SCALE_F32, 0, true, 0, 1, false, true },
    { "8 bits, groups of 64", CODE_U8, SCALE_F16, 64, false, 128, 1, false, false },
    { "fp8, blocks", CODE_E4M3, SCALE_F32, 128, false, 0, 1, false, true },
    { "fp8, rows", CODE_E4M3, SCALE_BF16, 0, false, 0, 1, false, true },
    { "fp8, one scale", CODE_E4M3, SCALE_NONE, 0, false, 0, 0.02f, false, true },
    { "fp8, groups of 64, ordered", CODE_E4M3, SCALE_F32, 64, false, 0, 1, true, true },
    { "e5m2, rows", CODE_E5M2, SCALE_F32, 0, false, 0, 1, false, false },
    { "nvfp4", CODE_E2M1, SCALE_E4M3, 16, false, 0, 0.01f, false, true },
    { "mxfp4", CODE_E2M1, SCALE_E8M0, 32, false, 0, 1, false, true },
    { "bitnet", CODE_U2, SCALE_NONE, 0, false, 1, 0.05f, false, true },
    { "groups of 40", CODE_U4, SCALE_F16, 40, false, 8, 1, true, false },
};

/* A weight on the reference backend (c) and on the GPU (g), and its memory. */
struct pair {
    struct weight c, g;
    struct grouped group;
    char *bytes;
    int32_t *order;
};

static void put_scale(const struct grouped *g, char *row, int i)
{
    float v = 0.01f + 0.05f * (float)rng_unit(&rng);
    uint16_t h = g->scale == SCALE_F16 ? f32_to_f16(v) : f32_to_bf16(v);
    uint8_t b =
        (uint8_t)(g->scale == SCALE_E8M0 ? 118 + rng_u64(&rng) % 8 : 1 + rng_u64(&rng) % 0x40);
    char *to = row + g->scales_at + (size_t)(i * group_scale_bytes(g->scale));

    if (g->scale == SCALE_F32) memcpy(to, &v, 4);
    else if (g->scale == SCALE_F16 || g->scale == SCALE_BF16) memcpy(to, &h, 2);
    else if (g->scale != SCALE_NONE) *to = (char)b;
}

/* Zero points are near the middle of the codes, as real ones are. */
static void put_zero(const struct grouped *g, char *row, int i)
{
    int bits = g->code == CODE_U2 ? 2 : g->code == CODE_U4 ? 4 : 8, half = 1 << (bits - 1);

    row[g->zeros_at + (size_t)i] = (char)(half - g->zero + (int)(rng_u64(&rng) % 3) - 1);
}

static void pair_init(struct pair *p, const struct scheme *s, int rows, int cols)
{
    struct grouped *g = &p->group;
    struct err e = { 0 };

    *p = (struct pair){ .group = { .code = s->code,
                                   .scale = s->scale,
                                   .zeros = s->zeros,
                                   .zero = s->zero,
                                   .cols = cols,
                                   .group = s->group ? s->group : cols,
                                   .factor = s->factor } };
    grouped_measure(g);
    p->bytes = mem_alloc((size_t)rows * g->row_bytes);
    for (size_t i = 0; i < (size_t)rows * g->row_bytes; i++) {
        p->bytes[i] = (char)rng_u64(&rng);
        if (s->code == CODE_E4M3 || s->code == CODE_E5M2) p->bytes[i] &= (char)0xbf; /* no NaN */
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < g->n_groups; i++) {
            put_scale(g, p->bytes + (size_t)r * g->row_bytes, i);
            if (s->zeros) put_zero(g, p->bytes + (size_t)r * g->row_bytes, i);
        }
    p->order = mem_array((size_t)cols, sizeof *p->order);
    for (int c = 0; c < cols; c++) p->order[c] = (int)((7 * (int64_t)c + 3 + rows / 16 % 2) % cols);
    if (s->ordered && cols % 7) g->order = p->order;
    p->c = (struct weight){
        .type = DT_GROUPED, .rows = rows, .cols = cols, .n = 1, .data = p->bytes, .group = g
    };
    p->g = p->c;
    if (ref->weight_put(ref, &p->c, &e) != OK || gpu->weight_put(gpu, &p->g, &e) != OK ||
        ref->weights_finish(ref, &e) != OK)
        fail_msg("%s", e.msg);
}

static void pair_free(struct pair *p)
{
    gpu->weight_drop(gpu, &p->g);
    ref->weight_drop(ref, &p->c);
    mem_free(p->bytes);
    mem_free(p->order);
}

static void finish_weights(void)
{
    struct err e = { 0 };
    if (gpu->weights_finish(gpu, &e) != OK) fail_msg("%s", e.msg);
}

/* The magnitude of products with numbers near 1: smaller results are differences of large terms. */
static double expected_size(const struct pair *p)
{
    int cols = p->c.cols, rows = p->c.rows;
    float *w = mem_array((size_t)cols, sizeof *w);
    double sum = 0;

    for (int r = 0; r < rows; r++) {
        grouped_decode(&p->group, p->bytes + (size_t)r * p->group.row_bytes, 0, cols, w);
        for (int c = 0; c < cols; c++) sum += (double)w[c] * (double)w[c];
    }
    mem_free(w);
    return sqrt(sum / rows);
}

static const struct {
    int rows, cols;
} shapes[] = { { 1, 128 },  { 33, 256 },  { 64, 192 },  { 16, 320 }, { 129, 1024 },
               { 7, 96 },   { 17, 72 },   { 520, 640 }, { 48, 100 }, { 40, 1408 },
               { 100, 33 }, { 30, 4096 }, { 257, 384 } };

/* A group must not be longer than a row. Groups of E2M1 codes are whole in every row. */
static bool is_possible(const struct scheme *s, int cols)
{
    return s->group <= cols && (s->code != CODE_E2M1 || cols % s->group == 0);
}

/* x is rounded to 11 bits, and so are scaled weights. */
#define TOLERANCE 3e-3

static double check_product(const struct scheme *s, int rows, int cols, int tokens, int i)
{
    struct pair w, w2;
    double worst;

    pair_init(&w, s, rows, cols), pair_init(&w2, s, rows + 16, cols);
    struct both x = both_new(tokens, cols, i % 2 * 4, 1), out = both_new(tokens, rows, i % 3, 1),
                out2 = both_new(tokens, rows + 16, 0, 1), bias = both_new(1, rows, 0, 1);
    finish_weights();
    struct linear c[2] = { { out.c, &w.c, i % 2 ? bias.c.data : NULL, i % 4 > 1, i % 3 ? 0 : 0.5f },
                           { out2.c, &w2.c, NULL, false, 0 } };
    struct linear g[2] = { { out.g, &w.g, i % 2 ? bias.g.data : NULL, i % 4 > 1, i % 3 ? 0 : 0.5f },
                           { out2.g, &w2.g, NULL, false, 0 } };
    ref->linear(ref, &x.c, c, 2), gpu->linear(gpu, &x.g, g, 2);
    worst = fmax(both_error_of(&out, expected_size(&w)), both_error_of(&out2, expected_size(&w2)));
    if (!(worst < TOLERANCE))
        print_message("%s: %d tokens, %d x %d, case %d: error %g\n", s->name, tokens, rows, cols, i,
                      worst);
    both_free(&x), both_free(&out), both_free(&out2), both_free(&bias);
    pair_free(&w), pair_free(&w2);
    return worst;
}

static void matrix_products_of_every_scheme_agree(void **state)
{
    static const int tokens[] = { 1, 2, 4, 5, 9, 33, 70, 300 };
    int bad = 0;

    (void)state;
    need_gpu();
    EACH(s, schemes)
    {
        double worst[2] = { 0, 0 };
        int i = 0;
        EACH(k, shapes) EACH(t, tokens)
        {
            if (!is_possible(&schemes[s], shapes[k].cols) || !is_selected()) continue;
            double e = check_product(&schemes[s], shapes[k].rows, shapes[k].cols, tokens[t], i++);
            worst[tokens[t] > 4] = fmax(worst[tokens[t] > 4], e);
        }
        bool right = worst[0] < TOLERANCE && worst[1] < TOLERANCE;
        print_message("matrix product, %-34s largest error: few tokens %.2e, many %.2e%s\n",
                      schemes[s].name, worst[0], worst[1], right ? "" : "  TOO FAR OFF");
        bad += !right;
    }
    assert_int_equal(bad, 0);
}

/* norm, gate and up, activation, down and the next norm and product: the operations are fused, and
 * each prepares x for the next. gate and up have one order of columns, or two. */
static double check_block(const struct scheme *s, int tokens, bool layer)
{
    int cols = 512, ff = 768, rows = 100;
    struct pair gate, up, down, last;

    pair_init(&gate, s, ff, cols), pair_init(&up, s, ff, cols), pair_init(&down, s, cols, ff);
    pair_init(&last, s, rows, cols);
    struct both x = both_new(tokens, cols, 0, 3), h = both_new(tokens, cols, 0, 1),
                nw = both_new(1, cols, 0, 1), a = both_new(tokens, ff, 0, 1),
                b = both_new(tokens, ff, 0, 1), out = both_new(tokens, rows, 0, 1);
    float small = (float)(0.1 / expected_size(&down) / expected_size(&gate) / expected_size(&up));
    finish_weights();
    for (int i = 0; i < 2; i++) {
        struct backend *be = i ? gpu : ref;
        struct tensor *tx = i ? &x.g : &x.c, *th = i ? &h.g : &h.c;
        struct tensor *ta = i ? &a.g : &a.c, *tb = i ? &b.g : &b.c;
        struct linear gu[2] = { { *ta, i ? &gate.g : &gate.c, NULL, false, 0 },
                                { *tb, i ? &up.g : &up.c, NULL, false, 0 } };
        struct linear d = { *tx, i ? &down.g : &down.c, NULL, true, small };
        struct linear l = { i ? out.g : out.c, i ? &last.g : &last.c, NULL, false, 0 };
        const float *w = i ? nw.g.data : nw.c.data;
        if (layer) be->layernorm(be, th, tx, w, NULL, 1e-5f);
        else be->rmsnorm(be, th, tx, w, 1e-5f);
        be->linear(be, th, gu, 2);
        be->act(be, ta, ta, tb, ACT_SILU);
        be->linear(be, ta, &d, 1);
        be->rmsnorm(be, th, tx, w, 1e-5f);
        be->linear(be, th, &l, 1);
    }
    double e = fmax(both_error(&x), both_error_of(&out, expected_size(&last)));
    both_free(&x), both_free(&h), both_free(&nw), both_free(&a), both_free(&b), both_free(&out);
    pair_free(&gate), pair_free(&up), pair_free(&down), pair_free(&last);
    return e;
}

static void fused_blocks_of_every_scheme_equal_single_operations(void **state)
{
    static const int tokens[] = { 1, 3, 6, 40, 200 };
    int bad = 0;

    (void)state;
    need_gpu();
    EACH(s, schemes)
    {
        double worst = 0;
        EACH(t, tokens) for (int layer = 0; layer < 2; layer++)
        {
            if (is_selected()) worst = fmax(worst, check_block(&schemes[s], tokens[t], layer));
        }
        print_message("fused block, %-34s largest error %.2e%s\n", schemes[s].name, worst,
                      worst < 2e-2 ? "" : "  TOO FAR OFF");
        bad += !(worst < 2e-2);
    }
    assert_int_equal(bad, 0);
}

static void embeddings_of_every_scheme_agree(void **state)
{
    (void)state;
    need_gpu();
    EACH(s, schemes) EACH(k, shapes)
    {
        int cols = shapes[k].cols, n = 9;
        struct pair w;
        struct ints ids;
        if (schemes[s].ordered || !is_possible(&schemes[s], cols) || !is_selected()) continue;
        pair_init(&w, &schemes[s], 50, cols);
        struct both out = both_new(n, cols, 3, 1);
        finish_weights();
        for (int j = 0; j < n; j++) ids.c[j] = (int32_t)(rng_u64(&rng) % 50);
        ints_upload(&ids, n);
        ref->embed(ref, &out.c, &w.c, ids.c, 1.5f), gpu->embed(gpu, &out.g, &w.g, ids.g, 1.5f);
        assert_both_close(schemes[s].name, &out, 1e-3);
        ints_free(&ids, n);
        both_free(&out), pair_free(&w);
    }
}

/* ---- memory ---- */

static void weights_take_the_memory_of_their_bits(void **state)
{
    (void)state;
    need_gpu();
    EACH(s, schemes)
    {
        int rows = 512, cols = 4096;
        struct pair w;
        if (!schemes[s].kept) continue;
        pair_init(&w, &schemes[s], rows, cols);
        finish_weights();
        double file = (double)w.group.row_bytes * rows + (w.group.order ? cols * 4.0 : 0),
               ratio = (double)w.g.packed_bytes / file;
        print_message("memory, %-34s %.3f of the packed rows\n", schemes[s].name, ratio);
        assert_true(ratio <= 1.1);
        pair_free(&w);
    }
}

/* ---- folders ---- */

static struct world open_gpu_world(const char *path)
{
    struct world w = { .be = cuda_open() };
    struct decoder_opt opt = world_opt(DT_F16);
    struct err e = { 0 };

    if (source_open(&w.src, path, &e) != OK || open_model(&w.m, &w.arena, w.src, w.be, &e) != OK ||
        block_pool_open(&w.pool, opt.n_blocks, &e) != OK ||
        decoder_open(&w.dec, w.m, &opt, &e) != OK)
        fail_msg("%s: %s", path, e.msg);
    return w;
}

static void close_gpu_world(struct world *w)
{
    runner_close(w->dec);
    block_pool_close(w->pool);
    model_close(w->m);
    arena_release(&w->arena);
    assert_int_equal(w->be->used_bytes[MEM_WEIGHTS], 0);
    backend_close(w->be);
    source_close(w->src);
}

/* The worst error of all tokens, given to the model `step` at a time: prefill, or decoding. */
static double error_at_step(struct world *w, const struct source *g, int step)
{
    const struct source_tensor *golden = source_find(g, "logits");
    int n_vocab = w->m->hp.n_vocab;
    float *row = mem_array((size_t)n_vocab, sizeof *row);
    double worst = 0;
    int32_t ids[48];
    struct chain c;

    read_ids(g, "input_ids", ids, 48);
    assert_true(chain_init(&c, 64));
    assert_true(chain_reserve(&c, w->pool, 64));
    for (int at = 0; at < 48; at += step) {
        int n = 48 - at < step ? 48 - at : step;
        const float *logits = run_tokens(w, &c, ids + at, at, n);
        for (int t = 0; t < n; t++) {
            memcpy(row, (const char *)golden->data + (size_t)(at + t) * (size_t)n_vocab * 4,
                   (size_t)n_vocab * 4);
            double e = relative_error(logits + (size_t)t * (size_t)n_vocab, row, n_vocab);
            if (!(e <= worst)) worst = e;
        }
    }
    chain_release(&c, w->pool);
    mem_free(row);
    return worst;
}

/* Experts whose columns are in another order are the one case that becomes F16 on a GPU. */
static bool is_widened(const char *name)
{
    return strncmp(name, "qwen3_moe", 9) == 0 && strstr(name, "actorder");
}

static int check_folder(const char *top, const char *name)
{
    char folder[800];
    snprintf(folder, sizeof folder, "%s/%s", top, name);
    struct world w = open_gpu_world(folder);
    char *path = path_join(folder, "golden.safetensors");
    struct source *g = NULL;
    double ratio = (double)w.be->used_bytes[MEM_WEIGHTS] / (double)source_bytes(w.src);

    assert_int_equal(source_open(&g, path, NULL), OK);
    double all = error_at_step(&w, g, 48), one = error_at_step(&w, g, 1),
           few = error_at_step(&w, g, 3), some = error_at_step(&w, g, 11);
    bool right =
        all < 5e-3 && one < 5e-3 && few < 5e-3 && some < 5e-3 && (ratio <= 1.1 || is_widened(name));
    print_message("%-36s error of 48 tokens %.2e, 1 %.2e, 3 %.2e, 11 %.2e; memory %.3f%s\n", name,
                  all, one, few, some, ratio, right ? "" : "  TOO FAR OFF");
    source_close(g);
    mem_free(path);
    close_gpu_world(&w);
    return !right;
}

static int check_folders(const char *top)
{
    struct dirent **list = NULL;
    int n = scandir(top, &list, NULL, alphasort), bad = 0;

    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        if (name[0] != '.' && strchr(name, '.') && strcmp(name, "README.md") != 0 && is_selected())
            bad += check_folder(top, name);
        free(list[i]);
    }
    free(list);
    return bad;
}

static void logits_of_quantized_folders_agree(void **state)
{
    (void)state;
    need_gpu();
    assert_int_equal(check_folders(repo("tests/golden/quant")), 0);
}

static void logits_of_all_schemes_agree(void **state)
{
    char top[512];
    (void)state;
    need_gpu();
    need_shared("fixtures/quant");
    snprintf(top, sizeof top, "%s", shared("fixtures/quant"));
    assert_int_equal(check_folders(top), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_products_of_every_scheme_agree),
        cmocka_unit_test(fused_blocks_of_every_scheme_equal_single_operations),
        cmocka_unit_test(embeddings_of_every_scheme_agree),
        cmocka_unit_test(weights_take_the_memory_of_their_bits),
        cmocka_unit_test(logits_of_quantized_folders_agree),
        cmocka_unit_test(logits_of_all_schemes_agree),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
