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
#include "model/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_SIZES 8
#define MAX_STEP 65536

static const struct verb verb = {
    "bench",
    "tern bench [-m MODEL] [-p 512] [-n 128] [-t N] [-r 5] [-d 0] [--batch 1,4,16] [--chunk "
    "16,64]\n"
    "                  [--kv-type f16] [--step 512] [--device cuda] [--profile] [-o json|md]",
    "Measures a model on this machine: prefill of P tokens, in one go or in chunks, decode of N "
    "tokens,\n"
    "decode of several sequences at once, all without sampling; the share of the memory's read "
    "bandwidth,\n"
    "which is measured in the same run; load time and the time from the start of the command to "
    "the first\n"
    "token of a short prompt. Each figure is the median of R repeats, with its spread and the "
    "processor\n"
    "time of a token, which other programs on the machine disturb least.\n\n"
    "  tern bench -m model.gguf -p 512 -n 128 -r 5 --batch 1,4,16 -o md",
};

struct figure {
    double v[64];  /* tokens a second */
    double cpu_ms; /* of all threads, for n_tokens */
    long n_tokens;
    int n;
};

struct sizes { /* a list of numbers, and what was measured with each */
    int v[MAX_SIZES], n;
    struct figure by[MAX_SIZES];
};

struct bench {
    const char *path, *device;
    int gpu_layers, n_prompt, n_gen, n_threads, n_repeat, depth, step_tokens;
    enum dtype kv_type;
    struct sizes batches, chunks;
    bool progress, profile;
    struct source *src;
    struct place place;
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
    struct figure prompt, decode;
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

static int parse_sizes(struct sizes *to, const char *flag, const char *list, int most,
                       struct err *e)
{
    for (struct str rest = str_c(list); rest.n;) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        int64_t n;
        if (!str_to_i64(one, &n) || n < 1 || n > most || to->n == MAX_SIZES)
            return err_set(e, E_INVALID,
                           "%s takes up to %d numbers from 1 to %d with commas, found '%s'", flag,
                           MAX_SIZES, most, list);
        to->v[to->n++] = (int)n;
        rest = str_skip(rest, one.n + 1);
    }
    return OK;
}

static int open_all(struct bench *b, struct err *e)
{
    struct place_opt opt = { .backend = { .device = b->device,
                                          .n_threads = b->n_threads,
                                          .profile = b->profile,
                                          .gpu_layers = b->gpu_layers },
                             .kv_type = b->kv_type };
    int rc, max_seqs = 1, longest = b->n_prompt > b->n_gen ? b->n_prompt : b->n_gen;

    for (int i = 0; i < b->batches.n; i++)
        if (b->batches.v[i] > max_seqs) max_seqs = b->batches.v[i];
    b->n_chains = max_seqs;
    b->max_tokens = b->depth + longest + 32;
    b->table_stride = b->max_tokens / KV_BLOCK + 1;
    int n_blocks = b->table_stride + (max_seqs - 1) * ((b->depth + b->n_gen + 32) / KV_BLOCK + 1);

    if ((rc = cmd_model(&b->path, e)) != OK) return rc;
    if ((rc = source_open(&b->src, b->path, e)) != OK) return rc;
    opt.kv_tokens = (uint64_t)n_blocks * KV_BLOCK;
    opt.max_tokens = b->step_tokens > max_seqs ? b->step_tokens : max_seqs;
    opt.max_out = max_seqs;
    if ((rc = place_model(&b->place, &b->model, &opt, b->src, e)) != OK) return rc;
    if ((rc = block_pool_open_over(&b->pool, b->place.shares, b->place.n_shares,
                                   model_kvshape(b->model), b->kv_type, n_blocks, e)) != OK)
        return rc;
    struct decoder_opt dopt = { .max_tokens = b->step_tokens > max_seqs ? b->step_tokens : max_seqs,
                                .max_seqs = max_seqs,
                                .max_table = b->table_stride,
                                .max_out = max_seqs };
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
    place_release(&b->place);
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
    struct batch batch = { .n_tokens = t,
                           .ids = b->ids,
                           .pos = b->pos,
                           .seq = b->seq,
                           .n_seqs = n_seqs,
                           .table = b->table,
                           .table_stride = b->table_stride,
                           .n_out = n_seqs,
                           .out_rows = b->out };
    return decoder_run(b->dec, &batch, &logits, e);
}

static double cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

