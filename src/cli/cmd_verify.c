/* cmd_verify.c - tern verify: reads a model's files whole and says whether they are sound.
 *
 * Checked are the header, the shapes and types of all tensors that the architecture has, the
 * tokenizer, and every number: none may be NaN or infinite. */
#include "base/clock.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "model/onnxrunner.h"
#include "model/scan.h"
#include "model/weightlist.h"
#include "token/tokenizer.h"

#include <stdio.h>

static const struct verb verb = {
    "verify",
    "tern verify MODEL",
    "Reads all of a GGUF file, a .safetensors file, an ONNX file or a Hugging Face folder and\n"
    "checks the header, the shape and type of every tensor, the tokenizer, and every number: a\n"
    "NaN or an infinite one is reported with its tensor and row. Exit status 1: the model is\n"
    "damaged.\n\n"
    "examples:\n"
    "  tern verify models/tern-tales.gguf",
};

struct verify {
    const char *path;
    struct loadplan *plan; /* NULL: a lone .safetensors file */
    struct source *source; /* of the plan, or its own */
    struct arena arena;
    int n_bad; /* tensors with numbers that are not finite */
};

/* A .safetensors file without config.json is tensors only. */
static int open_files(struct verify *v, struct err *e)
{
    uint64_t n;
    struct value type;
    int rc = source_open(&v->source, v->path, e);

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
        printf("%s\n", e->msg);
        v->n_bad++;
    }
    if (rc != OK || !v->n_bad) return rc;
    return err_set(e, E_DAMAGED, "%s: %d of %zu tensors contain NaN or infinity", v->path, v->n_bad,
                   source_n_tensors(v->source));
}

static int verify_model(struct verify *v, struct err *e)
{
    uint64_t start = clock_ns();
    int rc;

    if ((rc = cmd_model(&v->path, e)) != OK) return rc;
    if ((rc = open_files(v, e)) != OK) return rc;
    if ((rc = check_tensors(v, e)) != OK) return rc;
    if ((rc = check_tokenizer(v, e)) != OK) return rc;
    if ((rc = check_numbers(v, e)) != OK) return rc;
    if (source_is_damaged(v->source, e)) return E_DAMAGED;
    printf("%s: sound: %zu tensors, %.1f MiB, all numbers are finite (%.1f s)\n", v->path,
           source_n_tensors(v->source), (double)source_bytes(v->source) / (1 << 20),
           clock_ms_since(start) / 1000);
    return OK;
}

int cmd_verify(int argc, char **argv)
{
    struct verify v = { 0 };
    const struct arg table[] = { { 0 } };
    const char *pos[1] = { NULL };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    rc = args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e);
    if (rc != OK) return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    v.path = pos[0];
    if (cmd_need_model(&v.path, &e) != OK) return cmd_usage(verb.name, &e);
    rc = verify_model(&v, &e);
    if (!v.plan) source_close(v.source);
    loadplan_close(v.plan);
    arena_release(&v.arena);
    return cmd_result(rc, &e);
}
