/* tern bench: tokens/s, GB/s, share of the machine's read bandwidth. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/rng.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "kv/chain.h"
#include "model/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_BATCHES 8
#define STEP_TOKENS 512

static const struct verb verb = {
    "bench",
    "tern bench [-m MODEL] [-p 512] [-n 128] [-t N] [-r 5] [--batch 1,4,16] [-o json|md]",
    "Measures a model on this machine: prefill of P tokens, decode of N tokens from an empty context,\n"
    "decode of several sequences at once, all without sampling; the share of the memory's read bandwidth,\n"
    "which is measured in the same run; load time and the time from the start of the command to the first\n"
    "token of a short prompt. Each figure is the median of R repeats, with its spread.\n\n"
    "  tern bench -m model.gguf -p 512 -n 128 -r 5 --batch 1,4,16 -o md",
};

struct figure {
    double v[64];
    int n;
};

struct bench {
    const char *path;
    int n_prompt, n_gen, n_threads, n_repeat, n_batches, batches[MAX_BATCHES];
    bool progress;
    struct source *src;
    struct backend *be;
    struct model *model;
    struct block_pool *pool;
    struct decoder *dec;
    struct chain *chains;
    int n_chains;
    struct rng rng;
    int32_t *ids, *pos, *seq, *out, *table;
    int max_tokens, table_stride;
    double load_ms, first_ms, bandwidth_gb_s;
    uint64_t token_bytes;
    struct figure prompt, decode, by_batch[MAX_BATCHES];
    long peak_rss;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(struct figure *f)
{
    if (f->n == 0) return 0;
    qsort(f->v, (size_t)f->n, sizeof f->v[0], compare);
    return f->n % 2 ? f->v[f->n / 2] : (f->v[f->n / 2 - 1] + f->v[f->n / 2]) / 2;
}

static int parse_batches(struct bench *b, const char *list, struct err *e)
{
    for (struct str rest = str_c(list); rest.n;) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        int64_t n;
        if (!str_to_i64(one, &n) || n < 1 || n > 256 || b->n_batches == MAX_BATCHES)
            return err_set(e, E_INVALID, "--batch takes up to %d numbers from 1 to 256 with commas, found '%s'",
                           MAX_BATCHES, list);
        b->batches[b->n_batches++] = (int)n;
        rest = str_skip(rest, one.n + 1);
    }
    return OK;
}

static int open_all(struct bench *b, struct err *e)
{
    struct backend_opt opt = { .n_threads = b->n_threads };
    int rc, max_seqs = 1, per_seq;

    for (int i = 0; i < b->n_batches; i++)
        if (b->batches[i] > max_seqs) max_seqs = b->batches[i];
    per_seq = (b->n_prompt > b->n_gen ? b->n_prompt : b->n_gen) + 32;
    if (max_seqs > 1 && b->n_prompt > b->n_gen) per_seq = b->n_gen + 32;
    b->n_chains = max_seqs;
    b->max_tokens = b->n_prompt + 32 > b->n_gen + 32 ? b->n_prompt + 32 : b->n_gen + 32;
    b->table_stride = b->max_tokens / KV_BLOCK + 1;
    int n_blocks = b->table_stride + (max_seqs - 1) * (per_seq / KV_BLOCK + 1);

    if ((rc = source_open(&b->src, b->path, e)) != OK) return rc;
    if ((rc = backend_open(&b->be, &opt, e)) != OK) return rc;
    if ((rc = model_open(&b->model, b->src, b->be, e)) != OK) return rc;
    if ((rc = block_pool_open(&b->pool, b->be, model_kvshape(b->model), b->model->hp.n_layers, DT_F16, n_blocks,
                              e)) != OK)
        return rc;
    struct decoder_opt dopt = { STEP_TOKENS > max_seqs ? STEP_TOKENS : max_seqs, max_seqs, b->table_stride,
                                max_seqs };
    if ((rc = decoder_open(&b->dec, b->model, b->pool, dopt, e)) != OK) return rc;

    b->chains = mem_array((size_t)max_seqs, sizeof *b->chains);
    for (int i = 0; i < max_seqs; i++) chain_init(&b->chains[i], b->max_tokens);
    int32_t **arrays[] = { &b->ids, &b->pos, &b->seq, &b->out };
    for (size_t i = 0; i < 4; i++) *arrays[i] = mem_array((size_t)dopt.max_tokens, sizeof(int32_t));
    b->table = mem_array((size_t)max_seqs * (size_t)b->table_stride, sizeof(int32_t));
    rng_seed(&b->rng, 1);
    return OK;
}

static void close_all(struct bench *b)
{
    for (int i = 0; b->chains && i < b->n_chains; i++) chain_release(&b->chains[i], b->pool);
    mem_free(b->chains);
    mem_free(b->ids), mem_free(b->pos), mem_free(b->seq), mem_free(b->out), mem_free(b->table);
    decoder_close(b->dec);
    block_pool_close(b->pool);
    model_close(b->model);
    backend_close(b->be);
    source_close(b->src);
}

/* One step: `n` tokens of each of n_seqs sequences from position `at`, logits of the last ones. */
static int step(struct bench *b, int n_seqs, int at, int n, struct err *e)
{
    const float *logits;
    int t = 0;

    for (int s = 0; s < n_seqs; s++) {
        if (!chain_reserve(&b->chains[s], b->pool, at + n))
            return err_set(e, E_INTERNAL, "bench: out of KV blocks at token %d", at + n);
        memcpy(b->table + (size_t)s * (size_t)b->table_stride, b->chains[s].blocks,
               (size_t)b->chains[s].n * sizeof(int32_t));
        for (int i = 0; i < n; i++, t++) {
            b->ids[t] = (int32_t)(rng_u64(&b->rng) % (uint64_t)b->model->hp.n_vocab);
            b->pos[t] = at + i;
            b->seq[t] = s;
        }
        b->out[s] = t - 1;
    }
    struct batch batch = { .n_tokens = t, .ids = b->ids, .pos = b->pos, .seq = b->seq, .n_seqs = n_seqs,
                           .table = b->table, .table_stride = b->table_stride, .n_out = n_seqs, .out_rows = b->out };
    return decoder_run(b->dec, &batch, &logits, e);
}

