/* completions.c - POST /v1/completions: the prompts continue as text. */
#include "api/call.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "pool/pool.h"

/* BOS is added as the model was trained. The field is blamed only if the text is at fault. */
static int encode_prompt(struct call *c, const struct prompt *p, struct ids *out, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    int rc;

    if (!p->text.p) {
        ids_add(out, p->ids, p->n_ids);
        return ids_check(out, e);
    }
    call_blame(c, "prompt");
    if (!t)
        return err_set(e, E_INVALID, "the model %s has no tokenizer: prompt must be token ids",
                       c->model->id);
    if ((rc = call_check_length(c, &p->text, 1, "prompt", e)) != OK) return rc;
    if ((rc = tokenizer_encode(t, p->text, ENCODE_SPECIAL, out, e)) != OK) return rc;
    if ((rc = ids_check(out, e)) != OK) return rc;
    call_blame(c, "%s", "");
    return OK;
}

/* All prompts are tokenized before the first is submitted. */
int call_prepare_text(struct call *c, struct err *e)
{
    struct ids *ids = mem_array((size_t)c->p.n_prompts, sizeof *ids);
    int rc = ids ? OK : err_nomem(e, "the prompts of the request");

    for (int i = 0; i < c->p.n_prompts && rc == OK; i++)
        if ((rc = call_check_stop(c, e)) == OK) rc = encode_prompt(c, &c->p.prompts[i], &ids[i], e);
    if (rc == OK) rc = call_make_requests(c, ids, c->p.n_prompts, STR(""), e);
    for (int i = 0; ids && i < c->p.n_prompts; i++) ids_release(&ids[i]);
    mem_free(ids);
    return rc;
}

static int prepare_completion(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_TEXT, e);
    if (rc != OK) return rc;
    return c->p.suffix.n ? call_prepare_infill(c, e) : call_prepare_text(c, e);
}

void api_completions(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_completion, call_submit };

    call_begin(a, q, who, "/v1/completions", &job);
}
