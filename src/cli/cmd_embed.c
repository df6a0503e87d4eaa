/* cmd_embed.c - tern embed: texts to vectors. */
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "cli/feed.h"

#include <math.h>

enum { MAX_ARGS = 64 };

static const struct verb verb = {
    "embed", "tern embed [-m MODEL] [TEXT...] [--file F] [--dimensions N] [--similarity]",
    "Each text becomes a vector of length 1: of an encoder (bert, nomic-bert, modernbert) or of "
    "any other\n"
    "model, pooled as the model says. Texts are arguments, or the lines of a file or of stdin. One "
    "JSON\n"
    "object a line: {\"index\":0,\"tokens\":5,\"embedding\":[...]}.\n"
    "\n"
    "examples:\n"
    "  tern embed -m nomic-embed-text.gguf \"search_query: what is a tern?\"\n"
    "  tern embed -m bge-small/ --file sentences.txt > vectors.jsonl\n"
    "  tern embed -m bge-small/ --similarity \"a cat\" \"a kitten\" \"a truck\"      how near each "
    "is to "
    "the first"
};

struct job {
    const char *model, *file;
    int n_threads, dimensions;
    bool similarity;
    struct buf out;
    float *first; /* the first text's vector */
    int n_embd;
};

static double dot(const float *a, const float *b, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

static void put_vector(struct job *j, const struct request *r, int index)
{
    double scale = 1;

    if (j->dimensions < j->n_embd) scale = 1 / sqrt(dot(r->vec, r->vec, j->dimensions));
    buf_printf(&j->out, "{\"index\":%d,\"tokens\":%zu,\"embedding\":[", index, r->prompt.n);
    for (int i = 0; i < j->dimensions; i++)
        buf_printf(&j->out, "%s%.7g", i ? "," : "", (double)r->vec[i] * scale);
    buf_puts(&j->out, "]}\n");
}

static int encode(struct feed *t, const struct tokenizer *tok, struct str text, struct request *r,
                  struct err *e)
{
    (void)t;
    return tokenizer_encode(tok, text, ENCODE_SPECIAL, &r->prompt, e);
}

static int show(struct feed *t, const struct request *r, int i, struct err *e)
{
    struct job *j = t->arg;

    if (i == 0) j->first = mem_dup(r->vec, (size_t)j->n_embd * sizeof *r->vec);
    if (j->similarity)
        buf_printf(&j->out, "%.4f  %.*s\n", dot(j->first, r->vec, j->n_embd), STR_ARG(t->texts[i]));
    else put_vector(j, r, i);
    return feed_print(&j->out, e);
}

static int open_model(struct job *j, struct feed *t, struct err *e)
{
    struct engine_opt o = { .backend = { .n_threads = j->n_threads }, .kv_type = DT_NONE };
    struct engine_info info;
    int rc = engine_open(&t->engine, j->model, &o, e);

    if (rc != OK) return rc;
    engine_info(t->engine, &info);
    if (info.labels)
        return err_set(e, E_INVALID,
                       "%s: the model classifies and gives no embeddings: see tern classify",
                       j->model);
    j->n_embd = info.model->hp.n_embd;
    if (!j->dimensions) j->dimensions = j->n_embd;
    if (j->dimensions < 1 || j->dimensions > j->n_embd)
        return err_set(e, E_INVALID, "--dimensions is %d, but the model's embeddings have %d",
                       j->dimensions, j->n_embd);
    return OK;
}

int cmd_embed(int argc, char **argv)
{
    struct job j = { 0 };
    struct feed t = { FEED_INIT, .encode = encode, .show = show, .arg = &j };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL",
          "GGUF file, ONNX file or Hugging Face folder (default: the model that ships)" },
        { "--file", "-f", ARG_STR, &j.file, "PATH", "a text a line; -: stdin" },
        { "--dimensions", "-d", ARG_INT, &j.dimensions, "N",
          "only the first N numbers, of length 1 again (default: all)" },
        { "--similarity", NULL, ARG_FLAG, &j.similarity, NULL,
          "print how near each text is to the first, not vectors" },
        { "--threads", "-t", ARG_INT, &j.n_threads, "N", "threads (default: physical cores)" },
        { 0 },
    };
    const char *pos[MAX_ARGS];
    struct err e = { 0 };
    bool helped;
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, MAX_ARGS, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    if (!j.model && !(j.model = cmd_default_model())) {
        err_set(&e, E_INVALID, "no model: name one with -m");
        return cmd_usage(verb.name, &e);
    }
    for (int i = 0; i < n_pos; i++) feed_add(&t, str_c(pos[i]));
    rc = n_pos && !j.file ? OK : feed_read(&t, j.file, &e);
    if (rc == OK) rc = open_model(&j, &t, &e);
    if (rc == OK) rc = feed_run(&t, &e);
    feed_release(&t);
    buf_release(&j.out);
    mem_free(j.first);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}
