/* inputs.c - bodies whose every text, or pair of texts, is a request of its own to the engine: so
 * many go at once, the others follow as these come back. */
#include "api/call.h"

#include <stdio.h>

enum { AT_ONCE = 64 };

static int encode(struct call *c, const struct inputs *how, int i, struct ids *out, struct err *e)
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
        return err_set(e, E_INVALID, "the model %s has no tokenizer: input must be token ids",
                       c->model->id);
    if ((rc = call_check_size(c, both, p->second.p ? 2 : 1, "input", e)) != OK) return rc;
    rc = p->second.p ? tokenizer_encode_pair(t, p->text, p->second, out, &c->seconds[i], e)
                     : tokenizer_encode(t, p->text, ENCODE_SPECIAL, out, e);
    if (rc != OK) return rc;
    if (out->n == 0)
        return err_set(e, E_INVALID, "input[%d] is empty: there is nothing to %s", i, how->verb);
    c->p.param[0] = 0;
    return OK;
}

static int run(struct call *c, const struct inputs *how, struct err *e)
{
    struct ids *ids;
    int rc = call_read(c, how->kind, e);

    if (rc != OK || (rc = how->check(c, e)) != OK) return rc;
    c->embed = true;
    c->p.field = "input";
    c->inputs = ids = arena_array(&c->arena, (size_t)c->p.n_prompts, sizeof *ids);
    if (how->pairs) c->seconds = arena_array(&c->arena, (size_t)c->p.n_prompts, sizeof *c->seconds);
    for (int i = 0; i < c->p.n_prompts && rc == OK; i++) rc = encode(c, how, i, &ids[i], e);
    return rc == OK ? call_submit_some(c, ids, c->p.n_prompts, AT_ONCE, e) : rc;
}

void inputs_call(struct api *a, struct http_req *q, const struct api_who *who,
                 const struct inputs *how)
{
    struct call *c = call_open(a, q, who, how->route);
    struct err e = { 0 };

    if (run(c, how, &e) != OK) call_fail(c, &e, c->p.param);
    call_release(c);
}
