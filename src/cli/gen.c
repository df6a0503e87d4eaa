/* gen.c - Ctrl-C: the handler may run at any time on any thread. It reads `watched`, which is set
 * before a request streams and cleared before it is closed, and calls tern_cancel, which is safe in
 * a signal handler. The request then ends with TERN_FINISH_CANCELLED and the loop in run or chat
 * prints what it has. */
#include "cli/gen.h"

#include "base/file.h"
#include "base/mem.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/loadbar.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { MAX_GRAMMAR_BYTES = 1 << 20 };

/* Shared with the signal handler. */
static tern_request *volatile watched;
static volatile sig_atomic_t interrupted;
static volatile sig_atomic_t never_exits;

static bool write_failed;

void gen_init(struct gen *g)
{
    *g = (struct gen){ .gpu_layers = CMD_GPU_LAYERS_FIT,
                       .top_k = INT_MIN,
                       .repeat_last = INT_MIN,
                       .temp = NAN,
                       .top_p = NAN,
                       .min_p = NAN,
                       .typical = NAN,
                       .repeat_penalty = NAN,
                       .freq_penalty = NAN,
                       .presence_penalty = NAN,
                       .seed = GEN_SEED_NONE };
}

void gen_collect_stops(struct gen *g, int argc, char **argv)
{
    int n = 0;

    for (int i = 1; i < argc && n < GEN_MAX_STOPS; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strncmp(argv[i], "--stop=", 7) == 0) g->stops[n++] = argv[i] + 7;
        else if (strcmp(argv[i], "--stop") == 0 && i + 1 < argc) g->stops[n++] = argv[++i];
    }
    g->stops[n] = NULL;
}

static void override_float(float *to, float given)
{
    if (!isnan(given)) *to = given;
}
static void override_int(int *to, int given)
{
    if (given != INT_MIN) *to = given;
}

/* The model's recommended settings, overridden by the flags that were given. */
static void fill_params(struct gen *g)
{
    tern_params *p = &g->params;

    tern_params_init(p, g->m);
    override_float(&p->temp, g->temp);
    override_float(&p->top_p, g->top_p);
    override_float(&p->min_p, g->min_p);
    override_float(&p->typical, g->typical);
    override_float(&p->repeat_penalty, g->repeat_penalty);
    override_float(&p->freq_penalty, g->freq_penalty);
    override_float(&p->presence_penalty, g->presence_penalty);
    override_int(&p->top_k, g->top_k);
    override_int(&p->repeat_last, g->repeat_last);
    if (g->seed != GEN_SEED_NONE) p->seed = g->seed;
    p->max_tokens = g->n;
    p->ignore_eos = g->ignore_eos;
    p->stop = g->stops;
    p->grammar = g->grammar_text;
    p->json_schema = g->schema_text;
}

/* --verbose: one line about the model and its memory. */
static void print_model(const struct gen *g)
{
    const tern_model_info *i = &g->info;

    fprintf(
        stderr,
        "[%s: %s, %.4g M parameters, %s, %.1f MB | %s | context %d, KV %.1f MB, scratch %.1f MB]\n",
        i->name, i->arch, (double)i->n_params / 1e6, i->dtype, (double)i->weight_bytes / 1e6,
        i->device, i->context, (double)i->kv_bytes / 1e6, (double)i->scratch_bytes / 1e6);
}

/* Reads a file as NUL-terminated text, to be freed with mem_free. Returns the exit code. */
static int read_text(const char *path, char **out)
{
    struct buf b = { 0 };
    struct err e = { 0 };

    if (!path) return EXIT_OK;
    if (file_read(&b, path, MAX_GRAMMAR_BYTES, &e) != OK) {
        buf_release(&b);
        return cmd_fail(&e);
    }
    cli_text(&b);
    *out = b.p;
    return EXIT_OK;
}

