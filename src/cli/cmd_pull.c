/* cmd_pull.c - tern pull: download a model of the Hugging Face Hub. The work is in tern-pull.so; here
 * are the flags, the environment, Ctrl-C, and the progress: a bar, lines, or JSON. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/progress.h"
#include "cli/pulllib.h"
#include "format/hubcache.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct verb verb = {
    "pull",
    "tern pull hf:ORG/NAME[@REV][:FILE] [flags]",
    "Downloads a model of the Hugging Face Hub into the cache of Hugging Face's tools, and prints\n"
    "where it is. Of a repository with several GGUF files it takes the Q4_K_M one, or the one "
    "that\n"
    "FILE names: its path, or a word of its name such as Q8_0. Otherwise it takes config.json, "
    "the\n"
    "tokenizer and the .safetensors or .onnx files. An interrupted download goes on where it was.\n"
    "Every file is checked against the hub's checksum.\n\n"
    "Environment: HF_TOKEN (private and gated models), HF_ENDPOINT (another hub), HF_HOME and\n"
    "HF_HUB_CACHE (where the cache is), https_proxy, SSL_CERT_FILE.\n\n"
    "Exit codes: 0 it is here, 1 failed, 2 wrong usage or a choice is needed, 3 no connection.\n\n"
    "examples:\n"
    "  tern pull hf:Qwen/Qwen3-0.6B-GGUF\n"
    "  tern pull hf:Qwen/Qwen3-8B-GGUF:Q8_0\n"
    "  tern pull hf:Qwen/Qwen3-0.6B@main --json",
};

enum { SIGNAL_BASE = 128, LINE_PERCENT = 10 };

struct job {
    struct pull_opt opt;
    const char *range;
    bool json, quiet;
    struct buf token, out; /* out: JSON */
    struct progress bar;
    bool has_bar; /* it is on the screen */
    int percent;  /* of the last line */
};

static volatile sig_atomic_t stopped;

/* The second one ends the program at once; the record of the download is on disk. */
static void on_signal(int sig)
{
    if (stopped) _exit(SIGNAL_BASE + sig);
    stopped = 1;
}

/* ---- what is shown ---- */

static void write_json(struct job *j)
{
    struct err e;

    buf_putc(&j->out, '\n');
    if (cli_write(stdout, &j->out, &e) != OK) stopped = 1; /* nobody reads */
}

static void show_json(struct job *j, const struct pull_event *ev)
{
    static const char *const names[] = { "offer", "plan", "progress", "file", "note" };
    struct jsonw w = { .out = &j->out };

    jsonw_obj(&w);
    jsonw_key(&w, "event"), jsonw_str(&w, str_c(names[ev->what]));
    if (ev->file) jsonw_key(&w, "file"), jsonw_str(&w, str_c(ev->file));
    if (ev->sum && *ev->sum) jsonw_key(&w, "sum"), jsonw_str(&w, str_c(ev->sum));
    if (ev->file_total) {
        jsonw_key(&w, "file_done"), jsonw_int(&w, (int64_t)ev->file_done);
        jsonw_key(&w, "file_bytes"), jsonw_int(&w, (int64_t)ev->file_total);
    }
    if (ev->text) jsonw_key(&w, "text"), jsonw_str(&w, str_c(ev->text));
    if (ev->what == PULL_PLAN) jsonw_key(&w, "files"), jsonw_int(&w, ev->n_files);
    if (ev->what == PULL_PLAN || ev->what == PULL_PROGRESS)
        jsonw_key(&w, "done"), jsonw_int(&w, (int64_t)ev->done);
    if (ev->what != PULL_NOTE) jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)ev->total);
    jsonw_end(&w);
    write_json(j);
}

/* A line of its own: the bar is erased first, and drawn again with the next progress. */
static void show_line(struct job *j, const char *format, const char *text, uint64_t bytes)
{
    if (j->quiet) return;
    if (j->has_bar) {
        progress_end(&j->bar);
        progress_begin(&j->bar, true, false);
        j->has_bar = false;
    }
    fprintf(stderr, format, text, (double)bytes / 1e6);
}

