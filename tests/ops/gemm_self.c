/* gemm_self.c - matrix-matrix products for many tokens on ARM against products in double over the
 * decoded weights, as a program without a test library and without threads. It can be linked
 * statically and run under an emulator such as qemu-user.
 *
 * Every format, odd rows, columns and tokens, bias, scale and addition. Reads no files; weights are
 * random. Exit status 0: all results agree. */
#include "random_blocks.h"

#include "kernel/cpu/gemm.h"
#include "kernel/cpu/isa_tables.h"

#include <math.h>
#include <stdio.h>

enum { ROWS = 37, COLS = 1280, TOKENS = 139, GAP = 3, ROOM = ROWS * COLS * 4 + 64 };

static float x[TOKENS][COLS + GAP], plain[ROWS * COLS], out[TOKENS][ROWS + GAP], bias[ROWS];
static char w[ROOM];
static _Alignas(64) char packed[TOKENS * COLS * 8], scratch[2 << 20];
static const float untouched = 77;

struct shape {
    int type; /* index into halves */
    int rows, cols, tokens;
    bool bias, add;
    float scale;
    int parts; /* the work is divided as among this many threads */
};

static bool is_plain(enum dtype t) { return t == DT_F32 || t == DT_F16 || t == DT_BF16; }

/* The allowed error of w x: eight standard deviations of the rounding of x to 8 bits with a scale per
 * 32 columns; of floats only the rounding of sums. */
static double allowed_error(const float *row, const float *at, int cols, bool exact)
{
    double var = 0, size = 0;

    for (int c = 0; c < cols; c += 32) {
        int n = cols - c < 32 ? cols - c : 32;
        double top = 0, ww = 0;
        for (int i = c; i < c + n; i++) {
            top = fmax(top, fabs((double)at[i]));
            ww += (double)row[i] * row[i];
            size += fabs((double)row[i] * at[i]);
        }
        var += ww * (top / 127) * (top / 127) / 12;
    }
    return exact ? 2e-6 * size : 8 * sqrt(var) + 1e-5 * size;
}

static void fill_weights(const struct shape *s, struct rng *rng)
{
    enum dtype t = halves[s->type].type;
    uint64_t row = 0;

    dtype_row_bytes(t, (uint64_t)s->cols, &row);
    if (is_plain(t)) {
        for (int i = 0; i < s->rows * s->cols; i++) plain[i] = rng_normal(rng);
        quant_encode(t, plain, w, (int64_t)s->rows * s->cols);
    } else {
        fill_random_blocks(s->type, w, (size_t)s->rows * (size_t)row, rng);
    }
    quant_decode(t, w, plain, (int64_t)s->rows * s->cols);
}

/* Packs and multiplies in s->parts parts. */
static void run_gemm(const struct gemm *g, const struct shape *s)
{
    enum dtype t = halves[s->type].type;
    struct tensor xt = { DT_F32, s->tokens, s->cols, COLS + GAP, x[0] },
                  to = { DT_F32, s->tokens, s->rows, ROWS + GAP, out[0] };
    struct gemm_job job = {
        t, w, s->rows, s->cols, s->tokens, &to, s->bias ? bias : NULL, s->scale, s->add, NULL
    };

    memset(packed, 0xff, sizeof packed);
    memset(scratch, 0xff, sizeof scratch);
    for (int pass = 0; pass < 2; pass++) {
        int n = pass ? s->rows : s->tokens, unit = pass ? g->row_unit : g->token_unit;
        int per = ((n + unit - 1) / unit + s->parts - 1) / s->parts * unit;
        for (int a = 0; a < n; a += per) {
            int b = a + per < n ? a + per : n;
            if (pass == 0) g->pack(t, packed, &xt, a, b);
            else g->rows(&job, packed, a, b, scratch);
        }
    }
}

/* The number of wrong results. */
static int compare_results(const struct shape *s)
{
    bool exact = is_plain(halves[s->type].type);
    int bad = 0;

    for (int t = 0; t < s->tokens; t++)
        for (int r = 0; r < s->rows + GAP; r++) {
            const float *row = plain + (size_t)r * (size_t)s->cols;
            double want = 0, may = 0;
            if (r < s->rows) {
                for (int c = 0; c < s->cols; c++) want += (double)row[c] * x[t][c];
                want = want * s->scale + (s->bias ? bias[r] : 0) + (s->add ? untouched : 0);
                may = s->scale * allowed_error(row, x[t], s->cols, exact) + 1e-5 * fabs(want);
            } else {
                want = untouched; /* the gap behind a row is not written */
            }
            if (!(fabs(out[t][r] - want) <= may)) bad++;
        }
    return bad;
}

static int check(const struct gemm *g, struct shape s, struct rng *rng)
{
    enum dtype t = halves[s.type].type;

    fill_weights(&s, rng);
    for (int i = 0; i < TOKENS; i++)
        for (int r = 0; r < ROWS + GAP; r++) out[i][r] = untouched;
    if (g->x_bytes(t, s.tokens, s.cols) > sizeof packed ||
        g->scratch_bytes(t, s.cols) > sizeof scratch) {
        printf("%s: more memory is needed than this program has\n", g->name);
        return 1;
    }
    run_gemm(g, &s);
    int bad = compare_results(&s);
    if (bad)
        printf("%s %s %d x %d, %d tokens: %d results are wrong\n", g->name, dtype_name(t), s.rows,
               s.cols, s.tokens, bad);
    return bad;
}

static int check_all(const struct gemm *g, struct rng *rng)
{
    static const int rows[] = { 1, 7, 8, 16, 17, 37 }, odd[] = { 1, 5, 31, 77, 255, 300, 513 },
                     tokens[] = { 1, 2, 3, 4, 5, 8, 9, 14, 139 };
    static const int small[] = { 32, 96, 288, 1056, 1280 }, large[] = { 256, 512, 768, 1024, 1280 };
    int bad = 0, n = 0;

    for (int k = 0; k < N_TYPES; k++) {
        const struct dtype_info *d = dtype_info((int)halves[k].type);
        if (!g->can(halves[k].type)) continue;
        for (int i = 0; i < 20; i++, n++) {
            int cols = d->block == 256 ? large[i % 5] : d->block == 32 ? small[i % 5] : odd[i % 7];
            struct shape s = { k,          rows[i % 6],     cols,     tokens[i % 9], i % 4 == 1,
                               i % 4 == 2, i % 3 ? 1 : .5f, 1 + i % 2 };
            bad += check(g, s, rng);
        }
    }
    printf("%s: %d matrix-matrix products compared, %d results wrong\n", g->name, n, bad);
    return bad || n == 0;
}

int main(void)
{
    struct rng rng;
    int bad = 0;

    rng_seed(&rng, 7);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < COLS; i++) x[t][i] = rng_normal(&rng);
    for (int i = 0; i < ROWS; i++) bias[i] = rng_normal(&rng);
#if defined(__aarch64__)
    if (!isa_by_name("neon")) {
        printf("this CPU has no dot products: the reference computes\n");
        return 0;
    }
    bad += check_all(&gemm_neon, &rng);
    if (isa_has_i8mm()) bad += check_all(&gemm_i8mm, &rng);
    else printf("this CPU has no I8MM\n");
#endif
    return bad != 0;
}
