/* cmd_verify.c - tern verify: reads a model's files whole and says whether they are sound.
 *
 * Checked are the header, the shapes and types of all tensors that the architecture has, the
 * tokenizer, and every number: none may be NaN or infinite. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/progress.h"
#include "format/manifest.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "model/onnxrunner.h"
#include "model/scan.h"
#include "model/weightlist.h"
#include "token/tokenizer.h"

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
    const char *path;
    struct loadplan *plan; /* NULL: a lone .safetensors file */
    struct source *source; /* of the plan, or its own */
    struct arena arena;
    struct guard guard;
    const char *manifest; /* --verify-manifest; NULL: the manifest is checked if there is one */
    bool quiet, json;
    int n_bad;             /* tensors with numbers that are not finite */
    struct buf found_text; /* --json: what was found in them, an array */
    struct jsonw found;    /* into found_text */
};

/* A .safetensors file without config.json is tensors only. */
static int open_files(struct verify *v, struct err *e)
{
    uint64_t n;
    struct value type;
    int rc = source_open_head(&v->source, v->path, e);

    if (rc != OK) return rc;
    if (!source_onnx(v->source) && source_kind(v->source) == SOURCE_HF &&
        !source_key(v->source, "model_type", &type) && !source_u64(v->source, "hidden_size", &n))
        return OK;
    source_close(v->source);
    v->source = NULL;
    if ((rc = loadplan_read(&v->plan, v->path, e)) == OK) v->source = v->plan->source;
    return rc;
}

/* Every tensor that the architecture has is there and has its shape and a type for it. */
static int check_tensors(struct verify *v, struct err *e)
{
    struct weight_list list;

    if (!v->plan || !v->plan->hp) return OK;
    return weights_find(&list, &v->arena, v->plan->hp, v->source, e);
}

/* A model without a tokenizer is fine; one with a damaged tokenizer is not. */
static int check_tokenizer(const struct verify *v, struct err *e)
{
    struct tokenizer *t = NULL;
    int rc = v->plan ? tokenizer_open(&t, source_path(v->source), e) : OK;

    tokenizer_close(t);
    return rc == E_NOTFOUND ? OK : rc;
}

/* All finds are printed. */
static int check_numbers(struct verify *v, struct err *e)
{
    int rc = v->plan && v->plan->graph ? scan_graph(v->plan->graph->file, e) : OK;

    for (size_t i = 0; i < source_n_tensors(v->source) && rc == OK; i++) {
        if (scan_tensor(v->source, source_tensor(v->source, i), e) == OK) continue;
        if (v->json) jsonw_str(&v->found, str_c(e->msg));
        else printf("%s\n", e->msg);
        v->n_bad++;
    }
    if (rc != OK || !v->n_bad) return rc;
    return err_set(e, E_DAMAGED, "%s: %d of %zu tensors contain NaN or infinity", v->path, v->n_bad,
                   source_n_tensors(v->source));
}

static void on_progress(void *arg, uint64_t done, uint64_t total, const char *name)
{
    progress_show(arg, done, total, name);
}

static void on_decrypted(void *arg, uint64_t done, uint64_t total)
{
    progress_show(arg, done, total, "decrypting");
}

static int decrypt_tensors(const struct verify *v, struct err *e)
{
    struct progress bar;
    int rc;

    progress_begin(&bar, true, v->quiet);
    rc = source_fill(v->source, on_decrypted, &bar, e);
    progress_end(&bar);
    return rc;
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
    rc = manifest_check(v->path, &opt, &r, e);
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

    if ((rc = cmd_model(&v->path, e)) != OK) return rc;
    if ((rc = guard_join(&v->guard, e)) != OK) return rc;
    if ((rc = check_manifest(v, e)) != OK) return rc;
    if ((rc = open_files(v, e)) != OK) return rc;
    if ((rc = decrypt_tensors(v, e)) != OK) return rc;
    if ((rc = check_tensors(v, e)) != OK) return rc;
    if ((rc = check_tokenizer(v, e)) != OK) return rc;
    if ((rc = check_numbers(v, e)) != OK) return rc;
    if (source_is_damaged(v->source, e)) return E_DAMAGED;
    if (v->json) return OK;
    printf("%s: sound: %zu tensors, %.1f MiB, all numbers are finite (%.1f s)\n", v->path,
           source_n_tensors(v->source), (double)source_bytes(v->source) / (1 << 20),
           clock_ms_since(start) / 1000);
    return OK;
}

/* --json: one object, also for a model that is not sound. */
static void print_json(struct verify *v, int rc, const struct err *e)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };

    jsonw_end(&v->found);
    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(v->path));
    jsonw_key(&w, "sound"), jsonw_bool(&w, rc == OK);
    jsonw_key(&w, "tensors"), jsonw_int(&w, v->source ? (int64_t)source_n_tensors(v->source) : 0);
    jsonw_key(&w, "bytes"), jsonw_int(&w, v->source ? (int64_t)source_bytes(v->source) : 0);
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
    v.path = pos[0];
    if (cmd_need_model(&v.path, &e) != OK) return cmd_usage(verb.name, &e);
    v.found.out = &v.found_text;
    jsonw_arr(&v.found);
    rc = verify_model(&v, &e);
    if (v.json) print_json(&v, rc, &e);
    buf_release(&v.found_text);
    guard_release(&v.guard);
    if (!v.plan) source_close(v.source);
    loadplan_close(v.plan);
    arena_release(&v.arena);
    return cmd_result(rc, &e);
}
