/* cmd_rerank.c - tern rerank: documents in the order of their relevance to a query. cli/feed runs
 * the pairs; here are the flags, the order and the output. */
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/feed.h"
#include "cli/guard.h"
#include "engine/info.h"
#include "pool/prompter.h"
#include "pool/rankform.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 256 };

static const struct verb verb = {
    "rerank", "tern rerank -m MODEL QUERY [DOCUMENT...] [--file F] [--top-n N] [--json]",
    "Ranks documents by their relevance to a query, with a cross-encoder of one class (bert,\n"
    "roberta, xlm-roberta, modernbert, or an ONNX file), or with a generative reranker, which is\n"
    "asked about each document: its score is the probability of yes against no. --rerank "
    "generative\n"
    "asks any model that generates text. Documents are arguments, or the lines of a file or of\n"
    "stdin. Prints score and document, the best first; --json prints one object:\n"
    "{\"results\":[{\"index\":1,\"relevance_score\":4.2,\"document\":{\"text\":\"...\"}}, ...]}.\n"
    "The score is the number that the model computes: the larger, the more relevant.\n"
    "\n"
    "examples:\n"
    "  tern rerank -m bge-reranker-base/ \"what is a tern?\" \"A tern is a seabird.\" \"A turn.\"\n"
    "  tern rerank -m ms-marco-minilm/ \"what is a tern?\" --file passages.txt --top-n 3 --json"
};

struct rank {
    double score;
    int index;
};

struct job {
    const char *model, *file;
    int n_threads, top_n;
    bool json, allow_nan;
    struct str query, instruction;
    const char *mode; /* --rerank */
    struct yesno yesno;
    struct prompter *prompter; /* of a generative reranker; NULL: it is none */
    struct rank *ranks;        /* [feed.n] */
    struct buf out;
};

static int encode_pair(struct feed *t, const struct tokenizer *tok, struct str text,
                       struct request *r, struct err *e)
{
    const struct job *j = t->arg;
    struct rank_question q = { j->query, text, j->instruction };

    r->classify = r->raw = !j->yesno.n || j->yesno.by_head;
    if (j->yesno.n) {
        r->n_pick = j->yesno.by_head ? 0 : j->yesno.n;
        for (int i = 0; i < r->n_pick; i++) r->pick[i] = j->yesno.ids[i];
        r->max_tokens = 1;
        return rankform_write(j->prompter, tok, &q, &r->prompt, e);
    }
    return tokenizer_encode_pair(tok, j->query, text, &r->prompt, &r->second, e);
}

/* feed.show: nothing is printed before the last score is there. */
static int keep_score(struct feed *t, const struct request *r, int i, struct err *e)
{
    struct job *j = t->arg;

    (void)e;
    j->ranks[i] = (struct rank){ yesno_score(&j->yesno, r->vec), i };
    return OK;
}

/* The best first; equal ones as they were given. */
static int compare_ranks(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;

    if (x->score > y->score) return -1;
    if (x->score < y->score) return 1;
    return x->index - y->index;
}

static void add_json(struct job *j, const struct feed *t, int n)
{
    struct jsonw w = { .out = &j->out };

    jsonw_obj(&w);
    jsonw_key(&w, "results"), jsonw_arr(&w);
    for (int i = 0; i < n; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "index"), jsonw_int(&w, j->ranks[i].index);
        jsonw_key(&w, "relevance_score"), jsonw_num(&w, j->ranks[i].score);
        jsonw_key(&w, "document"), jsonw_obj(&w);
        jsonw_key(&w, "text"), jsonw_str(&w, t->texts[j->ranks[i].index]);
        jsonw_end(&w);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    buf_putc(&j->out, '\n');
}

static int print_ranks(struct job *j, const struct feed *t, struct err *e)
{
    int n = j->top_n && j->top_n < t->n ? j->top_n : t->n;

    qsort(j->ranks, (size_t)t->n, sizeof *j->ranks, compare_ranks);
    if (j->json) add_json(j, t, n);
    else
        for (int i = 0; i < n; i++)
            buf_printf(&j->out, "%9.4f  %.*s\n", j->ranks[i].score,
                       STR_ARG(t->texts[j->ranks[i].index]));
    return cli_write(stdout, &j->out, e);
}

