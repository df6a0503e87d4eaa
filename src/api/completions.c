/* POST /v1/completions */
#include "api/call.h"

#include "base/mem.h"

#include <stdio.h>

static int encode(struct call *c, const struct prompt *p, struct ids *out, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    int rc;

    if (!p->text.p) {
        for (size_t i = 0; i < p->n_ids; i++) ids_push(out, p->ids[i]);
        return OK;
    }
    snprintf(c->p.param, sizeof c->p.param, "prompt");
    if (!t)
        return err_set(e, E_INVALID, "the model %s has no tokenizer: prompt must be token ids",
                       c->model->id);
    if ((rc = call_check_size(c, &p->text, 1, "prompt", e)) != OK) return rc;
    if ((rc = tokenizer_encode(t, p->text, ENCODE_SPECIAL, out, e)) != OK) return rc;
    c->p.param[0] = 0;
    return OK;
}

static int run(struct call *c, struct err *e)
{
    struct ids *ids = NULL;
    int rc = call_read(c, BODY_TEXT, e);

    if (rc != OK) return rc;
    ids = mem_array((size_t)c->p.n_prompts, sizeof *ids);
    for (int i = 0; i < c->p.n_prompts && rc == OK; i++)
        rc = encode(c, &c->p.prompts[i], &ids[i], e);
    if (rc == OK) rc = call_submit(c, ids, c->p.n_prompts, STR(""), e);
    for (int i = 0; i < c->p.n_prompts; i++) ids_release(&ids[i]);
    mem_free(ids);
    return rc;
}

void api_completions(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/completions");
    struct err e = { 0 };

    if (run(c, &e) != OK) call_fail(c, &e, c->p.param);
    call_release(c);
}
