/* cmd_load.c - tern load: clients against any server that speaks OpenAI's API. */
#include "base/clock.h"
#include "base/file.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "loadtest/load_report.h"
#include "loadtest/load_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { EXIT_ERRORS = 3 };

struct flags {
    struct load_plan plan;
    const char *model, *prompt, *output, *ids, *goodput, *json, *html;
    float rate, burstiness, ramp, duration, share, temperature, cancel, disconnect, max_errors;
    int requests, timeout_s;
    bool chat, stream, ignore_eos, quiet;
};

static const struct verb verb = {
    "load", "tern load URL [flags]",
    "Clients against any server that speaks OpenAI's API: as many at once as told (--clients), or\n"
    "arriving at a rate whatever the server does (--rate). Prints the times to the first token,\n"
    "between tokens and of whole requests.\n\n"
    "  tern load http://127.0.0.1:8080 --clients 16 --duration 30\n"
    "  tern load http://127.0.0.1:8080 --rate 20 -n 1000 --prompt-tokens lognormal:128,0.6 --html "
    "out.html\n"
    "  tern load http://127.0.0.1:8080 --clients 64 --cancel-rate 0.1 --disconnect-rate 0.1\n\n"
    "Exit codes: 0 fine, 1 could not run, 2 wrong usage, 3 more failed than --max-error-rate."
};

static int parse(struct flags *f, int argc, char **argv, bool *helped, struct err *e)
{
    struct load_plan *p = &f->plan;
    const struct arg table[] = {
        { "--clients", "-c", ARG_INT, &p->n_clients, "N",
          "requests at once (16); with --rate: at most" },
        { "--rate", NULL, ARG_FLOAT, &f->rate, "R", "arrivals a second, open loop" },
        { "--burstiness", NULL, ARG_FLOAT, &f->burstiness, "B",
          "1 is Poisson, less comes in bursts (1)" },
        { "--ramp", NULL, ARG_FLOAT, &f->ramp, "S",
          "seconds until the full rate, or all clients (0)" },
        { "--duration", "-d", ARG_FLOAT, &f->duration, "S", "start requests for so long" },
        { "--requests", "-n", ARG_INT, &f->requests, "N", "how many (100 without --duration)" },
        { "--warmup", NULL, ARG_INT, &p->n_warmup, "N", "requests before it counts (0)" },
        { "--prompt-tokens", NULL, ARG_STR, &f->prompt, "D",
          "64, 16-512, exp:128, lognormal:128,0.6 (64)" },
        { "--output-tokens", NULL, ARG_STR, &f->output, "D", "the same (64)" },
        { "--shared-prefix", NULL, ARG_INT, &p->n_shared, "N",
          "tokens that prompts have in common (0)" },
        { "--shared-seed", NULL, ARG_U64, &p->shared_seed, "S",
          "of those, so that several runs share them (--seed)" },
        { "--prefix-share", NULL, ARG_FLOAT, &f->share, "P", "part of the requests that do (1)" },
        { "--chat", NULL, ARG_FLAG, &f->chat, NULL, "/v1/chat/completions (so by default)" },
        { "--completions", NULL, ARG_FLAG, &p->completions, NULL, "/v1/completions" },
        { "--ids", NULL, ARG_STR, &f->ids, "LOW-HIGH",
          "completions of random token ids: exact lengths" },
        { "--stream", NULL, ARG_FLAG, &f->stream, NULL, "(so by default)" },
        { "--no-stream", NULL, ARG_FLAG, &p->no_stream, NULL, "whole replies" },
        { "--ignore-eos", NULL, ARG_FLAG, &f->ignore_eos, NULL,
          "answers as long as asked (so by default)" },
        { "--stop-at-eos", NULL, ARG_FLAG, &p->stop_at_eos, NULL,
          "or end where the model ends them" },
        { "--model", "-m", ARG_STR, &f->model, "NAME", "(the first that the server lists)" },
        { "--api-key", NULL, ARG_STR, &p->key, "KEY", "($OPENAI_API_KEY)" },
        { "--insecure", NULL, ARG_FLAG, &p->insecure, NULL, "any certificate will do" },
        { "--temperature", NULL, ARG_FLOAT, &f->temperature, "T", "(the server's)" },
        { "--seed", NULL, ARG_U64, &p->seed, "S", "of prompts, lengths and arrivals (1)" },
        { "--cancel-rate", NULL, ARG_FLOAT, &f->cancel, "P", "cancelled by id, at any point (0)" },
        { "--disconnect-rate", NULL, ARG_FLOAT, &f->disconnect, "P",
          "closed or reset, at any point (0)" },
        { "--deadline-ms", NULL, ARG_INT, &p->deadline_ms, "MS", "X-Deadline of each request" },
        { "--timeout", NULL, ARG_INT, &f->timeout_s, "S", "of a request; 0: none (600)" },
        { "--no-keepalive", NULL, ARG_FLAG, &p->no_keep, NULL, "a connection for each request" },
        { "--goodput", NULL, ARG_STR, &f->goodput, "G", "ttft:MS,tpot:MS,itl:MS,gap:MS,e2e:MS" },
        { "--max-error-rate", NULL, ARG_FLOAT, &f->max_errors, "P",
          "more failed: exit code 3 (0.001)" },
        { "--json", NULL, ARG_STR, &f->json, "FILE|-", "all numbers" },
        { "--html", NULL, ARG_STR, &f->html, "FILE", "a page with charts" },
        { "--quiet", "-q", ARG_FLAG, &f->quiet, NULL, "no block, no progress" },
        { 0 },
    };
    int n_pos, rc = args_parse(&verb, table, argc, argv, &p->url, 1, &n_pos, helped, e);

    if (rc != OK || *helped) return rc;
    return n_pos == 1 ? OK : err_set(e, E_INVALID, "the URL of the server is missing");
}