static int check_reranker(struct job *j, const struct engine_info *info, struct err *e)
{
    j->yesno = info->yesno;
    if (j->yesno.n) return OK;
    if (j->yesno.why[0])
        return err_set(e, E_INVALID, "%s is not a reranker: %s", j->model, j->yesno.why);
    if (j->instruction.p)
        return err_set(e, E_INVALID, "--instruction: %s is no generative reranker", j->model);
    if (!info->labels)
        return err_set(e, E_INVALID, "%s is not a reranker: its task is %s", j->model, info->task);
    if (info->n_labels != 1)
        return err_set(e, E_INVALID, "%s is not a reranker: it has %d classes, a reranker has 1",
                       j->model, info->n_labels);
    return OK;
}

static int open_reranker(struct job *j, struct feed *t, struct err *e)
{
    struct engine_opt o = { .n_threads = j->n_threads,
                            .kv_type = DT_NONE,
                            .allow_nan = j->allow_nan,
                            .ranks_by_answer = strcmp(j->mode, "generative") == 0,
                            .tells_callers = true };
    const struct tokenizer *tok;
    struct engine_info info;
    int rc = engine_open(&t->engine, j->model, &o, e);

    if (rc != OK) return rc;
    engine_info(t->engine, &info);
    if ((rc = check_reranker(j, &info, e)) != OK) return rc;
    tok = engine_tokenizer(t->engine);
    if (j->yesno.n && tok && (rc = prompter_open(&j->prompter, tok, NULL, e)) != OK) return rc;
    j->ranks = mem_array((size_t)t->n, sizeof *j->ranks);
    return j->ranks ? OK : err_nomem(e, "the ranks of the documents");
}

int cmd_rerank(int argc, char **argv)
{
    struct job j = { .mode = "auto" };
    const char *instruction = NULL;
    struct guard guard = { 0 };
    struct feed t = { FEED_INIT, .encode = encode_pair, .show = keep_score, .arg = &j };
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &j.model, "MODEL", "folder, GGUF or ONNX file of a reranker" },
        { "--rerank", NULL, ARG_STR, &j.mode, "auto|generative",
          "generative: a model that generates text ranks by yes and no (auto: as its files say)" },
        { "--instruction", NULL, ARG_STR, &instruction, "TEXT",
          "what a generative reranker looks for (passages that answer a web search)" },
        { "--file", "-f", ARG_STR, &j.file, "PATH",
          "read documents from a file, one per line; -: stdin" },
        { "--top-n", NULL, ARG_INT, &j.top_n, "N", "print only the N best (all)" },
        { "--json", NULL, ARG_FLAG, &j.json, NULL, "print one JSON object" },
        { "--allow-nan", NULL, ARG_FLAG, &j.allow_nan, NULL,
          "use a model whose weights contain NaN or infinity" },
        GUARD_KEY_ARGS(&guard),
        { "--threads", "-t", ARG_INT, &j.n_threads, "N", "threads (physical cores)" },
        { 0 },
    };
    const char *pos[MAX_ARGS];
    struct err e = { 0 };
    bool helped;
    int n_pos, rc = OK;

    if (args_parse(&verb, table, argc, argv, pos, MAX_ARGS, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    if (!j.model) rc = err_set(&e, E_INVALID, "no model: name a reranker with -m");
    else if (strcmp(j.mode, "auto") != 0 && strcmp(j.mode, "generative") != 0)
        rc = err_set(&e, E_INVALID, "--rerank %s: must be auto or generative", j.mode);
    else if (!n_pos) rc = err_set(&e, E_INVALID, "no query: it is the first argument");
    else if (j.top_n < 0) rc = err_set(&e, E_INVALID, "--top-n %d: must be 1 or more", j.top_n);
    if (rc != OK) return cmd_usage(verb.name, &e);
    j.query = str_c(pos[0]);
    if (instruction && *instruction) j.instruction = str_c(instruction);
    for (int i = 1; i < n_pos; i++) feed_add(&t, str_c(pos[i]));
    rc = cmd_model(&j.model, &e);
    if (rc == OK && (n_pos == 1 || j.file)) rc = feed_read(&t, j.file, &e);
    if (rc == OK) rc = guard_join(&guard, &e);
    if (rc == OK) rc = open_reranker(&j, &t, &e);
    guard_release(&guard);
    if (rc == OK) rc = feed_run(&t, &e);
    if (rc == OK) rc = print_ranks(&j, &t, &e);
    feed_release(&t);
    prompter_close(j.prompter);
    buf_release(&j.out);
    mem_free(j.ranks);
    return cmd_result(rc, &e);
}