static int prefill(struct bench *b, int n, double *tok_s, struct err *e)
{
    uint64_t start = clock_ns();
    int rc = OK;

    chain_truncate(&b->chains[0], b->pool, 0);
    for (int at = 0; at < n && rc == OK; at += STEP_TOKENS)
        rc = step(b, 1, at, n - at < STEP_TOKENS ? n - at : STEP_TOKENS, e);
    *tok_s = n * 1e3 / clock_ms_since(start);
    return rc;
}

static int decode(struct bench *b, int n_seqs, int n, double *tok_s, struct err *e)
{
    uint64_t start;
    int rc = OK;

    for (int i = 0; i < b->n_chains; i++) chain_truncate(&b->chains[i], b->pool, 0);
    start = clock_ns();
    for (int at = 0; at < n && rc == OK; at++) rc = step(b, n_seqs, at, 1, e);
    *tok_s = (double)n_seqs * n * 1e3 / clock_ms_since(start);
    return rc;
}

typedef uint64_t lanes __attribute__((vector_size(64)));

struct reading {
    const lanes *p;
    size_t n;
    uint64_t sink[64];
};

/* The same loop for each width of vectors: with narrow ones the loop is slower than the memory. */
#define READ_LOOP(name, attr)                                                                    \
    attr static uint64_t name(const lanes *p, size_t n)                                          \
    {                                                                                            \
        lanes a = { 0 }, b = a;                                                                  \
        for (size_t i = 0; i < n; i += 4) {                                                      \
            __builtin_prefetch((const char *)(p + i) + 16384, 0, 2);                             \
            __builtin_prefetch((const char *)(p + i) + 16384 + 64, 0, 2);                        \
            __builtin_prefetch((const char *)(p + i) + 16384 + 128, 0, 2);                       \
            __builtin_prefetch((const char *)(p + i) + 16384 + 192, 0, 2);                       \
            a ^= p[i] ^ p[i + 1];                                                                \
            b ^= p[i + 2] ^ p[i + 3];                                                            \
        }                                                                                        \
        a ^= b;                                                                                  \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];                            \
    }

READ_LOOP(read_plain, )
#ifdef __x86_64__
READ_LOOP(read_avx2, __attribute__((target("avx2"))))
READ_LOOP(read_avx512, __attribute__((target("avx512f"))))
#endif

static void read_part(void *arg, int t, int n)
{
    struct reading *r = arg;
    size_t part = r->n / (size_t)n / 4 * 4;
    uint64_t (*read)(const lanes *, size_t) = read_plain;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) read = read_avx512;
    else if (__builtin_cpu_supports("avx2")) read = read_avx2;
#endif
    r->sink[t % 64] += read(r->p + part * (size_t)t, part);
}

/* Read bandwidth with the same number of threads, over memory that no cache holds: the best of
 * several, for a limit is what can be reached. */
