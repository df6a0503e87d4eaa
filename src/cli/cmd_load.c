/* cmd_load.c - tern load: a load tester for servers with the OpenAI API. The work is src/loadtest;
 * here are the flags, the progress line, Ctrl-C and the reports. */
#include "base/clock.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "loadtest/load_report.h"
#include "loadtest/load_run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

struct flags {
    struct load_plan plan;
    const char *model, *prompt, *output, *ids, *goodput, *json, *html;
    float rate, burstiness, ramp, duration, share, temperature, cancel, disconnect, max_errors;
    int requests, timeout_s;
    bool chat, stream, ignore_eos, quiet;
};

static const struct verb verb = {
    "load", "tern load URL [flags]",
    "Sends requests to a server with the OpenAI API: a fixed number at once (--clients, closed\n"
    "loop), or arriving at a rate that does not depend on the server (--rate, open loop). Prints\n"
    "time to first token, inter-token latency, end-to-end latency and throughput.\n\n"
    "examples:\n"
    "  tern load http://127.0.0.1:8080 --clients 16 --duration 30\n"
    "  tern load http://127.0.0.1:8080 --rate 20 -n 1000 --prompt-tokens lognormal:128,0.6 --html "
    "out.html\n"
    "  tern load http://127.0.0.1:8080 --clients 64 --cancel-rate 0.1 --disconnect-rate 0.1\n\n"
    "Exit codes: 0 success, 1 more requests failed than --max-error-rate allows, or the test "
    "could\n"
    "not run, 2 wrong usage, 3 no server answers."
};

static int parse_flags(struct flags *f, int argc, char **argv, bool *helped, struct err *e)
{
    struct load_plan *p = &f->plan;
    const struct arg table[] = {
        { "--clients", "-c", ARG_INT, &p->n_clients, "N",
          "requests at once (16); with --rate: at most (no limit)" },
        { "--rate", NULL, ARG_FLOAT, &f->rate, "R", "arrivals per second: an open loop" },
        { "--burstiness", NULL, ARG_FLOAT, &f->burstiness, "B",
          "1: Poisson arrivals, less: in bursts (1)" },
        { "--ramp", NULL, ARG_FLOAT, &f->ramp, "S",
          "seconds until the full rate or all clients (0)" },
        { "--duration", "-d", ARG_FLOAT, &f->duration, "S", "start requests for S seconds" },
        { "--requests", "-n", ARG_INT, &f->requests, "N",
          "number of requests (100 without --duration)" },
        { "--warmup", NULL, ARG_INT, &p->n_warmup, "N", "warm-up requests, not counted (0)" },
        { "--prompt-tokens", NULL, ARG_STR, &f->prompt, "D",
          "prompt length: 64, 16-512, exp:128, lognormal:128,0.6 (64)" },
        { "--output-tokens", NULL, ARG_STR, &f->output, "D",
          "output length, in the same form (64)" },
        { "--shared-prefix", NULL, ARG_INT, &p->n_shared, "N",
          "length of a prefix that prompts share (0)" },
        { "--shared-seed", NULL, ARG_U64, &p->shared_seed, "S",
          "seed of that prefix, to share it between runs (--seed)" },
        { "--prefix-share", NULL, ARG_FLOAT, &f->share, "P",
          "fraction of the requests that have the prefix (1)" },
        { "--chat", NULL, ARG_FLAG, &f->chat, NULL, "use /v1/chat/completions (the default)" },
        { "--completions", NULL, ARG_FLAG, &p->completions, NULL, "use /v1/completions" },
        { "--ids", NULL, ARG_STR, &f->ids, "LOW-HIGH",
          "completions of random token ids: exact prompt lengths" },
        { "--stream", NULL, ARG_FLAG, &f->stream, NULL, "stream the replies (the default)" },
        { "--no-stream", NULL, ARG_FLAG, &p->no_stream, NULL, "do not stream the replies" },
        { "--ignore-eos", NULL, ARG_FLAG, &f->ignore_eos, NULL,
          "generate --output-tokens tokens (the default)" },
        { "--stop-at-eos", NULL, ARG_FLAG, &p->stop_at_eos, NULL, "stop at the model's end token" },
        { "--model", "-m", ARG_STR, &f->model, "NAME",
          "model name (the first that the server lists)" },
        { "--api-key", NULL, ARG_STR, &p->key, "KEY", "API key ($OPENAI_API_KEY)" },
        { "--insecure", NULL, ARG_FLAG, &p->insecure, NULL, "accept any TLS certificate" },
        { "--temperature", NULL, ARG_FLOAT, &f->temperature, "T",
          "temperature (the server's default)" },
        { "--seed", NULL, ARG_U64, &p->seed, "S", "seed of prompts, lengths and arrivals (1)" },
        { "--cancel-rate", NULL, ARG_FLOAT, &f->cancel, "P",
          "fraction of requests cancelled by id, at a random time (0)" },
        { "--disconnect-rate", NULL, ARG_FLOAT, &f->disconnect, "P",
          "fraction of connections closed or reset, likewise (0)" },
        { "--deadline-ms", NULL, ARG_INT, &p->deadline_ms, "MS",
          "send X-Deadline, MS after the start" },
        { "--timeout", NULL, ARG_INT, &f->timeout_s, "S",
          "timeout of a request in seconds; 0: none (600)" },
        { "--no-keepalive", NULL, ARG_FLAG, &p->no_keep_alive, NULL,
          "a new connection for each request" },
        { "--goodput", NULL, ARG_STR, &f->goodput, "G",
          "count requests within ttft:MS,tpot:MS,itl:MS,gap:MS,e2e:MS" },
        { "--max-error-rate", NULL, ARG_FLOAT, &f->max_errors, "P",
          "a larger fraction of failures is exit code 1 (0.001)" },
        { "--json", NULL, ARG_STR, &f->json, "FILE|-", "write all results as JSON" },
        { "--html", NULL, ARG_STR, &f->html, "FILE", "write a page with charts" },
        { "--quiet", "-q", ARG_FLAG, &f->quiet, NULL, "no text report, no progress" },
        { 0 },
    };
    int n_pos, rc = args_parse(&verb, table, argc, argv, &p->url, 1, &n_pos, helped, e);

    if (rc != OK || *helped) return rc;
    return n_pos == 1 ? OK : err_set(e, E_INVALID, "one argument is needed: the URL of the server");
}