/* Not on a terminal: a line for every tenth. */
static void show_percent(struct job *j, const struct pull_event *ev)
{
    int percent = ev->total ? (int)(100 * ev->done / ev->total) : 100;

    if (j->quiet || percent < j->percent + LINE_PERCENT || percent == 100) return;
    j->percent = percent - percent % LINE_PERCENT;
    fprintf(stderr, "%d%% of %.1f MB\n", j->percent, (double)ev->total / 1e6);
}

static void show_event(void *arg, const struct pull_event *ev)
{
    struct job *j = arg;

    if (j->json) {
        show_json(j, ev);
        return;
    }
    switch (ev->what) {
    case PULL_OFFER: show_line(j, "  %s (%.1f MB)\n", ev->file, ev->total); break;
    case PULL_NOTE: show_line(j, "%s\n", ev->text, 0); break;
    case PULL_FILE:
        show_line(j, "%s: %.1f MB, the checksum is right\n", ev->file, ev->total);
        break;
    case PULL_PLAN:
        if (!j->quiet)
            fprintf(stderr, "%d files, %.1f MB; %.1f MB of them are here\n", ev->n_files,
                    (double)ev->total / 1e6, (double)ev->done / 1e6);
        break;
    case PULL_PROGRESS:
        progress_show(&j->bar, ev->done, ev->total, ev->file);
        j->has_bar = j->bar.on;
        if (!j->bar.on) show_percent(j, ev);
        break;
    }
}

/* ---- settings ---- */

/* The token of HF_TOKEN, else of the file that Hugging Face's login writes. */
static void read_token(struct job *j)
{
    const char *named = getenv("HF_TOKEN"), *file = getenv("HF_TOKEN_PATH"),
               *home = getenv("HF_HOME"), *user = getenv("HOME");
    struct buf path = { 0 }, text = { 0 };

    if (named) {
        buf_put_str(&j->token, str_trim(str_c(named)));
    } else {
        if (file && *file) buf_puts(&path, file);
        else if (home && *home) buf_printf(&path, "%s/token", home);
        else buf_printf(&path, "%s/.cache/huggingface/token", user ? user : "");
        if (file_read(&text, cli_text(&path), 4096, NULL) == OK)
            buf_put_str(&j->token, str_trim(buf_str(&text)));
    }
    j->opt.token = cli_text(&j->token);
    buf_release(&path);
    buf_release(&text);
}

static const char *first_of(const char *a, const char *b, const char *otherwise)
{
    const char *x = getenv(a), *y = b ? getenv(b) : NULL;
    return x && *x ? x : y && *y ? y : otherwise;
}

/* The endpoint without a slash at its end. */
static char *read_endpoint(void)
{
    char *s = cli_need(mem_strdup(first_of("HF_ENDPOINT", NULL, "https://huggingface.co")));

    for (size_t n = strlen(s); n > 0 && s[n - 1] == '/'; n--) s[n - 1] = 0;
    return s;
}

static int check_flags(struct job *j, int n_pos, struct err *e)
{
    struct hf_ref r;
    int rc;

    if (n_pos == 0) return err_set(e, E_INVALID, "no model: tern pull hf:ORG/NAME[:FILE]");
    if ((rc = cmd_alias(&j->opt.name, e)) != OK) return rc;
    if ((rc = modelref_parse(&r, str_c(j->opt.name), e)) != OK) return rc;
    if (j->opt.connections < 1 || j->opt.connections > 64)
        return err_set(e, E_INVALID, "--connections %d: must be 1 to 64", j->opt.connections);
    if (!cmd_size(j->range, &j->opt.range_bytes) || j->opt.range_bytes < 4096)
        return err_set(e, E_INVALID, "--range %s: must be a size of 4K or more, such as 16M",
                       j->range);
    if (j->opt.retries < 0 || j->opt.retries > 100)
        return err_set(e, E_INVALID, "--retries %d: must be 0 to 100", j->opt.retries);
    if (j->opt.retry_ms < 1 || j->opt.retry_ms > 60000)
        return err_set(e, E_INVALID, "--retry-ms %d: must be 1 to 60000", j->opt.retry_ms);
    if (j->opt.stall_s < 1)
        return err_set(e, E_INVALID, "--stall %d: must be 1 or more", j->opt.stall_s);
    return OK;
}

/* ---- the result ---- */

