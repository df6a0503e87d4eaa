/* cmd_verify.c - tern verify: reads a model's files whole and says whether they are sound
 * (pool/modelcheck.h). */
#include "base/clock.h"
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/progress.h"
#include "format/manifest.h"
#include "pool/modelcheck.h"

#include <stdio.h>

static const struct verb verb = {
    "verify",
    "tern verify MODEL [--verify-manifest require]",
    "Reads all of a GGUF file, a .safetensors file, an ONNX file or a Hugging Face folder and\n"
    "checks the header, the shape and type of every tensor, the tokenizer, and every number: a\n"
    "NaN or an infinite one is reported with its tensor and row. Where the model has a manifest\n"
    "(SHA256SUMS in its folder, or FILE.gguf.sha256), the size and the SHA-256 of every file are\n"
    "compared with it first. Exit status 1: the model is damaged.\n\n"
    "examples:\n"
    "  tern verify models/tern-tales.gguf",
};

struct verify {
    struct modelcheck check;
    struct guard guard;
    const char *manifest; /* --verify-manifest; NULL: the manifest is checked if there is one */
    struct progress bar;
    bool quiet, json;
    struct buf found_text; /* --json: tensors with numbers that are not finite, an array */
    struct jsonw found;    /* into found_text */
};

/* All finds are printed. */
static void on_found(void *arg, const char *text)
{
    struct verify *v = arg;

    if (v->json) jsonw_str(&v->found, str_c(text));
    else printf("%s\n", text);
}

static void on_progress(void *arg, uint64_t done, uint64_t total, const char *name)
{
    progress_show(arg, done, total, name);
}

static void on_decrypted(void *arg, uint64_t done, uint64_t total)
{
    struct verify *v = arg;

    progress_show(&v->bar, done, total, "decrypting");
}

/* Before the files are parsed. */
static int check_manifest(const struct verify *v, struct err *e)
{
    struct progress bar;
    struct manifest_opt opt = { .progress = on_progress, .arg = &bar };
    struct manifest_result r;
    enum manifest_mode mode = MANIFEST_WARN;
    int rc;

    if (v->manifest) manifest_mode_by_name(v->manifest, &mode);
    if (mode == MANIFEST_OFF) return OK;
    progress_begin(&bar, true, v->quiet);
    rc = manifest_check(v->check.path, &opt, &r, e);
    progress_end(&bar);
    if (rc == E_NOTFOUND && mode == MANIFEST_WARN) return OK; /* it need not have one */
    if (rc == OK && !v->json)
        printf("%s: %zu %s as listed\n", r.path, r.n_files, r.n_files == 1 ? "file" : "files");
    else if (v->manifest && mode == MANIFEST_WARN && rc == E_DAMAGED)
        rc = fprintf(stderr, "tern: warning: %s\n", e->msg) < 0 ? E_IO : OK;
    return rc;
}

static int verify_model(struct verify *v, struct err *e)
{
    uint64_t start = clock_ns();
    int rc;

    if ((rc = cmd_model(&v->check.path, e)) != OK) return rc;
    if ((rc = guard_join(&v->guard, e)) != OK) return rc;
    if ((rc = check_manifest(v, e)) != OK) return rc;
    v->check.found = on_found;
    v->check.decrypting = on_decrypted;
    v->check.arg = v;
    progress_begin(&v->bar, true, v->quiet);
    rc = modelcheck_run(&v->check, e);
    progress_end(&v->bar);
    if (rc != OK || v->json) return rc;
    printf("%s: sound: %zu tensors, %.1f MiB, all numbers are finite (%.1f s)\n", v->check.path,
           v->check.n_tensors, (double)v->check.bytes / (1 << 20), clock_ms_since(start) / 1000);
    return OK;
}

/* --json: one object, also for a model that is not sound. */
static void print_json(struct verify *v, int rc, const struct err *e)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };

    jsonw_end(&v->found);
    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(v->check.path));
    jsonw_key(&w, "sound"), jsonw_bool(&w, rc == OK);
    jsonw_key(&w, "tensors"), jsonw_int(&w, (int64_t)v->check.n_tensors);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)v->check.bytes);
    jsonw_key(&w, "not_finite"), jsonw_raw(&w, str_c(cli_text(&v->found_text)));
    jsonw_key(&w, "error"), jsonw_str(&w, str_c(rc == OK ? "" : e->msg));
    jsonw_end(&w);
    printf("%s\n", cli_text(&out));
    buf_release(&out);
}

int cmd_verify(int argc, char **argv)
{
    struct verify v = { 0 };
    const struct arg table[] = {
        GUARD_KEY_ARGS(&v.guard),
        { "--verify-manifest", NULL, ARG_STR, &v.manifest, "MODE",
          "off, warn, or require a manifest (checked if there is one)" },
        { "--json", NULL, ARG_FLAG, &v.json, NULL, "print the result as JSON" },
        { "--quiet", "-q", ARG_FLAG, &v.quiet, NULL, "no progress bar" },
        { 0 },
    };
    enum manifest_mode mode;
    const char *pos[1] = { NULL };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    rc = args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e);
    if (rc != OK) return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    if (v.manifest && !manifest_mode_by_name(v.manifest, &mode)) {
        err_set(&e, E_INVALID, "--verify-manifest %s: must be off, warn or require", v.manifest);
        return cmd_usage(verb.name, &e);
    }
    v.check.path = pos[0];
    if (cmd_need_model(&v.check.path, &e) != OK) return cmd_usage(verb.name, &e);
    v.found.out = &v.found_text;
    jsonw_arr(&v.found);
    rc = verify_model(&v, &e);
    if (v.json) print_json(&v, rc, &e);
    buf_release(&v.found_text);
    guard_release(&v.guard);
    return cmd_result(rc, &e);
}