int gen_open(struct gen *g, const char *verb)
{
    struct cmd_device d = { g->device, g->isa, g->numa, g->gpu_layers, g->vram_only, g->experts };
    struct loadbar *bar;
    tern_options o;
    struct err e;
    int rc;

    if ((rc = read_text(g->grammar, &g->grammar_text)) != EXIT_OK) return rc;
    if ((rc = read_text(g->schema, &g->schema_text)) != EXIT_OK) return rc;

    if (cmd_need_model(&g->model, &e) != OK) return cmd_usage(verb, &e);
    g->shown = file_exists(g->model) ? path_base(g->model) : g->model;
    if ((rc = cmd_model(&g->model, &e)) != OK)
        return rc == E_INVALID ? cmd_usage(verb, &e) : cmd_fail(&e);
    if (g->n < 0) {
        err_set(&e, E_INVALID, "-n %d: must be 0 (no limit) or more", g->n);
        return cmd_usage(verb, &e);
    }
    if (cmd_check_device(&d, &e) != OK) return cmd_usage(verb, &e);
    if ((rc = guard_check(&g->guard, g->model, &e)) != OK)
        return rc == E_INVALID ? cmd_usage(verb, &e) : cmd_fail(&e);
    tern_options_init(&o);
    o.device = d.device;
    o.isa = g->isa;
    o.numa = g->numa;
    o.threads = g->threads;
    o.gpu_layers = d.gpu_layers;
    o.vram_only = g->vram_only;
    o.cpu_moe = g->experts.cpu_moe;
    o.n_cpu_moe = g->experts.n_cpu_moe;
    o.place = g->experts.place;
    o.allow_nan = g->allow_nan;
    o.context = g->context;
    o.sequences = 1;
    o.chat_template = g->chat_template;
    bar = loadbar_start(g->model, g->shown, g->quiet);
    o.on_progress = loadbar_tell;
    o.progress_arg = bar;
    rc = tern_open(&g->m, g->model, &o);
    loadbar_stop(bar);
    guard_release(&g->guard);
    if (rc != TERN_OK) return gen_fail(verb, rc);
    tern_info(g->m, &g->info);
    fill_params(g);
    if (g->verbose) print_model(g);
    return EXIT_OK;
}

void gen_close(struct gen *g)
{
    tern_close(g->m);
    g->m = NULL;
    mem_free(g->grammar_text);
    mem_free(g->schema_text);
    g->grammar_text = g->schema_text = NULL;
}

int gen_fail(const char *verb, int code)
{
    struct err e;

    err_set(&e, code, "%s", tern_error());
    return code == TERN_E_INVALID ? cmd_usage(verb, &e) : cmd_fail(&e);
}

/* _exit: exit() is not safe in a signal handler. */
static void on_interrupt(int sig)
{
    tern_request *r = watched;

    if (!never_exits && (!r || interrupted)) _exit(128 + sig);
    interrupted = 1;
    tern_cancel(r);
}

void gen_ignore_interrupt(void) { never_exits = 1; }

void gen_watch(tern_request *r)
{
    struct sigaction a = { .sa_handler = on_interrupt };

    if (r) interrupted = 0;
    watched = r;
    sigemptyset(&a.sa_mask);
    a.sa_flags = SA_RESTART;
    sigaction(SIGINT, &a, NULL);
}

bool gen_interrupted(void) { return interrupted != 0; }

/* write() and not stdio: each token must appear at once, and EPIPE is handled differently from
 * other errors. */
bool gen_write(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) {
            if (errno == EPIPE) return false;
            fprintf(stderr, "tern: cannot write to stdout: %s\n", strerror(errno));
            write_failed = true;
            return false;
        }
        text += done;
        n -= (size_t)done;
    }
    return true;
}

bool gen_write_failed(void) { return write_failed; }

static double per_second(double n, double ms) { return ms > 0 && n > 0 ? n * 1e3 / ms : 0; }

void gen_print_stats(FILE *f, const struct gen *g, const tern_stats *s)
{
    fprintf(f, "[load %.0f ms | prompt %d tokens", g->info.load_ms, s->prompt_tokens);
    if (s->cached_tokens > 0) fprintf(f, " (%d cached)", s->cached_tokens);
    if (s->tokens > 0)
        fprintf(f, ", %.1f tok/s", per_second(s->prompt_tokens - s->cached_tokens, s->prompt_ms));
    fprintf(f, " | generated %d tokens", s->tokens);
    if (s->tokens > 1) fprintf(f, ", %.1f tok/s", per_second(s->tokens - 1, s->decode_ms));
    if (s->tokens > 0) fprintf(f, " | first token %.1f ms", s->first_token_ms);
    if (g->params.temp > 0) fprintf(f, " | seed %llu", (unsigned long long)g->params.seed);
    fprintf(f, "]\n");
}