/* n tokens of each of n_seqs sequences behind what lies there already, `chunk` of them a step. */
static int run_steps(struct bench *b, int n_seqs, int n, int chunk, struct figure *f, struct err *e)
{
    uint64_t start;
    double cpu;
    int rc = OK;

    for (int i = 0; i < b->n_chains; i++) chain_truncate(&b->chains[i], b->pool, b->depth);
    start = clock_ns();
    cpu = cpu_ms();
    for (int at = 0; at < n && rc == OK; at += chunk)
        rc = step(b, n_seqs, b->depth + at, n - at < chunk ? n - at : chunk, e);
    if (!f) return rc;
    f->v[f->n++] = (double)n_seqs * n * 1e3 / clock_ms_since(start);
    f->cpu_ms += cpu_ms() - cpu;
    f->n_tokens += (long)n_seqs * n;
    return rc;
}

/* The first --depth tokens of every sequence; what they are does not matter, that they lie there
 * does. */
static int fill(struct bench *b, struct err *e)
{
    int rc = OK;

    for (int s = 0; s < b->n_chains && rc == OK; s++)
        if (!chain_reserve(&b->chains[s], b->pool, b->depth))
            rc = err_set(e, E_INTERNAL, "bench: out of KV blocks at depth %d", b->depth);
    for (int at = 0; at < b->depth && rc == OK; at += b->step_tokens)
        rc = step(b, 1, at, b->depth - at < b->step_tokens ? b->depth - at : b->step_tokens, e);
    return rc;
}

typedef uint64_t lanes __attribute__((vector_size(64)));

struct reading {
    const lanes *p;
    size_t n;
    uint64_t sink[64];
};

/* The same loop for each width of vectors: with narrow ones the loop is slower than the memory. */
#define READ_LOOP(name, attr)                                              \
    attr static uint64_t name(const lanes *p, size_t n)                    \
    {                                                                      \
        lanes a = { 0 }, b = a;                                            \
        for (size_t i = 0; i < n; i += 4) {                                \
            __builtin_prefetch((const char *)(p + i) + 16384, 0, 2);       \
            __builtin_prefetch((const char *)(p + i) + 16384 + 64, 0, 2);  \
            __builtin_prefetch((const char *)(p + i) + 16384 + 128, 0, 2); \
            __builtin_prefetch((const char *)(p + i) + 16384 + 192, 0, 2); \
            a ^= p[i] ^ p[i + 1];                                          \
            b ^= p[i + 2] ^ p[i + 3];                                      \
        }                                                                  \
        a ^= b;                                                            \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];      \
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

    while (bytes >= (size_t)1 << 26 && !(p = mem_aligned(bytes))) bytes /= 2;
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

/* R times the same; warm: once before, not counted. */
static int repeat(struct bench *b, const char *what, bool warm, int n_seqs, int n, int chunk,
                  struct figure *f, struct err *e)
{
    int rc = warm ? run_steps(b, n_seqs, n, chunk, NULL, e) : OK;

    for (int i = 0; i < b->n_repeat && rc == OK; i++) {
        if (b->progress)
            fprintf(stderr, "\rtern bench: %s %d/%d        ", what, i + 1, b->n_repeat),
                fflush(stderr);
        rc = run_steps(b, n_seqs, n, chunk, f, e);
    }
    return rc;
}

/* Weights of the experts that one token does not choose. */
static uint64_t unread_bytes(const struct model *m)
{
    uint64_t sum = 0, row = 0;

    for (int l = 0; l < m->hp.n_layers; l++) {
        const struct weight *all[] = { m->layers[l].x_gate, m->layers[l].x_up,
                                       m->layers[l].x_down };
        for (size_t i = 0; i < 3; i++)
            if (all[i] && dtype_row_bytes(all[i]->type, (uint64_t)all[i]->cols, &row))
                sum += row * (uint64_t)all[i]->rows * (uint64_t)(m->hp.moe.n - m->hp.moe.n_used);
    }
    return sum;
}