static double bandwidth(const struct bench *b)
{
    size_t bytes = (size_t)1 << 30;
    struct par *par = NULL;
    double best = 0;
    void *p = NULL;

    while (bytes >= (size_t)1 << 26 && !(p = mem_try_aligned(bytes))) bytes /= 2;
    if (!p || par_open(&par, (struct par_opt){ b->n_threads, true }, NULL) != OK) {
        mem_free_aligned(p, bytes);
        return 0;
    }
    memset(p, 1, bytes);
    struct reading r = { .p = p, .n = bytes / sizeof(lanes) };
    for (int i = 0; i < 5; i++) {
        uint64_t start = clock_ns();
        par_run(par, read_part, &r);
        double gb_s = (double)bytes / 1e6 / clock_ms_since(start);
        if (gb_s > best) best = gb_s;
    }
    volatile uint64_t keep = r.sink[0];
    (void)keep;
    par_close(par);
    mem_free_aligned(p, bytes);
    return best;
}

static void note(const struct bench *b, const char *what, int i)
{
    if (b->progress) fprintf(stderr, "\rtern bench: %s %d/%d        ", what, i + 1, b->n_repeat), fflush(stderr);
}

static int measure(struct bench *b, uint64_t start_ns, struct err *e)
{
    struct rusage ru;
    double v;
    int rc;

    b->load_ms = clock_ms_since(start_ns);
    if ((rc = step(b, 1, 0, 8, e)) != OK) return rc;
    b->first_ms = clock_ms_since(start_ns);
    for (int i = -1; i < b->n_repeat && b->n_prompt; i++) {          /* -1: warm-up, not counted */
        note(b, "prefill", i < 0 ? 0 : i);
        if ((rc = prefill(b, b->n_prompt, &v, e)) != OK) return rc;
        if (i >= 0) b->prompt.v[b->prompt.n++] = v;
    }
    for (int i = 0; i < b->n_repeat && b->n_gen; i++) {
        note(b, "decode", i);
        if ((rc = decode(b, 1, b->n_gen, &v, e)) != OK) return rc;
        b->decode.v[b->decode.n++] = v;
    }
    for (int k = 0; k < b->n_batches; k++)
        for (int i = 0; i < b->n_repeat; i++) {
            note(b, "batch", i);
            if ((rc = decode(b, b->batches[k], b->n_gen ? b->n_gen : 32, &v, e)) != OK) return rc;
            b->by_batch[k].v[b->by_batch[k].n++] = v;
        }
    if (b->progress) fprintf(stderr, "\r%40s\r", "");
    getrusage(RUSAGE_SELF, &ru);
    b->peak_rss = ru.ru_maxrss * 1024;
    b->bandwidth_gb_s = bandwidth(b);

    const struct model *m = b->model;
    uint64_t embd = 0;
    if (m->head.rows && dtype_row_bytes(m->embd.type, (uint64_t)m->embd.cols, &embd)) embd *= (uint64_t)m->embd.rows;
    b->token_bytes = m->weight_bytes - embd;                         /* an untied embedding gives one row */
    return OK;
}

static void figure_json(struct jsonw *w, const char *name, struct figure *f)
{
    char key[64];
    double mid = median(f);

    jsonw_key(w, name), jsonw_num(w, mid);
    snprintf(key, sizeof key, "%s_spread", name);
    jsonw_key(w, key), jsonw_arr(w);
    jsonw_num(w, f->n ? f->v[0] : 0), jsonw_num(w, f->n ? f->v[f->n - 1] : 0);
    jsonw_end(w);
}

static void print_json(struct bench *b)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    double gb_s = median(&b->decode) * (double)b->token_bytes / 1e9;

    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(b->path));
    jsonw_key(&w, "device"), jsonw_str(&w, str_c(b->be->detail));
    jsonw_key(&w, "n_prompt"), jsonw_int(&w, b->n_prompt);
    jsonw_key(&w, "n_gen"), jsonw_int(&w, b->n_gen);
    jsonw_key(&w, "repeats"), jsonw_int(&w, b->n_repeat);
    figure_json(&w, "prompt_tok_s", &b->prompt);
    figure_json(&w, "decode_tok_s", &b->decode);
    jsonw_key(&w, "weight_gb_s"), jsonw_num(&w, gb_s);
    jsonw_key(&w, "read_gb_s"), jsonw_num(&w, b->bandwidth_gb_s);
    jsonw_key(&w, "bandwidth_share"), jsonw_num(&w, b->bandwidth_gb_s > 0 ? gb_s / b->bandwidth_gb_s : 0);
    jsonw_key(&w, "load_ms"), jsonw_num(&w, b->load_ms);
    jsonw_key(&w, "first_token_ms"), jsonw_num(&w, b->first_ms);
    jsonw_key(&w, "weight_bytes"), jsonw_int(&w, (int64_t)b->model->weight_bytes);
    jsonw_key(&w, "peak_rss_bytes"), jsonw_int(&w, b->peak_rss);
    jsonw_key(&w, "batch"), jsonw_arr(&w);
    for (int k = 0; k < b->n_batches; k++) {
        jsonw_obj(&w);
        jsonw_key(&w, "n"), jsonw_int(&w, b->batches[k]);
        figure_json(&w, "decode_tok_s", &b->by_batch[k]);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    puts(buf_cstr(&out));
    buf_release(&out);
}

