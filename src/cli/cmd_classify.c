/* cmd_classify.c - tern classify: classify texts with an ONNX classifier. cli/feed runs the texts;
 * here are the flags, pairs of texts and the JSON lines. */
#include "base/arena.h"
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/feed.h"
#include "engine/info.h"

enum { MAX_ARGS = 64 };

static const struct verb verb = {
    "classify", "tern classify -m MODEL [TEXT...] [--file F] [--pairs]",
    "Classifies texts with an ONNX classifier. Texts are arguments, or the lines of a file or of\n"
    "stdin. With --pairs, each line is two texts with a tab between them. Prints one JSON object\n"
    "per text:\n"
    "{\"index\":0,\"label\":\"good\",\"score\":0.98,\"scores\":{\"bad\":0.02,\"good\":0.98}}.\n"
    "\n"
    "examples:\n"
    "  tern classify -m distilbert-sst2/ \"a film to fall asleep in\"\n"
    "  tern classify -m ms-marco-minilm/onnx/model.onnx --pairs --file questions-and-answers.tsv"
};

struct job {
    const char *model, *file;
    int n_threads;
    bool pairs, allow_nan;
    struct arena arena;
    struct buf out;
    struct str *labels; /* [n_labels] copies in the arena: they outlive the engine */
    int n_labels;
};

/* feed.encode. A pair is encoded as "[CLS] a [SEP] b [SEP]" with the second text's token type. */
static int encode_text(struct feed *t, const struct tokenizer *tok, struct str text,
                       struct request *r, struct err *e)
{
    const struct job *j = t->arg;
    const char *tab = j->pairs ? memchr(text.p, '\t', text.n) : NULL;
    size_t at = tab ? (size_t)(tab - text.p) : 0;

    r->classify = true;
    if (!j->pairs) return tokenizer_encode(tok, text, ENCODE_SPECIAL, &r->prompt, e);
    if (!tab)
        return err_set(e, E_INVALID, "--pairs: there is no tab in '%.*s'",
                       STR_ARG(str_take(text, 80)));
    return tokenizer_encode_pair(tok, str_take(text, at), str_skip(text, at + 1), &r->prompt,
                                 &r->second, e);
}

/* The best label and all scores. */
static int print_classes(struct feed *t, const struct request *r, int i, struct err *e)
{
    struct job *j = t->arg;
    struct jsonw w = { .out = &j->out };
    int best = 0;

    for (int k = 1; k < j->n_labels; k++)
        if (r->vec[k] > r->vec[best]) best = k;
    jsonw_obj(&w);
    jsonw_key(&w, "index"), jsonw_int(&w, i);
    jsonw_key(&w, "label"), jsonw_str(&w, j->labels[best]);
    jsonw_key(&w, "score"), jsonw_num(&w, (double)r->vec[best]);
    jsonw_key(&w, "scores"), jsonw_obj(&w);
    for (int k = 0; k < j->n_labels; k++)
        jsonw_key(&w, j->labels[k].p), jsonw_num(&w, (double)r->vec[k]);
    jsonw_end(&w);
    jsonw_end(&w);
    buf_putc(&j->out, '\n');
    return cli_write(stdout, &j->out, e);
}

/* Only ONNX graphs have labels; see onnx/card. */
static int open_classifier(struct job *j, struct feed *t, struct err *e)
{
    struct engine_opt o = { .n_threads = j->n_threads,
                            .kv_type = DT_NONE,
                            .allow_nan = j->allow_nan,
                            .tells_callers = true };
    struct engine_info info;
    int rc = engine_open(&t->engine, j->model, &o, e);

    if (rc != OK) return rc;
    engine_info(t->engine, &info);
    if (!info.labels)
        return err_set(e, E_INVALID, "%s is not a classifier: its task is %s", j->model, info.task);
    j->n_labels = info.n_labels;
    j->labels = arena_array(&j->arena, (size_t)j->n_labels, sizeof *j->labels);
    for (int i = 0; j->labels && i < j->n_labels; i++)
        j->labels[i] = arena_str(&j->arena, info.labels[i]);
    return arena_check(&j->arena, e);
}

int cmd_classify(int argc, char **argv)
{
    struct job j = { 0 };
    struct guard guard = { 0 };
    struct feed t = { FEED_INIT, .encode = encode_text, .show = print_classes, .arg = &j };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL",
          "ONNX file, or a Hugging Face folder with one" },
        { "--file", "-f", ARG_STR, &j.file, "PATH",
          "read texts from a file, one per line; -: stdin" },
        { "--pairs", NULL, ARG_FLAG, &j.pairs, NULL,
          "two texts per line, with a tab between them" },
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
    if (!j.model) {
        err_set(&e, E_INVALID, "no model: name an ONNX classifier with -m");
        return cmd_usage(verb.name, &e);
    }
    for (int i = 0; i < n_pos; i++) feed_add(&t, str_c(pos[i]));
    rc = cmd_model(&j.model, &e);
    if (rc == OK && (!n_pos || j.file)) rc = feed_read(&t, j.file, &e);
    if (rc == OK) rc = guard_join(&guard, &e);
    if (rc == OK) rc = open_classifier(&j, &t, &e);
    guard_release(&guard);
    if (rc == OK) rc = feed_run(&t, &e);
    feed_release(&t);
    buf_release(&j.out);
    arena_release(&j.arena);
    return cmd_result(rc, &e);
}
