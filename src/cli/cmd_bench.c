/* cmd_bench.c - tern bench: tokens/s, GB/s and share of the machine's read bandwidth.
 *
 * Runs the decoder directly, without engine and sampling, on random token ids: the time of a
 * forward pass does not depend on which tokens they are. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/args.h"
#include "cli/bandwidth.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/gangflags.h"
#include "cli/guard.h"
#include "kernel/backend.h"
#include "kv/chain.h"
#include "model/loadplan.h"
#include "model/decoder.h"
#include "model/parallel.h"

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
    "Measures a model on this machine: prefill of P tokens, at once or in chunks, decode of N\n"
    "tokens, and decode of several sequences at once, all without sampling. Also measures the\n"
    "memory's read bandwidth and the share of it that decoding uses, the load time, and the time\n"
    "from the start of the command to the first token of a short prompt. Each figure is the "
    "median\n"
    "of R repeats, with its range and the CPU time per token, which depends least on other "
    "programs\n"
    "on the machine.\n\n"
    "examples:\n"
    "  tern bench -m model.gguf -p 512 -n 128 -r 5 --batch 1,4,16 -o md",
};

struct figure {
    double v[64];  /* tokens/s of each repeat */
    int n;         /* repeats so far */
    double cpu_ms; /* CPU time of all threads and repeats, for n_tokens */
    long n_tokens;
};

/* The numbers of --batch or --chunk, and the figure of each. */
struct batch_sizes {
    int v[MAX_SIZES], n;
    struct figure by[MAX_SIZES];
};

/* Time of steps, and of these in communication. */
struct bench_comm {
    uint64_t step_ns, comm_ns;
};

struct bench {
    struct guard guard;
    struct gangflags gang;
    const char *path, *device, *isa, *numa;
    struct cmd_experts experts;
    int gpu_layers, n_prompt, n_gen, n_threads, n_repeat, depth, step_tokens;
    enum dtype kv_type;
    struct batch_sizes batches, chunks;
    bool progress, profile;
    struct loadplan *plan;
    struct runner *runner;
    struct model *model; /* the runner's */
    struct block_pool *pool;
    struct chain *chains;
    int n_chains;
    struct rng rng;
    int32_t *ids, *pos, *seq, *out; /* the batch, [tokens of a step] */
    int32_t *table;                 /* [sequences][table_stride] block ids */
    int max_tokens;                 /* of a sequence */
    int table_stride;
    /* results */
    double load_ms, first_ms, bandwidth_gb_s;
    uint64_t token_bytes; /* weights that decoding one token reads */
    struct figure prompt, decode;
    struct bench_comm prompt_comm, decode_comm, noted;
    long peak_rss; /* bytes */
};

/* For qsort, ascending. */
static int compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the figure. */
static double median(struct figure *f)
{
    if (f->n == 0) return 0;
    qsort(f->v, (size_t)f->n, sizeof f->v[0], compare_values);
    return f->n % 2 ? f->v[f->n / 2] : (f->v[f->n / 2 - 1] + f->v[f->n / 2]) / 2;
}

/* "1,4,16" of the flag; each from 1 to max. */
static int parse_sizes(struct batch_sizes *to, const char *flag, const char *list, int max,
                       struct err *e)
{
    for (struct str rest = str_c(list); rest.n;) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        int64_t n;
        if (!str_to_i64(one, &n) || n < 1 || n > max || to->n == MAX_SIZES)
            return err_set(e, E_INVALID,
                           "%s %s: must be up to %d numbers from 1 to %d, separated by commas",
                           flag, list, MAX_SIZES, max);
        to->v[to->n++] = (int)n;
        rest = str_skip(rest, one.n + 1);
    }
    return OK;
}

