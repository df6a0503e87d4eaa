/* cmd_embed.c - tern embed: turn texts into embedding vectors. cli/feed runs the texts; here are
 * the flags, shortening of vectors (Matryoshka embeddings) and the output. */
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/feed.h"
#include "engine/info.h"

#include <math.h>

enum { MAX_ARGS = 64 };

static const struct verb verb = {
    "embed", "tern embed [-m MODEL] [TEXT...] [--file F] [--dimensions N] [--similarity]",
    "Computes an embedding vector of length 1 for each text, with an encoder (bert, nomic-bert,\n"
    "modernbert) or any other model, pooled as the model's files say. Texts are arguments, or the\n"
    "lines of a file or of stdin. Prints one JSON object per text:\n"
    "{\"index\":0,\"tokens\":5,\"embedding\":[...]}.\n"
    "\n"
    "examples:\n"
    "  tern embed -m nomic-embed-text.gguf \"search_query: what is a tern?\"\n"
    "  tern embed -m bge-small/ --file sentences.txt > vectors.jsonl\n"
    "  tern embed -m bge-small/ --similarity \"a cat\" \"a kitten\" \"a truck\""
};

struct job {
    const char *model, *file;
    int n_threads, dimensions;
    bool similarity, allow_nan;
    struct buf out;
    float *first; /* [n_embd] the first text's vector, for --similarity */
    int n_embd;
};

/* In double: vectors of length 1 give the cosine similarity. */
static double dot(const float *a, const float *b, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

/* A shortened vector is scaled to length 1 again. */
static void add_vector(struct job *j, const struct request *r, int index)
{
    double scale = 1;

    if (j->dimensions < j->n_embd) scale = 1 / sqrt(dot(r->vec, r->vec, j->dimensions));
    buf_printf(&j->out, "{\"index\":%d,\"tokens\":%zu,\"embedding\":[", index, r->prompt.n);
    for (int i = 0; i < j->dimensions; i++)
        buf_printf(&j->out, "%s%.7g", i ? "," : "", (double)r->vec[i] * scale);
    buf_puts(&j->out, "]}\n");
}

static int encode_text(struct feed *t, const struct tokenizer *tok, struct str text,
                       struct request *r, struct err *e)
{
    (void)t;
    return tokenizer_encode(tok, text, ENCODE_SPECIAL, &r->prompt, e);
}

/* feed.show: a JSON line, or the similarity to the first text. */
static int print_embedding(struct feed *t, const struct request *r, int i, struct err *e)
{
    struct job *j = t->arg;

    if (i == 0) j->first = cli_need(mem_dup(r->vec, (size_t)j->n_embd * sizeof *r->vec));
    if (j->similarity)
        buf_printf(&j->out, "%.4f  %.*s\n", dot(j->first, r->vec, j->n_embd), STR_ARG(t->texts[i]));
    else add_vector(j, r, i);
    return cli_write(stdout, &j->out, e);
}

/* DT_NONE: the engine chooses the KV type; encoders have no KV cache. */
static int open_encoder(struct job *j, struct feed *t, struct err *e)
{
    struct engine_opt o = { .n_threads = j->n_threads,
                            .kv_type = DT_NONE,
                            .allow_nan = j->allow_nan,
                            .tells_callers = true };
    struct engine_info info;
    int rc = engine_open(&t->engine, j->model, &o, e);

    if (rc != OK) return rc;
    engine_info(t->engine, &info);
    if (info.labels)
        return err_set(e, E_INVALID, "%s is a classifier and has no embeddings; use tern classify",
                       j->model);
    j->n_embd = info.n_vec;
    if (!j->dimensions) j->dimensions = j->n_embd;
    if (j->dimensions < 1 || j->dimensions > j->n_embd)
        return err_set(e, E_INVALID, "--dimensions %d: must be 1 to %d", j->dimensions, j->n_embd);
    return OK;
}

int cmd_embed(int argc, char **argv)
{
    struct job j = { 0 };
    struct guard guard = { 0 };
    struct feed t = { FEED_INIT, .encode = encode_text, .show = print_embedding, .arg = &j };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL",
          "GGUF file, ONNX file or Hugging Face folder (the model that ships with tern)" },
        { "--file", "-f", ARG_STR, &j.file, "PATH",
          "read texts from a file, one per line; -: stdin" },
        { "--dimensions", "-d", ARG_INT, &j.dimensions, "N",
          "shorten vectors to N dimensions (all)" },
        { "--similarity", NULL, ARG_FLAG, &j.similarity, NULL,
          "print each text's cosine similarity to the first one" },
        { "--allow-nan", NULL, ARG_FLAG, &j.allow_nan, NULL,
          "use a model whose weights contain NaN or infinity" },
        GUARD_KEY_ARGS(&guard),
        { "--threads", "-t", ARG_INT, &j.n_threads, "N", "threads (physical cores)" },
        { 0 },
    };
    const char *pos[MAX_ARGS];
    struct err e = { 0 };
    bool helped;
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, MAX_ARGS, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    if (cmd_need_model(&j.model, &e) != OK) return cmd_usage(verb.name, &e);
    for (int i = 0; i < n_pos; i++) feed_add(&t, str_c(pos[i]));
    rc = cmd_model(&j.model, &e);
    if (rc == OK && (!n_pos || j.file)) rc = feed_read(&t, j.file, &e);
    if (rc == OK) rc = guard_join(&guard, &e);
    if (rc == OK) rc = open_encoder(&j, &t, &e);
    guard_release(&guard);
    if (rc == OK) rc = feed_run(&t, &e);
    feed_release(&t);
    buf_release(&j.out);
    mem_free(j.first);
    return cmd_result(rc, &e);
}
