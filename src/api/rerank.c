/* rerank.c - POST /v1/rerank: documents in the order of their relevance to a query, in the form of
 * Jina and Cohere. Every pair of query and document is an input of the call (inputs.c).
 *
 * A cross-encoder has one class, whose score is the relevance; a generative reranker is asked a question
 * about each document, and answers yes or no (engine/yesno.h). relevance_score is the number that the
 * model computes, as of llama-server: any real number, the larger the more relevant. With "raw_scores":
 * false it is its sigmoid, from 0 to 1. Of a generative reranker it is P(yes), from 0 to 1. */
#include "api/call.h"

#include "api/choice.h"
#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "pool/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int check_reranker(struct call *c, struct err *e)
{
    struct engine_info info;

    engine_info(c->model->engine, &info);
    c->yesno = info.yesno;
    c->n_vec = c->yesno.n ? c->yesno.n : info.n_labels;
    if (c->yesno.n || (info.labels && info.n_labels == 1)) return OK;
    call_blame(c, "model");
    if (c->yesno.why[0])
        return err_set(e, E_INVALID, "the model %s is not a reranker: %s", c->model->id,
                       c->yesno.why);
    if (info.labels)
        return err_set(e, E_INVALID,
                       "the model %s is not a reranker: it has %d classes, a reranker has 1",
                       c->model->id, info.n_labels);
    return err_set(
        e, E_INVALID, "the model %s is not a reranker: its task is %s%s", c->model->id, info.task,
        strcmp(info.task, "generate") == 0 ? "; with --rerank generative it ranks by yes and no"
                                           : "");
}

static int prepare_rerank(struct call *c, struct err *e)
{
    static const struct inputs_kind kind = { "rank", "documents", BODY_RERANK, true,
                                             check_reranker };

    return inputs_prepare(c, &kind, e);
}

void api_rerank(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_rerank, call_submit_inputs };

    call_begin(a, q, who, "/v1/rerank", &job);
}

/* ---- the answer ---- */

struct rank {
    double score;
    int index;
};

/* The best first; equal documents, and scores that are no number, in the order of the request. */
static int compare_ranks(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;

    if (x->score > y->score) return -1;
    if (x->score < y->score) return 1;
    return x->index - y->index;
}

static void write_result(const struct call *c, struct jsonw *w, const struct rank *k)
{
    jsonw_obj(w);
    jsonw_key(w, "index"), jsonw_int(w, k->index);
    jsonw_key(w, "relevance_score");
    jsonw_num(w, c->p.raw_scores || c->yesno.n == 2 ? k->score : 1 / (1 + exp(-k->score)));
    if (c->p.return_documents && c->p.prompts && c->p.prompts[k->index].second.p) {
        jsonw_key(w, "document"), jsonw_obj(w);
        jsonw_key(w, "text"), jsonw_str(w, c->p.prompts[k->index].second);
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* The questions of a call begin alike: that part is computed once. */
static void write_cached(const struct call *c, struct jsonw *w)
{
    int cached = 0;

    for (int i = 0; i < c->n_choices; i++) cached += c->choices[i]->n_cached;
    jsonw_key(w, "prompt_tokens_details"), jsonw_obj(w);
    jsonw_key(w, "cached_tokens"), jsonw_int(w, cached);
    jsonw_end(w);
}

int rerank_write(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    struct rank *ranks = arena_array(&c->arena, (size_t)c->n_choices, sizeof *ranks);
    int n = c->n_choices, tokens = 0;

    if (!ranks) return err_nomem(e, "the ranks of the documents");
    for (int i = 0; i < n; i++)
        ranks[i] =
            (struct rank){ yesno_score(&c->yesno, c->choices[i]->vec), c->choices[i]->index };
    qsort(ranks, (size_t)n, sizeof *ranks, compare_ranks);
    if (c->p.top_n && c->p.top_n < n) n = c->p.top_n;
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(c->id));
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(c->model_id));
    jsonw_key(&w, "results"), jsonw_arr(&w);
    for (int i = 0; i < n; i++) write_result(c, &w, &ranks[i]);
    jsonw_end(&w);
    for (int i = 0; i < c->n_prompts; i++) tokens += c->prompt_tokens[i];
    jsonw_key(&w, "usage"), jsonw_obj(&w);
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, tokens);
    jsonw_key(&w, "total_tokens"), jsonw_int(&w, tokens);
    if (c->yesno.n) write_cached(c, &w);
    jsonw_end(&w);
    jsonw_end(&w);
    return buf_check(&c->out, e);
}