static void figure_md(const char *name, struct figure *f, const char *unit)
{
    double mid = median(f);
    if (f->n) printf("| %s | %.1f %s | %.1f – %.1f |\n", name, mid, unit, f->v[0], f->v[f->n - 1]);
}

static void print_md(struct bench *b)
{
    double gb_s = median(&b->decode) * (double)b->token_bytes / 1e9;
    char name[64];

    printf("%s on %s\n\n| what | median of %d | spread |\n|---|---|---|\n", b->path, b->be->detail, b->n_repeat);
    snprintf(name, sizeof name, "prefill of %d", b->n_prompt);
    figure_md(name, &b->prompt, "tok/s");
    snprintf(name, sizeof name, "decode of %d", b->n_gen);
    figure_md(name, &b->decode, "tok/s");
    for (int k = 0; k < b->n_batches; k++) {
        snprintf(name, sizeof name, "decode, %d at once", b->batches[k]);
        figure_md(name, &b->by_batch[k], "tok/s");
    }
    printf("| weights read | %.1f GB/s | of %.1f GB/s read bandwidth (%.0f %%) |\n", gb_s, b->bandwidth_gb_s,
           b->bandwidth_gb_s > 0 ? 100 * gb_s / b->bandwidth_gb_s : 0);
    printf("| load | %.1f ms | first token after %.1f ms |\n", b->load_ms, b->first_ms);
    printf("| peak RSS | %.1f MiB | weights %.1f MiB |\n", (double)b->peak_rss / 1048576,
           (double)b->model->weight_bytes / 1048576);
}

static int check(const struct bench *b, const char *format, struct err *e)
{
    if (b->n_prompt < 0 || b->n_prompt > 1 << 20) return err_set(e, E_INVALID, "-p takes 0 to 1048576");
    if (b->n_gen < 0 || b->n_gen > 1 << 20) return err_set(e, E_INVALID, "-n takes 0 to 1048576");
    if (b->n_repeat < 1 || b->n_repeat > 64) return err_set(e, E_INVALID, "-r takes 1 to 64");
    if (b->n_threads < 0 || b->n_threads > 1024) return err_set(e, E_INVALID, "-t takes 0 to 1024");
    if (!str_is(str_c(format), "json") && !str_is(str_c(format), "md"))
        return err_set(e, E_INVALID, "-o takes json or md, found '%s'", format);
    if (!b->path) return err_set(e, E_INVALID, "no model named (-m), and the one that ships is not here");
    return OK;
}

int cmd_bench(int argc, char **argv)
{
    uint64_t start = clock_ns();
    struct bench b = { .n_prompt = 512, .n_gen = 128, .n_repeat = 5, .progress = isatty(2) };
    const char *batches = "", *format = "md", *pos;
    bool helped;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &b.path, "MODEL", "file or folder (default: the one that ships)" },
        { "--prompt", "-p", ARG_INT, &b.n_prompt, "N", "tokens of the prefill (512; 0: none)" },
        { "--gen", "-n", ARG_INT, &b.n_gen, "N", "tokens to decode (128; 0: none)" },
        { "--threads", "-t", ARG_INT, &b.n_threads, "N", "threads (default: physical cores)" },
        { "--repeat", "-r", ARG_INT, &b.n_repeat, "N", "repeats of each figure (5)" },
        { "--batch", NULL, ARG_STR, &batches, "LIST", "also decode this many sequences at once: 1,4,16" },
        { "--output", "-o", ARG_STR, &format, "F", "md or json (md)" },
        { 0 },
    };
    struct err e = { 0 };
    int n_pos;

    if (args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e) != OK) return cmd_usage("bench", &e);
    if (helped) return EXIT_OK;
    if (!b.path) b.path = cmd_default_model();
    if (check(&b, format, &e) != OK || parse_batches(&b, batches, &e) != OK) return cmd_usage("bench", &e);
    if (open_all(&b, &e) == OK && measure(&b, start, &e) == OK) {
        if (str_is(str_c(format), "json")) print_json(&b);
        else print_md(&b);
    }
    close_all(&b);
    return e.code == OK ? EXIT_OK : cmd_fail(&e);
}
