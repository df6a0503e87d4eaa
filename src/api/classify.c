/* POST /v1/classify: every text, or pair of texts, is a request of its own to the engine, as in embeddings.c. */
#include "api/call.h"

#include "base/jsonw.h"

#include <stdio.h>

enum { AT_ONCE = 64 };

static int encode(struct call *c, int i, struct ids *out, struct err *e)
{
    const struct prompt *p = &c->p.prompts[i];
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct str both[2] = { p->text, p->second };
    int rc;

    if (!p->text.p) {
        for (size_t k = 0; k < p->n_ids; k++) ids_push(out, p->ids[k]);
        return OK;
    }
    snprintf(c->p.param, sizeof c->p.param, "input");
    if (!t)
        return err_set(e, E_INVALID, "the model %s has no tokenizer: input must be token ids", c->model->id);
    if ((rc = call_check_size(c, both, p->second.p ? 2 : 1, "input", e)) != OK) return rc;
    rc = p->second.p ? tokenizer_encode_pair(t, p->text, p->second, out, &c->seconds[i], e)
                     : tokenizer_encode(t, p->text, ENCODE_SPECIAL, out, e);
    if (rc != OK) return rc;
    if (out->n == 0) return err_set(e, E_INVALID, "input[%d] is empty: there is nothing to classify", i);
    c->p.param[0] = 0;
    return OK;
}

static int check_model(struct call *c, struct err *e)
{
    struct engine_info info;

    engine_info(c->model->engine, &info);
    c->n_embd = info.n_labels;
    if (info.labels) return OK;
    snprintf(c->p.param, sizeof c->p.param, "model");
    return err_set(e, E_INVALID, "the model %s does not classify: its task is %s", c->model->id, info.task);
}

static int run(struct call *c, struct err *e)
{
    struct ids *ids;
    int rc = call_read(c, BODY_CLASSIFY, e);

    if (rc != OK || (rc = check_model(c, e)) != OK) return rc;
    c->embed = true;
    c->p.field = "input";
    c->inputs = ids = arena_array(&c->arena, (size_t)c->p.n_prompts, sizeof *ids);
    c->seconds = arena_array(&c->arena, (size_t)c->p.n_prompts, sizeof *c->seconds);
    for (int i = 0; i < c->p.n_prompts && rc == OK; i++) rc = encode(c, i, &ids[i], e);
    return rc == OK ? call_submit_some(c, ids, c->p.n_prompts, AT_ONCE, e) : rc;
}

void api_classify(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/classify");
    struct err e = { 0 };

    if (run(c, &e) != OK) call_fail(c, &e, c->p.param);
    call_release(c);
}

/* ---- the answer ---- */

static void put_class(struct call *c, struct jsonw *w, int index, const struct engine_info *info)
{
    const float *v = c->choices[index]->vec;
    int best = 0;

    for (int i = 1; i < c->n_embd; i++)
        if (v[i] > v[best]) best = i;
    jsonw_obj(w);
    jsonw_key(w, "index"), jsonw_int(w, index);
    jsonw_key(w, "label"), jsonw_str(w, info->labels[best]);
    jsonw_key(w, "probs"), jsonw_arr(w);
    for (int i = 0; i < c->n_embd; i++) jsonw_num(w, (double)v[i]);
    jsonw_end(w);
    jsonw_key(w, "num_classes"), jsonw_int(w, c->n_embd);
    jsonw_end(w);
}

void classify_reply(struct call *c)
{
    struct jsonw w = { .out = &c->out };
    struct engine_info info;
    struct err e = { 0 };
    int tokens = 0;

    if (!c->model) {
        err_set(&e, E_SHUTDOWN, "the server is going down");
        call_fail(c, &e, NULL);
        return;
    }
    engine_info(c->model->engine, &info);
    buf_clear(&c->out);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(c->id));
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "created"), jsonw_int(&w, c->reply.created);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(c->model_id));
    jsonw_key(&w, "data"), jsonw_arr(&w);
    for (int i = 0; i < c->n_choices; i++) put_class(c, &w, i, &info);
    jsonw_end(&w);
    for (int i = 0; i < c->n_prompts; i++) tokens += c->prompt_tokens[i];
    jsonw_key(&w, "usage"), jsonw_obj(&w);
    jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, tokens);
    jsonw_key(&w, "total_tokens"), jsonw_int(&w, tokens);
    jsonw_key(&w, "completion_tokens"), jsonw_int(&w, 0);
    jsonw_end(&w);
    jsonw_end(&w);
    call_reply(c, 200, buf_str(&c->out));
}
