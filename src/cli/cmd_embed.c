/* cmd_embed.c - tern embed: texts to vectors. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "engine/engine.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 32, MAX_ARGS = 64, MAX_INPUT = 1 << 28, MAX_TEXTS = 1 << 20 };

static const struct verb verb = {
    "embed", "tern embed [-m MODEL] [TEXT...] [--file F] [--dimensions N] [--similarity]",
    "Each text becomes a vector of length 1: of an encoder (bert, nomic-bert, modernbert) or of any other\n"
    "model, pooled as the model says. Texts are arguments, or the lines of a file or of stdin. One JSON\n"
    "object a line: {\"index\":0,\"tokens\":5,\"embedding\":[...]}.\n"
    "\n"
    "examples:\n"
    "  tern embed -m nomic-embed-text.gguf \"search_query: what is a tern?\"\n"
    "  tern embed -m bge-small/ --file sentences.txt > vectors.jsonl\n"
    "  tern embed -m bge-small/ --similarity \"a cat\" \"a kitten\" \"a truck\"      how near each is to "
    "the first"
};

struct job {
    const char *model, *file;
    int n_threads, dimensions;
    bool similarity;
    struct str *texts;
    int n, cap;
    struct engine *engine;
    struct buf input, out;
    float *first;                /* the first text's vector */
    int n_embd;
    pthread_mutex_t lock;
    pthread_cond_t news;
    int n_news;                  /* times the engine told of some */
};

static void add_text(struct job *j, struct str text)
{
    if (j->n == j->cap)
        j->texts = mem_grow(j->texts, (size_t)(j->cap = j->cap ? 2 * j->cap : 64) * sizeof *j->texts);
    j->texts[j->n++] = text;
}

/* A pipe as well as a file. */
static int read_input(struct job *j, struct err *e)
{
    bool named = j->file && strcmp(j->file, "-") != 0;
    FILE *f = named ? fopen(j->file, "rb") : stdin;
    size_t got = 1;
    int rc = OK;

    while (f && got > 0 && j->input.n < MAX_INPUT) {
        buf_reserve(&j->input, 65536);
        got = fread(j->input.p + j->input.n, 1, 65536, f);
        j->input.n += got;
    }
    if (!f || ferror(f)) rc = err_set(e, E_IO, "%s: %s", named ? j->file : "stdin", strerror(errno));
    if (f && named) fclose(f);
    return rc;
}

static int read_lines(struct job *j, struct err *e)
{
    struct str rest, line;
    int rc = read_input(j, e);

    if (rc != OK) return rc;
    for (rest = buf_str(&j->input); rest.n && j->n < MAX_TEXTS;) {
        const char *end = memchr(rest.p, '\n', rest.n);
        line = str_take(rest, end ? (size_t)(end - rest.p) : rest.n);
        rest = str_skip(rest, end ? line.n + 1 : line.n);
        if (line.n) add_text(j, line);
    }
    return j->n ? OK
                : err_set(e, E_INVALID, "there is no text: give some as arguments, by --file or by a pipe");
}

/* On the engine's thread: something has news. */
static void wake(struct request *r)
{
    struct job *j = r->owner;

    pthread_mutex_lock(&j->lock);
    j->n_news++;
    pthread_cond_signal(&j->news);
    pthread_mutex_unlock(&j->lock);
    request_unref(r);
}

static int submit(struct job *j, struct str text, struct request **out, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(j->engine);
    struct request *r = *out = request_open();
    int rc;

    if (!t) return err_set(e, E_INVALID, "%s: the model has no tokenizer", j->model);
    if ((rc = tokenizer_encode(t, text, ENCODE_SPECIAL, &r->prompt, e)) != OK) return rc;
    r->embed = true;
    r->owner = j;
    r->notify = wake;
    return engine_submit(j->engine, r, e);
}

static int wait_for(struct job *j, struct request *r, struct err *e)
{
    struct event ev = { 0 };

    for (;;) {
        pthread_mutex_lock(&j->lock);
        int seen = j->n_news;
        pthread_mutex_unlock(&j->lock);
        if (request_next(r, &ev) && ev.finish != FINISH_NONE) break;
        pthread_mutex_lock(&j->lock);
        while (j->n_news == seen) pthread_cond_wait(&j->news, &j->lock);
        pthread_mutex_unlock(&j->lock);
    }
    return ev.finish == FINISH_STOP ? OK : err_set(e, r->err.code, "%s", r->err.msg);
}

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

static int show(struct job *j, const struct request *r, int i, struct err *e)
{
    if (i == 0) j->first = mem_dup(r->vec, (size_t)j->n_embd * sizeof *r->vec);
    if (j->similarity)
        buf_printf(&j->out, "%.4f  %.*s\n", dot(j->first, r->vec, j->n_embd), STR_ARG(j->texts[i]));
    else put_vector(j, r, i);
    if (fwrite(j->out.p, 1, j->out.n, stdout) != j->out.n || fflush(stdout) != 0)
        return err_set(e, E_IO, "cannot write to stdout");
    buf_clear(&j->out);
    return OK;
}

/* So many texts are with the engine at once; they are shown in their order. */
static int run(struct job *j, struct err *e)
{
    struct request *ring[AT_ONCE] = { 0 };
    int sent = 0, rc = OK;

    for (int i = 0; i < j->n && rc == OK; i++) {
        for (; sent < j->n && sent < i + AT_ONCE && rc == OK; sent++)
            rc = submit(j, j->texts[sent], &ring[sent % AT_ONCE], e);
        if (rc == OK) rc = wait_for(j, ring[i % AT_ONCE], e);
        if (rc == OK) rc = show(j, ring[i % AT_ONCE], i, e);
        if (rc != OK) break;
        request_unref(ring[i % AT_ONCE]);
        ring[i % AT_ONCE] = NULL;
    }
    engine_close(j->engine);                             /* before those that still run go */
    j->engine = NULL;
    for (int i = 0; i < AT_ONCE; i++) request_unref(ring[i]);
    return rc;
}

static int open_model(struct job *j, struct err *e)
{
    struct engine_opt o = { .backend = { .n_threads = j->n_threads }, .kv_type = DT_NONE };
    struct engine_info info;
    int rc = engine_open(&j->engine, j->model, &o, e);

    if (rc != OK) return rc;
    engine_info(j->engine, &info);
    j->n_embd = info.model->hp.n_embd;
    if (!j->dimensions) j->dimensions = j->n_embd;
    if (j->dimensions < 1 || j->dimensions > j->n_embd)
        return err_set(e, E_INVALID, "--dimensions is %d, but the model's embeddings have %d",
                       j->dimensions, j->n_embd);
    return OK;
}

int cmd_embed(int argc, char **argv)
{
    struct job j = { .lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL",
          "GGUF file or Hugging Face folder (default: the model that ships)" },
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
    for (int i = 0; i < n_pos; i++) add_text(&j, str_c(pos[i]));
    rc = n_pos && !j.file ? OK : read_lines(&j, &e);
    if (rc == OK) rc = open_model(&j, &e);
    if (rc == OK) rc = run(&j, &e);
    engine_close(j.engine);
    buf_release(&j.input);
    buf_release(&j.out);
    mem_free(j.first);
    mem_free(j.texts);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}