/* Chains and arrays of the batch; close_bench releases them also after a failure. */
static int alloc_batch(struct bench *b, int n_tokens, struct err *e)
{
    int32_t **arrays[] = { &b->ids, &b->pos, &b->seq, &b->out };

    b->chains = mem_array((size_t)b->n_chains, sizeof *b->chains);
    b->table = mem_array((size_t)b->n_chains * (size_t)b->table_stride, sizeof(int32_t));
    bool ok = b->chains && b->table;
    for (int i = 0; ok && i < b->n_chains; i++) ok = chain_init(&b->chains[i], b->max_tokens);
    for (size_t i = 0; i < 4; i++) {
        *arrays[i] = mem_array((size_t)n_tokens, sizeof(int32_t));
        ok = ok && *arrays[i];
    }
    return ok ? OK : err_nomem(e, "the batch");
}

/* Sizes everything for the largest of the measurements: sequences, tokens per step, KV blocks. */
static int open_bench(struct bench *b, struct err *e)
{
    int rc, max_seqs = 1, longest = b->n_prompt > b->n_gen ? b->n_prompt : b->n_gen;

    for (int i = 0; i < b->batches.n; i++)
        if (b->batches.v[i] > max_seqs) max_seqs = b->batches.v[i];
    b->n_chains = max_seqs;
    b->max_tokens = b->depth + longest + 32;
    b->table_stride = b->max_tokens / KV_BLOCK + 1;
    int n_blocks = b->table_stride + (max_seqs - 1) * ((b->depth + b->n_gen + 32) / KV_BLOCK + 1);
    int n_tokens = b->step_tokens > max_seqs ? b->step_tokens : max_seqs;
    struct load_opt opt = { .backend = { .device = b->device,
                                         .n_threads = b->n_threads,
                                         .isa = b->isa,
                                         .numa = b->numa,
                                         .profile = b->profile,
                                         .gpu_layers = b->gpu_layers,
                                         .cpu_moe = b->experts.cpu_moe,
                                         .n_cpu_moe = b->experts.n_cpu_moe,
                                         .place = b->experts.place },
                            .n_ctx = b->table_stride * KV_BLOCK,
                            .kv_tokens = n_blocks * KV_BLOCK,
                            .max_batch = n_tokens,
                            .max_seqs = max_seqs,
                            .kv_type = b->kv_type,
                            .no_prefix = true,
                            .allow_nan = true }; /* nothing runs beside what is measured */

    if ((rc = cmd_model(&b->path, e)) != OK) return rc;
    if ((rc = guard_check(&b->guard, b->path, e)) != OK) return rc;
    if ((rc = loadplan_read(&b->plan, b->path, e)) != OK) return rc;
    if (b->plan->facts.bidirectional)
        return err_set(e, E_UNSUPPORTED, "%s: a model with the task %s does not decode", b->path,
                       model_task_name(b->plan->facts.task));
    if ((rc = gangflags_open(&b->gang, &opt, e)) != OK) return rc;
    if ((rc = loadplan_make(b->plan, &opt, e)) != OK) return rc;
    if ((rc = runner_open(&b->runner, b->plan, e)) != OK) return rc;
    guard_release(&b->guard);
    place_drive(&b->plan->place);
    b->model = decoder_model(parallel_local(b->runner));
    if ((rc = block_pool_open(&b->pool, b->runner->lim.n_blocks, e)) != OK) return rc;
    rng_seed(&b->rng, 1);
    return alloc_batch(b, n_tokens, e);
}

static void close_bench(struct bench *b)
{
    for (int i = 0; b->chains && i < b->n_chains; i++) chain_release(&b->chains[i], b->pool);
    mem_free(b->chains);
    mem_free(b->ids), mem_free(b->pos), mem_free(b->seq), mem_free(b->out), mem_free(b->table);
    runner_close(b->runner);
    block_pool_close(b->pool);
    loadplan_close(b->plan);
}

/* One forward pass: `n` tokens of each of n_seqs sequences from position `at`, logits of the last
 * token of each. */