static bool is_part(float v) { return v >= 0 && v <= 1; }

static int check(struct flags *f, struct err *e)
{
    struct load_plan *p = &f->plan;

    if (p->n_clients < 0 || p->n_clients > 65536)
        return err_set(e, E_INVALID, "--clients is 1 to 65536");
    if (f->rate < 0 || f->ramp < 0 || f->duration < 0 || f->requests < 0 || p->n_warmup < 0 ||
        p->n_shared < 0 || p->deadline_ms < 0 || f->timeout_s < 0)
        return err_set(e, E_INVALID, "a number is below 0");
    if (!(f->burstiness > 0)) return err_set(e, E_INVALID, "--burstiness is above 0");
    if (!is_part(f->share) || !is_part(f->cancel) || !is_part(f->disconnect) ||
        !is_part(f->max_errors) || f->cancel + f->disconnect > 1)
        return err_set(e, E_INVALID, "a rate or share is not between 0 and 1");
    if (p->n_shared > LOAD_DIST_MAX) return err_set(e, E_INVALID, "--shared-prefix is too long");
    if (p->completions && f->chat)
        return err_set(e, E_INVALID, "--chat or --completions, not both");
    if (f->goodput && !load_goals_parse(&p->goals, f->goodput))
        return err_set(e, E_INVALID,
                       "--goodput takes ttft:MS,tpot:MS,itl:MS,gap:MS,e2e:MS, found '%s'",
                       f->goodput);
    return OK;
}

static int take_ids(struct flags *f, struct err *e)
{
    struct load_dist d;

    if (!f->ids) return OK;
    if (load_dist_parse(&d, f->ids, NULL) != OK || d.kind != DIST_UNIFORM)
        return err_set(e, E_INVALID, "--ids takes LOW-HIGH, found '%s'", f->ids);
    f->plan.id_low = (int)d.a;
    f->plan.id_high = (int)d.b;
    f->plan.completions = true;
    return OK;
}

/* As it was written: 0.1f is not 0.1. */
static double exact(float v) { return round((double)v * 1e6) / 1e6; }

static int settle(struct flags *f, struct err *e)
{
    struct load_plan *p = &f->plan;
    int rc;

    if ((rc = check(f, e)) != OK || (rc = take_ids(f, e)) != OK) return rc;
    if ((rc = load_dist_parse(&p->prompt, f->prompt, e)) != OK)
        return err_wrap(e, "--prompt-tokens");
    if ((rc = load_dist_parse(&p->output, f->output, e)) != OK)
        return err_wrap(e, "--output-tokens");
    p->rate = exact(f->rate);
    p->burstiness = exact(f->burstiness);
    p->ramp_s = exact(f->ramp);
    p->duration_s = exact(f->duration);
    p->share = exact(f->share);
    p->temperature = exact(f->temperature);
    p->cancel = exact(f->cancel);
    p->disconnect = exact(f->disconnect);
    p->max_error_rate = exact(f->max_errors);
    p->timeout_ms = f->timeout_s > 2000000 ? 2000000000 : f->timeout_s * 1000;
    p->n_requests = f->requests ? f->requests : f->duration > 0 ? 0 : 100;
    if (!p->n_clients && f->rate <= 0) p->n_clients = 16;
    p->tag = clock_ns() ^ (uint64_t)getpid() << 40;
    if (!p->key) p->key = getenv("OPENAI_API_KEY");
    if (f->model) snprintf(p->model, sizeof p->model, "%s", f->model);
    return OK;
}

static int write_out(const char *path, struct buf *b, struct err *e)
{
    int rc = OK;

    if (str_is(str_c(path), "-")) {
        if (fwrite(b->p, 1, b->n, stdout) != b->n || fflush(stdout))
            rc = err_set(e, E_IO, "cannot write to stdout");
    } else {
        rc = file_replace(path, buf_str(b), e);
    }
    buf_clear(b);
    return rc;
}

static int report(const struct flags *f, struct load_stats *s, struct err *e)
{
    struct buf out = { 0 };
    bool json_here = f->json && str_is(str_c(f->json), "-");
    int rc = OK;

    if (!f->quiet) {
        load_report_text(&out, &f->plan, s);
        fputs(buf_cstr(&out), json_here ? stderr : stdout);
        buf_clear(&out);
    }
    if (f->json) {
        load_report_json(&out, &f->plan, s);
        rc = write_out(f->json, &out, e);
    }
    if (rc == OK && f->html) {
        load_report_html(&out, &f->plan, s);
        rc = write_out(f->html, &out, e);
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
    struct load_target target = { 0 };
    struct load_stats stats = { 0 };
    struct err e = { 0 };
    bool helped;
    int rc;

    if (parse(&f, argc, argv, &helped, &e) != OK) return cmd_usage("load", &e);
    if (helped) return EXIT_OK;
    if (settle(&f, &e) != OK) return cmd_usage("load", &e);
    if ((rc = load_target_open(&target, f.plan.url, f.plan.key, f.plan.insecure, &e)) != OK)
        goto out;
    if ((rc = load_probe(&target, &f.plan, &e)) != OK) goto out;
    if ((rc = load_run(&target, &f.plan, !f.quiet && isatty(2), &stats, &e)) != OK) goto out;
    rc = report(&f, &stats, &e);
out:
    if (rc == OK && load_stats_error_rate(&stats) > f.plan.max_error_rate) rc = EXIT_ERRORS;
    else rc = rc == OK ? EXIT_OK : cmd_fail(&e);
    load_stats_release(&stats);
    load_target_release(&target);
    return rc;
}
