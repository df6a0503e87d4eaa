/* cmd_batch.c - tern batch: runs the lines of a JSONL file, with a model here or on a server. The work is
 * cli/batch; here are the flags, Ctrl-C and the summary. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/batchfile.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"

#include <stdio.h>
#include <unistd.h>

static const struct verb verb = {
    "batch", "tern batch IN.jsonl OUT.jsonl [-m MODEL | --url URL] [flags]",
    "Runs every line of a file in the form of OpenAI's batches:\n"
    "{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {...}}\n"
    "and appends one line with its answer to OUT.jsonl, in the order in which they end. The urls\n"
    "are /v1/chat/completions, /v1/completions, /v1/responses and /v1/embeddings. A command that\n"
    "was interrupted or killed goes on when it is run again: lines with a result are skipped.\n\n"
    "examples:\n"
    "  tern batch in.jsonl out.jsonl -m model.gguf\n"
    "  tern batch in.jsonl out.jsonl --error-file errors.jsonl --json\n"
    "  tern batch in.jsonl out.jsonl --url http://127.0.0.1:8080 --at-once 16\n\n"
    "Exit codes: 0 every line has an answer with status 200, 1 some failed, or the batch could "
    "not\n"
    "be run, 2 wrong usage, 3 no server answers, 130 interrupted."
};

static volatile sig_atomic_t stop;

static void on_interrupt(int sig)
{
    (void)sig;
    stop = 1;
}

static void print_json(const struct batchfile *b, double seconds)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };

    jsonw_obj(&w);
    jsonw_key(&w, "total"), jsonw_int(&w, b->n);
    jsonw_key(&w, "completed"), jsonw_int(&w, b->n_good);
    jsonw_key(&w, "failed"), jsonw_int(&w, b->n_bad);
    jsonw_key(&w, "left"), jsonw_int(&w, b->n - b->n_done);
    jsonw_key(&w, "resumed"), jsonw_int(&w, b->n_before);
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, b->prompt_tokens);
    jsonw_key(&w, "completion_tokens"), jsonw_int(&w, b->output_tokens);
    jsonw_key(&w, "seconds"), jsonw_num(&w, (double)(int64_t)(seconds * 1000) / 1000);
    jsonw_end(&w);
    printf("%s\n", cli_text(&out));
    buf_release(&out);
}

static void print_summary(const struct batchfile *b, double seconds)
{
    fprintf(stderr, "%d lines: %d completed, %d failed", b->n, b->n_good, b->n_bad);
    if (b->n_before) fprintf(stderr, ", %d of them before", b->n_before);
    if (b->n_done < b->n)
        fprintf(stderr, "; %d left: run the command again to go on", b->n - b->n_done);
    fprintf(stderr, " (%.1f s, %lld tokens)\n", seconds, (long long)b->output_tokens);
}

/* Which of the two the flags ask for, and whether they go together. */
static int check_flags(const struct batchfile *b, bool remote, const char *model, int at_once,
                       struct err *e)
{
    if (remote && model)
        return err_set(e, E_INVALID, "-m and --url: the server has its own models");
    if (at_once < 0 || at_once > 4096)
        return err_set(e, E_INVALID, "--at-once %d: must be 1 to 4096", at_once);
    if (strcmp(b->in, b->out) == 0 || (b->errors && strcmp(b->errors, b->out) == 0))
        return err_set(e, E_INVALID, "input, output and --error-file must be different files");
    return OK;
}

int cmd_batch(int argc, char **argv)
{
    struct batchfile b = { 0 };
    struct batchfile_local local = { 0 };
    struct guard guard = { 0 };
    struct remote_opt ro = { 0 };
    struct remote remote = { 0 };
    bool json = false, quiet = false, helped, is_remote;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &local.model, "MODEL",
          "GGUF file, ONNX file or Hugging Face folder (the model that ships with tern)" },
        { "--error-file", NULL, ARG_STR, &b.errors, "FILE",
          "answers with another status than 200 go here (OUT.jsonl)" },
        { "--at-once", "-n", ARG_INT, &local.at_once, "N",
          "lines that run at a time (16; on a server 8)" },
        { "--json", NULL, ARG_FLAG, &json, NULL, "print the summary as JSON on stdout" },
        { "--quiet", "-q", ARG_FLAG, &quiet, NULL, "no progress bar and no summary" },
        { "--ctx", "-c", ARG_INT, &local.n_ctx, "N",
          "context in tokens (as trained, as memory allows)" },
        { "--threads", "-t", ARG_INT, &local.n_threads, "N", "threads (physical cores)" },
        { "--device", NULL, ARG_STR, &local.device, "NAME", "cpu, cuda, cuda:1 (cpu)" },
        { "--kv-type", NULL, ARG_STR, &local.kv_type, "TYPE", "f16, bf16, q8_0, f8, f32 (f16)" },
        GUARD_ARGS(&guard),
        REMOTE_ARGS(&ro),
        { 0 },
    };
    const char *pos[2];
    struct err e = { 0 };
    uint64_t start;
    int n_pos, rc, code;

    if (args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    if (n_pos != 2) {
        err_set(&e, E_INVALID, "two files are needed: IN.jsonl and OUT.jsonl");
        return cmd_usage(verb.name, &e);
    }
    b.in = pos[0];
    b.out = pos[1];
    is_remote = ro.url || ro.socket;
    if (check_flags(&b, is_remote, local.model, local.at_once, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (is_remote) {
        if ((rc = remote_open(&remote, &ro, &e)) != OK)
            return remote_result(&remote, verb.name, rc, &e);
    } else {
        if (cmd_need_model(&local.model, &e) != OK) return cmd_usage(verb.name, &e);
        if (cmd_model(&local.model, &e) != OK) return cmd_fail(&e);
        if ((rc = guard_check(&guard, local.model, &e)) != OK)
            return rc == E_INVALID ? cmd_usage(verb.name, &e) : cmd_fail(&e);
    }
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
    start = clock_ns();
    rc = batchfile_open(&b, &e);
    progress_begin(&b.bar, false, quiet);
    if (rc == OK && b.n_done < b.n)
        rc = is_remote ? batchfile_run_remote(&b, &remote, local.at_once, &stop, &e)
                       : batchfile_run_local(&b, &local, &stop, &e);
    progress_end(&b.bar);
    guard_release(&guard);
    if (rc == OK && json) print_json(&b, clock_ms_since(start) / 1e3);
    else if (rc == OK && !quiet) print_summary(&b, clock_ms_since(start) / 1e3);
    if (rc != OK) code = is_remote ? remote_result(&remote, verb.name, rc, &e) : cmd_fail(&e);
    else code = stop && b.n_done < b.n ? EXIT_INTERRUPTED : b.n_bad ? EXIT_FAILED : EXIT_OK;
    batchfile_close(&b);
    if (is_remote) remote_close(&remote);
    return code;
}