static void show_result(struct job *j, const struct pull_result *r)
{
    struct jsonw w = { .out = &j->out };

    if (!j->json) {
        printf("%s\n", r->path);
        return;
    }
    jsonw_obj(&w);
    jsonw_key(&w, "event"), jsonw_str(&w, STR("done"));
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(r->path));
    jsonw_key(&w, "commit"), jsonw_str(&w, str_c(r->commit));
    jsonw_key(&w, "files"), jsonw_int(&w, r->n_files);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)r->bytes);
    jsonw_key(&w, "downloaded"), jsonw_int(&w, (int64_t)r->downloaded);
    jsonw_end(&w);
    write_json(j);
}

static int show_failure(struct job *j, int rc, const struct pull_result *r, const struct err *e)
{
    struct jsonw w = { .out = &j->out };
    int code = r->no_connection    ? EXIT_NO_CONNECTION
               : rc == E_INVALID   ? EXIT_USAGE
               : rc == E_CANCELLED ? EXIT_INTERRUPTED
                                   : EXIT_FAILED;

    if (j->json) {
        jsonw_obj(&w);
        jsonw_key(&w, "event"), jsonw_str(&w, STR("error"));
        jsonw_key(&w, "code"), jsonw_str(&w, str_c(err_name(rc)));
        jsonw_key(&w, "message"), jsonw_str(&w, str_c(e->msg));
        jsonw_end(&w);
        write_json(j);
    }
    cmd_fail(e);
    return code;
}

static int pull_model(struct job *j)
{
    struct sigaction on = { .sa_handler = on_signal }, old[2];
    struct pull_result r = { 0 };
    struct err e = { 0 };
    pull_run_fn *run = NULL;
    int rc = pulllib_open(&run, &e);

    if (rc == OK) {
        sigaction(SIGINT, &on, &old[0]);
        sigaction(SIGTERM, &on, &old[1]);
        progress_begin(&j->bar, true, j->quiet || j->json);
        rc = run(&j->opt, &r, &e);
        progress_end(&j->bar);
        sigaction(SIGINT, &old[0], NULL);
        sigaction(SIGTERM, &old[1], NULL);
    }
    if (rc != OK) return show_failure(j, rc, &r, &e);
    show_result(j, &r);
    return EXIT_OK;
}

int cmd_pull(int argc, char **argv)
{
    struct job j = { .range = "16M",
                     .opt = { .size = sizeof j.opt,
                              .connections = 8,
                              .retries = 5,
                              .retry_ms = 1000,
                              .stall_s = 60,
                              .tell = show_event,
                              .stop = &stopped } };
    const struct arg table[] = {
        { "--connections", NULL, ARG_INT, &j.opt.connections, "N", "connections at once (8)" },
        { "--range", NULL, ARG_STR, &j.range, "SIZE", "bytes of one request (16M)" },
        { "--retries", NULL, ARG_INT, &j.opt.retries, "N", "tries again without progress (5)" },
        { "--retry-ms", NULL, ARG_INT, &j.opt.retry_ms, "MS",
          "wait before the first of them, doubled each time (1000)" },
        { "--stall", NULL, ARG_INT, &j.opt.stall_s, "S",
          "seconds without a byte until a connection is given up (60)" },
        { "--json", NULL, ARG_FLAG, &j.json, NULL, "print events as lines of JSON on stdout" },
        { "--quiet", "-q", ARG_FLAG, &j.quiet, NULL, "no progress" },
        { 0 },
    };
    char *endpoint = NULL, *cache = NULL;
    struct err e = { 0 };
    bool helped;
    int n_pos, rc, code;

    rc = args_parse(&verb, table, argc, argv, &j.opt.name, 1, &n_pos, &helped, &e);
    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK) rc = check_flags(&j, n_pos, &e);
    if (rc != OK) return cmd_usage(verb.name, &e);
    j.opt.arg = &j;
    j.opt.endpoint = endpoint = read_endpoint();
    j.opt.cache = cache = cli_need(hubcache_dir());
    j.opt.ca_file = first_of("CURL_CA_BUNDLE", "SSL_CERT_FILE", NULL);
    read_token(&j);
    code = pull_model(&j);
    mem_free(endpoint);
    mem_free(cache);
    buf_release(&j.token);
    buf_release(&j.out);
    return code;
}