static int measure(struct bench *b, uint64_t start_ns, struct err *e)
{
    struct rusage ru;
    int rc;

    b->load_ms = clock_ms_since(start_ns);
    if ((rc = step(b, 1, 0, 8, e)) != OK) return rc;
    b->first_ms = clock_ms_since(start_ns);
    if ((rc = fill(b, e)) != OK) return rc;
    if (b->n_prompt) rc = repeat(b, "prefill", true, 1, b->n_prompt, b->step_tokens, &b->prompt, e);
    for (int k = 0; b->n_prompt && k < b->chunks.n && rc == OK; k++)
        rc = repeat(b, "chunks", false, 1, b->n_prompt, b->chunks.v[k], &b->chunks.by[k], e);
    if (b->n_gen && rc == OK) rc = repeat(b, "decode", false, 1, b->n_gen, 1, &b->decode, e);
    for (int k = 0; k < b->batches.n && rc == OK; k++)
        rc = repeat(b, "batch", false, b->batches.v[k], b->n_gen ? b->n_gen : 32, 1,
                    &b->batches.by[k], e);
    if (rc != OK) return rc;
    if (b->progress) fprintf(stderr, "\r%40s\r", "");
    getrusage(RUSAGE_SELF, &ru);
    b->peak_rss = ru.ru_maxrss * 1024;
    if (!b->device || str_is(str_c(b->device), "cpu")) b->bandwidth_gb_s = bandwidth(b);

    const struct model *m = b->model;
    uint64_t embd = 0;
    if (m->head.rows && dtype_row_bytes(m->embd.type, (uint64_t)m->embd.cols, &embd))
        embd *= (uint64_t)m->embd.rows;
    b->token_bytes =
        m->weight_bytes - embd - unread_bytes(m); /* an untied embedding gives one row */
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
    snprintf(key, sizeof key, "%s_cpu_ms", name);
    jsonw_key(w, key), jsonw_num(w, f->n_tokens ? f->cpu_ms / (double)f->n_tokens : 0);
}

static void sizes_json(struct jsonw *w, const char *name, const char *figure, struct sizes *s)
{
    jsonw_key(w, name), jsonw_arr(w);
    for (int k = 0; k < s->n; k++) {
        jsonw_obj(w);
        jsonw_key(w, "n"), jsonw_int(w, s->v[k]);
        figure_json(w, figure, &s->by[k]);
        jsonw_end(w);
    }
    jsonw_end(w);
}

static void print_json(struct bench *b)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    double gb_s = median(&b->decode) * (double)b->token_bytes / 1e9;

    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(b->path));
    jsonw_key(&w, "device"), jsonw_str(&w, str_c(place_last(&b->place)->detail));
    jsonw_key(&w, "n_prompt"), jsonw_int(&w, b->n_prompt);
    jsonw_key(&w, "n_gen"), jsonw_int(&w, b->n_gen);
    jsonw_key(&w, "depth"), jsonw_int(&w, b->depth);
    jsonw_key(&w, "kv_type"), jsonw_str(&w, str_c(dtype_name((int)b->kv_type)));
    jsonw_key(&w, "repeats"), jsonw_int(&w, b->n_repeat);
    figure_json(&w, "prompt_tok_s", &b->prompt);
    figure_json(&w, "decode_tok_s", &b->decode);
    jsonw_key(&w, "weight_gb_s"), jsonw_num(&w, gb_s);
    jsonw_key(&w, "read_gb_s"), jsonw_num(&w, b->bandwidth_gb_s);
    jsonw_key(&w, "bandwidth_share"),
        jsonw_num(&w, b->bandwidth_gb_s > 0 ? gb_s / b->bandwidth_gb_s : 0);
    jsonw_key(&w, "load_ms"), jsonw_num(&w, b->load_ms);
    jsonw_key(&w, "first_token_ms"), jsonw_num(&w, b->first_ms);
    jsonw_key(&w, "weight_bytes"), jsonw_int(&w, (int64_t)b->model->weight_bytes);
    jsonw_key(&w, "peak_rss_bytes"), jsonw_int(&w, b->peak_rss);
    sizes_json(&w, "batch", "decode_tok_s", &b->batches);
    sizes_json(&w, "chunk", "prompt_tok_s", &b->chunks);
    jsonw_end(&w);
    puts(buf_cstr(&out));
    buf_release(&out);
}

static void figure_md(struct figure *f, const char *what, int n)
{
    char name[64];
    double mid = median(f);

    if (!f->n) return;
    snprintf(name, sizeof name, what, n);
    printf("| %s | %.1f tok/s | %.1f – %.1f; %.3f ms of processor a token |\n", name, mid, f->v[0],
           f->v[f->n - 1], f->cpu_ms / (double)f->n_tokens);
}

static void print_md(struct bench *b)
{
    double gb_s = median(&b->decode) * (double)b->token_bytes / 1e9;

    printf("%s on %s\n\n| what | median of %d | spread |\n|---|---|---|\n", b->path,
           place_last(&b->place)->detail, b->n_repeat);
    figure_md(&b->prompt, "prefill of %d", b->n_prompt);
    for (int k = 0; k < b->chunks.n; k++)
        figure_md(&b->chunks.by[k], "prefill in chunks of %d", b->chunks.v[k]);
    figure_md(&b->decode, "decode of %d", b->n_gen);
    for (int k = 0; k < b->batches.n; k++)
        figure_md(&b->batches.by[k], "decode, %d at once", b->batches.v[k]);
    if (b->bandwidth_gb_s > 0)
        printf("| weights read | %.1f GB/s | of %.1f GB/s read bandwidth (%.0f %%) |\n", gb_s,
               b->bandwidth_gb_s, 100 * gb_s / b->bandwidth_gb_s);
    else printf("| weights read | %.1f GB/s | |\n", gb_s);
    printf("| load | %.1f ms | first token after %.1f ms |\n", b->load_ms, b->first_ms);
    printf("| peak RSS | %.1f MiB | weights %.1f MiB |\n", (double)b->peak_rss / 1048576,
           (double)b->model->weight_bytes / 1048576);
}