static int run_step(struct bench *b, int n_seqs, int at, int n, struct err *e)
{
    const float *logits;
    int t = 0;

    for (int s = 0; s < n_seqs; s++) {
        if (!chain_reserve(&b->chains[s], b->pool, at + n))
            return err_set(e, E_INTERNAL, "the KV cache has no block for token %d", at + n);
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
    return runner_run(b->runner, &batch, &logits, e);
}

/* User and system time of all threads. */
static double read_cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

/* n tokens of each of n_seqs sequences behind the first --depth ones, `chunk` tokens per step. f
 * NULL: not counted. */
static int run_steps(struct bench *b, int n_seqs, int n, int chunk, struct figure *f, struct err *e)
{
    uint64_t start;
    double cpu;
    int rc = OK;

    for (int i = 0; i < b->n_chains; i++) chain_truncate(&b->chains[i], b->pool, b->depth);
    start = clock_ns();
    cpu = read_cpu_ms();
    for (int at = 0; at < n && rc == OK; at += chunk)
        rc = run_step(b, n_seqs, b->depth + at, n - at < chunk ? n - at : chunk, e);
    if (!f) return rc;
    f->v[f->n++] = (double)n_seqs * n * 1e3 / clock_ms_since(start);
    f->cpu_ms += read_cpu_ms() - cpu;
    f->n_tokens += (long)n_seqs * n;
    return rc;
}

/* Reserves the first --depth tokens of every sequence, and computes those of the first. The others
 * hold arbitrary values: attention takes the same time. */
static int fill_depth(struct bench *b, struct err *e)
{
    int rc = OK;

    for (int s = 0; s < b->n_chains && rc == OK; s++)
        if (!chain_reserve(&b->chains[s], b->pool, b->depth))
            rc = err_set(e, E_INTERNAL, "the KV cache has no room for a depth of %d tokens",
                         b->depth);
    for (int at = 0; at < b->depth && rc == OK; at += b->step_tokens)
        rc = run_step(b, 1, at, b->depth - at < b->step_tokens ? b->depth - at : b->step_tokens, e);
    return rc;
}

/* Repeats a measurement R times; warm: once more before, not counted. */
static int repeat_steps(struct bench *b, const char *what, bool warm, int n_seqs, int n, int chunk,
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

/* Bytes of the experts that a token is not routed to. */
static uint64_t count_unused_experts(const struct model *m)
{
    uint64_t sum = 0, row = 0;

    for (int l = 0; l < m->hp.n_layers; l++) {
        const struct weight *all[] = { m->layers[l].x_gate, m->layers[l].x_up,
                                       m->layers[l].x_down };
        for (size_t i = 0; i < 3; i++)
            if (all[i] && (row = weight_row_bytes(all[i])))
                sum += row * (uint64_t)all[i]->rows * (uint64_t)(m->hp.moe.n - m->hp.moe.n_used);
    }
    return sum;
}

/* Weights that decoding a token reads: of an untied embedding one row, of the experts those used. */
static uint64_t count_token_bytes(const struct model *m)
{
    uint64_t embd = 0;

    if (m->head.rows && !m->hp.tied) embd = weight_row_bytes(&m->embd) * (uint64_t)m->embd.rows;
    return m->weight_bytes - embd - count_unused_experts(m);
}

/* Communication since the last note. */
static void note_comm(struct bench *b, struct bench_comm *out)
{
    struct parallel_stats s = { 0 };

    parallel_stats(b->runner, &s);
    if (out)
        *out = (struct bench_comm){ s.step_ns - b->noted.step_ns, s.comm_ns - b->noted.comm_ns };
    b->noted = (struct bench_comm){ s.step_ns, s.comm_ns };
}

/* The first measurement warms caches and clocks up; its first repeat is not counted. */
static int measure_speed(struct bench *b, struct err *e)
{
    int rc = OK;

    if (b->n_prompt)
        rc = repeat_steps(b, "prefill", true, 1, b->n_prompt, b->step_tokens, &b->prompt, e);
    note_comm(b, &b->prompt_comm);
    for (int k = 0; b->n_prompt && k < b->chunks.n && rc == OK; k++)
        rc = repeat_steps(b, "chunks", false, 1, b->n_prompt, b->chunks.v[k], &b->chunks.by[k], e);
    note_comm(b, NULL);
    if (b->n_gen && rc == OK) rc = repeat_steps(b, "decode", false, 1, b->n_gen, 1, &b->decode, e);
    note_comm(b, &b->decode_comm);
    for (int k = 0; k < b->batches.n && rc == OK; k++)
        rc = repeat_steps(b, "batch", false, b->batches.v[k], b->n_gen ? b->n_gen : 32, 1,
                          &b->batches.by[k], e);
    return rc;
}

/* start_ns: when the command began. */
static int measure_all(struct bench *b, uint64_t start_ns, struct err *e)
{
    struct rusage ru;
    int rc;

    b->load_ms = clock_ms_since(start_ns);
    if ((rc = run_step(b, 1, 0, 8, e)) != OK) return rc;
    b->first_ms = clock_ms_since(start_ns);
    if ((rc = fill_depth(b, e)) != OK) return rc;
    if ((rc = measure_speed(b, e)) != OK) return rc;
    if (b->progress) fprintf(stderr, "\r%40s\r", "");
    getrusage(RUSAGE_SELF, &ru);
    b->peak_rss = ru.ru_maxrss * 1024;
    if (!b->device || str_is(str_c(b->device), "cpu"))
        b->bandwidth_gb_s = bandwidth_measure(b->n_threads);
    b->token_bytes = count_token_bytes(b->model);
    return OK;
}

/* Median, range and CPU time per token. */
static void put_figure(struct jsonw *w, const char *name, struct figure *f)
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

static void put_sizes(struct jsonw *w, const char *name, const char *figure, struct batch_sizes *s)
{
    jsonw_key(w, name), jsonw_arr(w);
    for (int k = 0; k < s->n; k++) {
        jsonw_obj(w);
        jsonw_key(w, "n"), jsonw_int(w, s->v[k]);
        put_figure(w, figure, &s->by[k]);
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* Share of the leader's steps that was communication and waiting for other members, of all and of the
 * measurements of prefill and decode. */
static double comm_share(const struct bench_comm *c)
{
    return c->step_ns ? (double)c->comm_ns / (double)c->step_ns : 0;
}

/* The part of each member: its layers, and its share of all weights. */
static void put_parts(struct jsonw *w, const struct bench *b)
{
    int n;
    const struct gang_seat *seats = parallel_seats(b->runner, &n);
    double all = 0;

    for (int i = 0; i < n; i++) all += (double)seats[i].weight_bytes;
    jsonw_key(w, "gang"), jsonw_arr(w);
    for (int i = 0; i < n; i++) {
        const struct gang_seat *s = &seats[i];
        jsonw_obj(w);
        jsonw_key(w, "rank"), jsonw_int(w, s->rank);
        jsonw_key(w, "host"), jsonw_str(w, str_c(s->host));
        jsonw_key(w, "device"), jsonw_str(w, str_c(s->device));
        jsonw_key(w, "layers"), jsonw_arr(w);
        jsonw_int(w, s->first_layer), jsonw_int(w, s->end_layer);
        jsonw_end(w);
        jsonw_key(w, "share"), jsonw_num(w, all > 0 ? (double)s->weight_bytes / all : 0);
        jsonw_key(w, "weight_bytes"), jsonw_int(w, (int64_t)s->weight_bytes);
        jsonw_key(w, "kv_bytes"), jsonw_int(w, (int64_t)s->kv_bytes);
        jsonw_end(w);
    }
    jsonw_end(w);
}

static void put_members(struct jsonw *w, const struct bench *b)
{
    struct parallel_stats s = { .members = 1, .tp = 1, .pp = 1, .sums = "none" };
    struct bench_comm all;

    parallel_stats(b->runner, &s);
    all = (struct bench_comm){ s.step_ns, s.comm_ns };
    jsonw_key(w, "members"), jsonw_int(w, s.members);
    jsonw_key(w, "tp"), jsonw_int(w, s.tp);
    jsonw_key(w, "pp"), jsonw_int(w, s.pp);
    jsonw_key(w, "sums"), jsonw_str(w, str_c(s.sums));
    jsonw_key(w, "comm_share"), jsonw_num(w, comm_share(&all));
    jsonw_key(w, "prompt_comm_share"), jsonw_num(w, comm_share(&b->prompt_comm));
    jsonw_key(w, "decode_comm_share"), jsonw_num(w, comm_share(&b->decode_comm));
    jsonw_key(w, "comm_bytes"), jsonw_int(w, (int64_t)s.bytes);
    put_parts(w, b);
}

/* Bytes of weights that decoding reads per second. */
static double weight_gb_s(struct bench *b)
{
    return median(&b->decode) * (double)b->token_bytes / 1e9;
}

/* Where the model lies: layers, routed experts of layers that lie elsewhere, weights. */
static void put_devices(struct jsonw *w, const struct bench *b)
{
    struct runner_device d[MODEL_PARTS];
    int n = runner_devices(b->runner, d, MODEL_PARTS);

    jsonw_key(w, "devices"), jsonw_arr(w);
    for (int i = 0; i < n && i < MODEL_PARTS; i++) {
        jsonw_obj(w);
        jsonw_key(w, "name"), jsonw_str(w, str_c(d[i].name));
        jsonw_key(w, "layers"), jsonw_int(w, d[i].n_layers);
        jsonw_key(w, "experts"), jsonw_int(w, d[i].n_experts);
        if (n == b->plan->place.n_shares) {
            const struct load_memory *m = &b->plan->memory[i];
            jsonw_key(w, "weight_bytes"), jsonw_int(w, (int64_t)(m->mapped + m->weights));
        }
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* Field names are read by bench/vs-llama-cpp and bench/gpu. */
static void add_json(struct bench *b, struct buf *out)
{
    struct jsonw w = { .out = out };
    double gb_s = weight_gb_s(b);

    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(b->path));
    jsonw_key(&w, "device"), jsonw_str(&w, str_c(place_last(&b->plan->place)->detail));
    put_devices(&w, b);
    jsonw_key(&w, "n_prompt"), jsonw_int(&w, b->n_prompt);
    jsonw_key(&w, "n_gen"), jsonw_int(&w, b->n_gen);
    jsonw_key(&w, "depth"), jsonw_int(&w, b->depth);
    jsonw_key(&w, "kv_type"), jsonw_str(&w, str_c(dtype_name((int)b->kv_type)));
    jsonw_key(&w, "repeats"), jsonw_int(&w, b->n_repeat);
    put_figure(&w, "prompt_tok_s", &b->prompt);
    put_figure(&w, "decode_tok_s", &b->decode);
    jsonw_key(&w, "weight_gb_s"), jsonw_num(&w, gb_s);
    jsonw_key(&w, "read_gb_s"), jsonw_num(&w, b->bandwidth_gb_s);
    jsonw_key(&w, "bandwidth_share"),
        jsonw_num(&w, b->bandwidth_gb_s > 0 ? gb_s / b->bandwidth_gb_s : 0);
    jsonw_key(&w, "load_ms"), jsonw_num(&w, b->load_ms);
    jsonw_key(&w, "first_token_ms"), jsonw_num(&w, b->first_ms);
    jsonw_key(&w, "weight_bytes"), jsonw_int(&w, (int64_t)b->model->weight_bytes);
    jsonw_key(&w, "peak_rss_bytes"), jsonw_int(&w, b->peak_rss);
    put_members(&w, b);
    put_sizes(&w, "batch", "decode_tok_s", &b->batches);
    put_sizes(&w, "chunk", "prompt_tok_s", &b->chunks);
    jsonw_end(&w);
    buf_putc(out, '\n');
}

/* A row of the table; name has a %d for n. */
static void add_figure_md(struct buf *out, struct figure *f, const char *name, int n)
{
    char text[64];
    double mid = median(f);

    if (!f->n) return;
    snprintf(text, sizeof text, name, n);
    buf_printf(out, "| %s | %.1f tok/s | %.1f – %.1f; %.3f ms of CPU time per token |\n", text, mid,
               f->v[0], f->v[f->n - 1], f->cpu_ms / (double)f->n_tokens);
}

static void add_md(struct bench *b, struct buf *out)
{
    double gb_s = weight_gb_s(b);

    buf_printf(out, "%s on ", b->path);
    if (b->plan->place.n_shares > 1) loadplan_describe_devices(b->plan, out);
    else buf_puts(out, place_last(&b->plan->place)->detail);
    buf_printf(out, "\n\n| measurement | median of %d | range |\n|---|---|---|\n", b->n_repeat);
    add_figure_md(out, &b->prompt, "prefill of %d tokens", b->n_prompt);
    for (int k = 0; k < b->chunks.n; k++)
        add_figure_md(out, &b->chunks.by[k], "prefill in chunks of %d", b->chunks.v[k]);
    add_figure_md(out, &b->decode, "decode of %d tokens", b->n_gen);
    for (int k = 0; k < b->batches.n; k++)
        add_figure_md(out, &b->batches.by[k], "decode of %d sequences", b->batches.v[k]);
    if (b->bandwidth_gb_s > 0)
        buf_printf(out, "| weights read | %.1f GB/s | %.0f %% of %.1f GB/s read bandwidth |\n",
                   gb_s, 100 * gb_s / b->bandwidth_gb_s, b->bandwidth_gb_s);
    else buf_printf(out, "| weights read | %.1f GB/s | |\n", gb_s);
    buf_printf(out, "| load | %.1f ms | first token after %.1f ms |\n", b->load_ms, b->first_ms);
    buf_printf(out, "| peak RSS | %.1f MiB | weights %.1f MiB |\n", (double)b->peak_rss / 1048576,
               (double)b->model->weight_bytes / 1048576);
}

static int print_report(struct bench *b, bool json, struct err *e)
{
    struct buf out = { 0 };
    int rc;

    if (json) add_json(b, &out);
    else add_md(b, &out);
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

/* Ranges of the numbers; bounds keep the allocations in open_bench from overflowing an int. */
static int check_flags(const struct bench *b, const char *format, struct err *e)
{
    const struct {
        const char *flag;
        int v, min, max;
    } ranges[] = { { "-p", b->n_prompt, 0, 1 << 20 }, { "-n", b->n_gen, 0, 1 << 20 },
                   { "-d", b->depth, 0, 1 << 20 },    { "--step", b->step_tokens, 1, MAX_STEP },
                   { "-r", b->n_repeat, 1, 64 },      { "-t", b->n_threads, 0, 1024 } };

    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].v < ranges[i].min || ranges[i].v > ranges[i].max)
            return err_set(e, E_INVALID, "%s %d: must be %d to %d", ranges[i].flag, ranges[i].v,
                           ranges[i].min, ranges[i].max);
    if (!str_is(str_c(format), "json") && !str_is(str_c(format), "md"))
        return err_set(e, E_INVALID, "-o %s: must be json or md", format);
    return OK;
}

static int check_device(struct bench *b, struct err *e)
{
    struct cmd_device d = { b->device, b->isa, b->numa, b->gpu_layers, false, b->experts };
    int rc = cmd_check_device(&d, e);

    b->device = d.device;
    b->gpu_layers = d.gpu_layers;
    return rc;
}

int cmd_bench(int argc, char **argv)
{
    uint64_t start = clock_ns();
    struct bench b = { .n_prompt = 512,
                       .n_gen = 128,
                       .n_repeat = 5,
                       .step_tokens = 512,
                       .gpu_layers = CMD_GPU_LAYERS_FIT,
                       .kv_type = DT_F16,
                       .gang = GANGFLAGS_DEFAULT,
                       .progress = isatty(STDERR_FILENO) };
    const char *batches = "", *chunks = "", *kv_type = "f16", *format = "md", *pos;
    bool helped;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &b.path, "MODEL",
          "GGUF file or Hugging Face folder (the model that ships with tern)" },
        { "--prompt", "-p", ARG_INT, &b.n_prompt, "N", "tokens of the prefill; 0: none (512)" },
        { "--gen", "-n", ARG_INT, &b.n_gen, "N", "tokens to decode; 0: none (128)" },
        { "--threads", "-t", ARG_INT, &b.n_threads, "N", "threads (physical cores)" },
        { "--device", NULL, ARG_STR, &b.device, "NAME", "device: cpu, cuda, cuda:1 (cpu)" },
        { "--isa", NULL, ARG_STR, &b.isa, "NAME",
          "CPU kernels: ref, avx2, avxvnni, avx512, amx, neon (the best of this machine)" },
        { "--numa", NULL, ARG_STR, &b.numa, "MODE",
          "memory nodes of the CPU: auto, off, spread, or the number of one (auto)" },
        { "--gpu-layers", "-ngl", ARG_INT, &b.gpu_layers, "N",
          "GPU: run the last N layers there, 0: none; -1: as many as fit (-1)" },
        CMD_EXPERTS_ARGS(&b.experts),
        { "--profile", NULL, ARG_FLAG, &b.profile, NULL,
          "cuda: print the time of each operation at the end" },
        { "--repeat", "-r", ARG_INT, &b.n_repeat, "N", "repeats of each measurement (5)" },
        { "--batch", NULL, ARG_STR, &batches, "LIST",
          "also decode this many sequences at once: 1,4,16" },
        { "--chunk", NULL, ARG_STR, &chunks, "LIST",
          "also prefill in chunks of this many tokens: 16,64,256" },
        { "--step", NULL, ARG_INT, &b.step_tokens, "N", "tokens of a step at most (512)" },
        { "--depth", "-d", ARG_INT, &b.depth, "N", "tokens that are in the context before (0)" },
        { "--kv-type", NULL, ARG_STR, &kv_type, "T",
          "KV cache type: f16, bf16, q8_0, f8, f32 (f16)" },
        GANG_ARGS(&b.gang),
        GUARD_ARGS(&b.guard),
        { "--output", "-o", ARG_STR, &format, "F", "output format: md or json (md)" },
        { 0 },
    };
    struct err e = { 0 };
    int n_pos, code, rc;

    if (args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e) != OK)
        return cmd_usage("bench", &e);
    if (helped) return EXIT_OK;
    if (cmd_need_model(&b.path, &e) != OK || check_flags(&b, format, &e) != OK ||
        parse_sizes(&b.batches, "--batch", batches, 256, &e) != OK ||
        parse_sizes(&b.chunks, "--chunk", chunks, b.step_tokens, &e) != OK ||
        cmd_kv_type(&b.kv_type, kv_type, &e) != OK || check_device(&b, &e) != OK ||
        gangflags_check(&b.gang, b.device, &e) != OK)
        return cmd_usage("bench", &e);
    if (gangflags_mpi(&b.gang, argc, argv, &code)) return code;
    rc = open_bench(&b, &e);
    if (rc == OK) rc = measure_all(&b, start, &e);
    if (rc == OK) rc = print_report(&b, str_is(str_c(format), "json"), &e);
    close_bench(&b);
    return cmd_result(rc, &e);
}