static bool is_fraction(float v) { return v >= 0 && v <= 1; }

/* Ranges of single flags, then flags that exclude each other. */
static int check_flags(struct flags *f, struct err *e)
{
    struct load_plan *p = &f->plan;

    const struct {
        const char *flag;
        double v;
    } positive[] = { { "--rate", f->rate },
                     { "--ramp", f->ramp },
                     { "--duration", f->duration },
                     { "--requests", f->requests },
                     { "--warmup", p->n_warmup },
                     { "--shared-prefix", p->n_shared },
                     { "--deadline-ms", p->deadline_ms },
                     { "--timeout", f->timeout_s } };
    const struct {
        const char *flag;
        float v;
    } fractions[] = { { "--prefix-share", f->share },
                      { "--cancel-rate", f->cancel },
                      { "--disconnect-rate", f->disconnect },
                      { "--max-error-rate", f->max_errors } };

    if (p->n_clients < 0 || p->n_clients > 65536)
        return err_set(e, E_INVALID, "--clients %d: must be 1 to 65536", p->n_clients);
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        if (!(positive[i].v >= 0))
            return err_set(e, E_INVALID, "%s %g: must be 0 or more", positive[i].flag,
                           positive[i].v);
    if (!(f->burstiness > 0))
        return err_set(e, E_INVALID, "--burstiness %g: must be above 0", (double)f->burstiness);
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++)
        if (!is_fraction(fractions[i].v))
            return err_set(e, E_INVALID, "%s %g: must be between 0 and 1", fractions[i].flag,
                           (double)fractions[i].v);
    if (f->cancel + f->disconnect > 1)
        return err_set(e, E_INVALID,
                       "--cancel-rate %g and --disconnect-rate %g: the sum must be at most 1",
                       (double)f->cancel, (double)f->disconnect);
    if (p->n_shared > LOAD_DIST_MAX)
        return err_set(e, E_INVALID, "--shared-prefix %d: must be 0 to %d", p->n_shared,
                       LOAD_DIST_MAX);
    if (p->completions && f->chat)
        return err_set(e, E_INVALID, "--chat and --completions exclude each other");
    if (f->goodput && !load_goals_parse(&p->goals, f->goodput))
        return err_set(e, E_INVALID,
                       "--goodput %s: must be a list of ttft:MS, tpot:MS, itl:MS, gap:MS or e2e:MS",
                       f->goodput);
    return OK;
}

/* --ids selects /v1/completions, which accepts token ids. */
static int parse_ids(struct flags *f, struct err *e)
{
    struct load_dist d;

    if (!f->ids) return OK;
    if (load_dist_parse(&d, f->ids, NULL) != OK || d.kind != DIST_UNIFORM)
        return err_set(e, E_INVALID, "--ids %s: must be LOW-HIGH, two token ids", f->ids);
    f->plan.id_low = (int)d.a;
    f->plan.id_high = (int)d.b;
    f->plan.completions = true;
    return OK;
}

/* The decimal number that was written: 0.1f as a double is 0.100000001. */
static double to_double(float v) { return round((double)v * 1e6) / 1e6; }