static int check(const struct bench *b, const char *format, struct err *e)
{
    if (b->n_prompt < 0 || b->n_prompt > 1 << 20)
        return err_set(e, E_INVALID, "-p takes 0 to 1048576");
    if (b->n_gen < 0 || b->n_gen > 1 << 20) return err_set(e, E_INVALID, "-n takes 0 to 1048576");
    if (b->depth < 0 || b->depth > 1 << 20) return err_set(e, E_INVALID, "-d takes 0 to 1048576");
    if (b->step_tokens < 1 || b->step_tokens > MAX_STEP)
        return err_set(e, E_INVALID, "--step takes 1 to %d", MAX_STEP);
    if (b->n_repeat < 1 || b->n_repeat > 64) return err_set(e, E_INVALID, "-r takes 1 to 64");
    if (b->n_threads < 0 || b->n_threads > 1024) return err_set(e, E_INVALID, "-t takes 0 to 1024");
    if (!str_is(str_c(format), "json") && !str_is(str_c(format), "md"))
        return err_set(e, E_INVALID, "-o takes json or md, found '%s'", format);
    if (!b->path)
        return err_set(e, E_INVALID, "no model named (-m), and the one that ships is not here");
    return OK;
}

int cmd_bench(int argc, char **argv)
{
    uint64_t start = clock_ns();
    struct bench b = { .n_prompt = 512,
                       .n_gen = 128,
                       .n_repeat = 5,
                       .step_tokens = 512,
                       .kv_type = DT_F16,
                       .progress = isatty(2) };
    const char *batches = "", *chunks = "", *kv_type = "f16", *format = "md", *pos;
    bool helped;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &b.path, "MODEL",
          "file or folder (default: the one that ships)" },
        { "--prompt", "-p", ARG_INT, &b.n_prompt, "N", "tokens of the prefill (512; 0: none)" },
        { "--gen", "-n", ARG_INT, &b.n_gen, "N", "tokens to decode (128; 0: none)" },
        { "--threads", "-t", ARG_INT, &b.n_threads, "N", "threads (default: physical cores)" },
        { "--device", NULL, ARG_STR, &b.device, "NAME", "where to run: cpu, cuda, cuda:1 (cpu)" },
        { "--gpu-layers", "-ngl", ARG_INT, &b.gpu_layers, "N",
          "a GPU: only the last N layers lie there (as fits)" },
        { "--profile", NULL, ARG_FLAG, &b.profile, NULL,
          "cuda: time by operation, on stderr at the end" },
        { "--repeat", "-r", ARG_INT, &b.n_repeat, "N", "repeats of each figure (5)" },
        { "--batch", NULL, ARG_STR, &batches, "LIST",
          "also decode this many sequences at once: 1,4,16" },
        { "--chunk", NULL, ARG_STR, &chunks, "LIST",
          "also prefill in steps of so many tokens: 16,64,256" },
        { "--step", NULL, ARG_INT, &b.step_tokens, "N", "tokens of a step at most (512)" },
        { "--depth", "-d", ARG_INT, &b.depth, "N", "tokens that lie in the context already (0)" },
        { "--kv-type", NULL, ARG_STR, &kv_type, "T",
          "type of keys and values: f16, bf16, q8_0, f8, f32 (f16)" },
        { "--output", "-o", ARG_STR, &format, "F", "md or json (md)" },
        { 0 },
    };
    struct err e = { 0 };
    int n_pos;

    if (args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e) != OK)
        return cmd_usage("bench", &e);
    if (helped) return EXIT_OK;
    if (!b.path) b.path = cmd_default_model();
    if (check(&b, format, &e) != OK || parse_sizes(&b.batches, "--batch", batches, 256, &e) != OK ||
        parse_sizes(&b.chunks, "--chunk", chunks, b.step_tokens, &e) != OK ||
        cmd_kv_type(&b.kv_type, kv_type, &e) != OK)
        return cmd_usage("bench", &e);
    if (open_all(&b, &e) == OK && measure(&b, start, &e) == OK) {
        if (str_is(str_c(format), "json")) print_json(&b);
        else print_md(&b);
    }
    close_all(&b);
    return e.code == OK ? EXIT_OK : cmd_fail(&e);
}
