/* classify.c - POST /v1/classify: class probabilities of texts, or of pairs of texts. */
#include "api/call.h"

#include "api/choice.h"
#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "pool/pool.h"

/* Only models with labels classify; n_vec is their number. */
static int check_labels(struct call *c, struct err *e)
{
    struct engine_info info;

    engine_info(c->model->engine, &info);
    c->n_vec = info.n_labels;
    if (info.labels) return OK;
    call_blame(c, "model");
    return err_set(e, E_INVALID, "the model %s cannot classify: its task is %s", c->model->id,
                   info.task);
}

static int prepare_classify(struct call *c, struct err *e)
{
    static const struct inputs_kind kind = { "classify", "input", BODY_CLASSIFY, true,
                                             check_labels };

    return inputs_prepare(c, &kind, e);
}

void api_classify(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_classify, call_submit_inputs };

    call_begin(a, q, who, str_is(http_path(q), "/classify") ? "/classify" : "/v1/classify", &job);
}

/* ---- the answer ---- */

/* The most likely label, and the probabilities of all in the order of the model. */
static void write_result(struct call *c, struct jsonw *w, int index, const struct engine_info *info)
{
    const float *v = c->choices[index]->vec;
    int best = 0;

    for (int i = 1; i < c->n_vec; i++)
        if (v[i] > v[best]) best = i;
    jsonw_obj(w);
    jsonw_key(w, "index"), jsonw_int(w, index);
    jsonw_key(w, "label"), jsonw_str(w, info->labels[best]);
    jsonw_key(w, "probs"), jsonw_arr(w);
    for (int i = 0; i < c->n_vec; i++) jsonw_num(w, (double)v[i]);
    jsonw_end(w);
    jsonw_key(w, "num_classes"), jsonw_int(w, c->n_vec);
    jsonw_end(w);
}

/* The labels belong to the model, which is gone after the pool is closed. */
int classify_write(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    struct engine_info info;
    int tokens = 0;

    if (!c->model) return err_set(e, E_SHUTDOWN, "the server is shutting down");
    engine_info(c->model->engine, &info);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(c->id));
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "created"), jsonw_int(&w, c->reply.created);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(c->model_id));
    jsonw_key(&w, "data"), jsonw_arr(&w);
    for (int i = 0; i < c->n_choices; i++) write_result(c, &w, i, &info);
    jsonw_end(&w);
    for (int i = 0; i < c->n_prompts; i++) tokens += c->prompt_tokens[i];
    jsonw_key(&w, "usage"), jsonw_obj(&w);
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, tokens);
    jsonw_key(&w, "total_tokens"), jsonw_int(&w, tokens);
    jsonw_key(&w, "completion_tokens"), jsonw_int(&w, 0);
    jsonw_end(&w);
    jsonw_end(&w);
    return buf_check(&c->out, e);
}