/* Checks the flags and completes the plan: defaults, seeds, the tag of this run. */
static int fill_plan(struct flags *f, struct err *e)
{
    struct load_plan *p = &f->plan;
    int rc;

    if ((rc = check_flags(f, e)) != OK || (rc = parse_ids(f, e)) != OK) return rc;
    if ((rc = load_dist_parse(&p->prompt, f->prompt, e)) != OK)
        return err_wrap(e, "--prompt-tokens");
    if ((rc = load_dist_parse(&p->output, f->output, e)) != OK)
        return err_wrap(e, "--output-tokens");
    p->rate = to_double(f->rate);
    p->burstiness = to_double(f->burstiness);
    p->ramp_s = to_double(f->ramp);
    p->duration_s = to_double(f->duration);
    p->share = to_double(f->share);
    p->temperature = to_double(f->temperature);
    p->cancel = to_double(f->cancel);
    p->disconnect = to_double(f->disconnect);
    p->max_error_rate = to_double(f->max_errors);
    p->timeout_ms = f->timeout_s > 2000000 ? 2000000000 : f->timeout_s * 1000;
    p->n_requests = f->requests ? f->requests : f->duration > 0 ? 0 : 100;
    if (!p->n_clients && f->rate <= 0) p->n_clients = 16;
    p->tag = clock_ns() ^ (uint64_t)getpid() << 40;
    if (!p->key) p->key = getenv("OPENAI_API_KEY");
    if (f->model) snprintf(p->model, sizeof p->model, "%s", f->model);
    return OK;
}

/* Each connection is a file descriptor; the default limit is often 1024. */
static void raise_file_limit(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) return;
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
}

static volatile sig_atomic_t interrupted; /* Ctrl-C: the run ends and reports */

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* load_run_opt.progress: rewrites one line of the terminal. */
static void show_progress(void *arg, const struct load_progress *p)
{
    const struct load_plan *plan = arg;

    if (p->warming_up)
        fprintf(stderr, "\r\033[Kwarm-up: %lld of %d requests", (long long)p->n_warm_done,
                plan->n_warmup);
    else
        fprintf(stderr, "\r\033[K%6.1f s   done %zu   running %d   %.1f tok/s   errors %zu",
                p->seconds, p->n_done, p->running, p->tokens_per_s, p->n_failed);
    fflush(stderr);
}

/* Progress only where stderr is a terminal. */
static int run_load(const struct flags *f, struct load_target *t, struct load_stats *s,
                    struct err *e)
{
    bool progress = !f->quiet && isatty(STDERR_FILENO);
    struct load_run_opt opt = { .progress = progress ? show_progress : NULL,
                                .progress_arg = (void *)&f->plan,
                                .stop = &interrupted };
    int rc;

    raise_file_limit();
    signal(SIGINT, on_interrupt);
    rc = load_run(t, &f->plan, &opt, s, e);
    if (progress) fprintf(stderr, "\r\033[K");
    return rc;
}

/* With --json - the text report moves to stderr, so that stdout is JSON alone. */
static int write_reports(const struct flags *f, struct load_stats *s, struct err *e)
{
    struct buf out = { 0 };
    bool json_on_stdout = f->json && str_is(str_c(f->json), "-");
    int rc = OK;

    if (!f->quiet) {
        load_report_text(&out, &f->plan, s);
        rc = cli_write(json_on_stdout ? stderr : stdout, &out, e);
    }
    if (rc == OK && f->json) {
        load_report_json(&out, &f->plan, s);
        rc = cli_write_file(f->json, &out, e);
    }
    if (rc == OK && f->html) {
        load_report_html(&out, &f->plan, s);
        rc = cli_write_file(f->html, &out, e);
    }
    buf_release(&out);
    return rc;
}

int cmd_load(int argc, char **argv)
{
    struct flags f = { .prompt = "64",
                       .output = "64",
                       .burstiness = 1,
                       .share = 1,
                       .temperature = -1,
                       .max_errors = 0.001f,
                       .timeout_s = 600,
                       .plan.seed = 1 };
    struct load_target_opt target_opt;
    struct load_target target = { 0 };
    struct load_stats stats = { 0 };
    struct err e = { 0 };
    bool helped;
    int rc, code;

    if (parse_flags(&f, argc, argv, &helped, &e) != OK) return cmd_usage("load", &e);
    if (helped) return EXIT_OK;
    if (fill_plan(&f, &e) != OK) return cmd_usage("load", &e);
    target_opt = (struct load_target_opt){ .url = f.plan.url,
                                           .key = f.plan.key,
                                           .insecure = f.plan.insecure };
    rc = load_target_open(&target, &target_opt, &e);
    if (rc == OK) rc = load_probe(&target, &f.plan, &e);
    if (rc != OK) {
        code = rc == E_INVALID ? cmd_usage("load", &e) : cmd_fail(&e);
        if (rc == E_IO) code = EXIT_NO_CONNECTION;
        goto out;
    }
    if ((rc = run_load(&f, &target, &stats, &e)) == OK) rc = write_reports(&f, &stats, &e);
    code = cmd_result(rc, &e);
    if (rc == OK && load_stats_error_rate(&stats) > f.plan.max_error_rate) code = EXIT_FAILED;
out:
    load_stats_release(&stats);
    load_target_release(&target);
    return code;
}
