/* cmd_manifest.c - tern manifest: writes the sizes and SHA-256 sums of a model's files. */
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/progress.h"
#include "format/manifest.h"

static const struct verb verb = {
    "manifest",
    "tern manifest MODEL [--check]",
    "Writes the size and the SHA-256 of every file of a model into a file beside it: SHA256SUMS "
    "in\n"
    "a folder, FILE.gguf.sha256 beside a GGUF file (beside the first part of a split one). tern\n"
    "verify and the flag --verify-manifest compare the model with it, and so does sha256sum -c.\n"
    "convert, quantize, encrypt and pull write it by themselves. A manifest tells accidents from\n"
    "intact files; keep a copy elsewhere where somebody else may write to the folder.\n\n"
    "examples:\n"
    "  tern manifest models/llama-3.2-1b-q8_0.gguf\n"
    "  tern manifest Llama-3.2-1B/ --check",
};

struct manifest_flags {
    const char *model;
    int threads;
    bool check, json, quiet;
};

static void on_progress(void *arg, uint64_t done, uint64_t total, const char *name)
{
    progress_show(arg, done, total, name);
}

static int write_or_check(const struct manifest_flags *f, struct manifest_result *r, struct err *e)
{
    struct progress bar;
    struct manifest_opt opt = { .n_threads = f->threads, .progress = on_progress, .arg = &bar };
    int rc;

    progress_begin(&bar, true, f->quiet);
    rc = f->check ? manifest_check(f->model, &opt, r, e) : manifest_write(f->model, &opt, r, e);
    progress_end(&bar);
    return rc;
}

static int print_result(const struct manifest_flags *f, const struct manifest_result *r,
                        struct err *e)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    int rc;

    if (f->json) {
        jsonw_obj(&w);
        jsonw_key(&w, "manifest"), jsonw_str(&w, str_c(r->path));
        jsonw_key(&w, "checked"), jsonw_bool(&w, f->check);
        jsonw_key(&w, "files"), jsonw_int(&w, (int64_t)r->n_files);
        jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)r->bytes);
        jsonw_key(&w, "sha256"), jsonw_str(&w, str_c(r->sum));
        jsonw_end(&w);
        buf_putc(&out, '\n');
    } else {
        buf_printf(&out, "%s: %zu %s, %.1f MiB%s\n", r->path, r->n_files,
                   r->n_files == 1 ? "file" : "files", (double)r->bytes / (1 << 20),
                   f->check ? ", all as listed" : "");
    }
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

int cmd_manifest(int argc, char **argv)
{
    struct manifest_flags f = { 0 };
    struct manifest_result r = { 0 };
    const struct arg table[] = {
        { "--check", NULL, ARG_FLAG, &f.check, NULL, "compare the files with the manifest" },
        { "--threads", "-t", ARG_INT, &f.threads, "N",
          "files hashed at once (physical cores, at most 8)" },
        { "--json", NULL, ARG_FLAG, &f.json, NULL, "print the result as one JSON line" },
        { "--quiet", "-q", ARG_FLAG, &f.quiet, NULL, "no progress bar" },
        { 0 },
    };
    const char *pos[1] = { NULL };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    if (args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    f.model = pos[0];
    if (!f.model) {
        err_set(&e, E_INVALID, "one argument is needed: a model");
        return cmd_usage(verb.name, &e);
    }
    rc = cmd_model(&f.model, &e);
    if (rc == OK) rc = write_or_check(&f, &r, &e);
    if (rc == OK) rc = print_result(&f, &r, &e);
    return cmd_result(rc, &e);
}
