/* POST /v1/chat/completions */
#include "api/call.h"

#include <stdio.h>

/* These forms have no turn for it: it is written into a question. */
static bool wants_system_first(enum chat_form f)
{
    return f == CHAT_LLAMA2 || f == CHAT_MISTRAL || f == CHAT_GEMMA;
}

static int check_talk(struct call *c, struct err *e)
{
    struct str *texts = arena_array(&c->arena, (size_t)c->p.n_msgs, sizeof *texts);

    for (int i = 0; i < c->p.n_msgs; i++) {
        texts[i] = c->p.msgs[i].content;
        if (i == 0 || !wants_system_first(c->model->form) || !str_is(c->p.msgs[i].role, "system")) continue;
        snprintf(c->p.param, sizeof c->p.param, "messages[%d].role", i);
        return err_set(e, E_INVALID,
                       "%s is system, but this model takes a system message only as the first",
                       c->p.param);
    }
    return call_check_size(c, texts, c->p.n_msgs, "messages", e);
}

static int run(struct call *c, struct err *e)
{
    const struct tokenizer *t;
    struct ids ids = { 0 };
    int rc;

    if ((rc = call_read(c, BODY_CHAT, e)) != OK) goto out;
    if (!(t = engine_tokenizer(c->model->engine))) {
        snprintf(c->p.param, sizeof c->p.param, "messages");
        rc = err_set(e, E_INVALID,
                     "the model %s has no tokenizer: it takes token ids only, at /v1/completions",
                     c->model->id);
        goto out;
    }
    if ((rc = check_talk(c, e)) != OK) goto out;
    rc = chatform_encode(c->model->form, t, c->p.msgs, (size_t)c->p.n_msgs, &ids, e);
    if (rc == OK) rc = call_submit(c, &ids, 1, chatform_stop(c->model->form), e);
out:
    ids_release(&ids);
    return rc;
}

void api_chat(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/chat/completions");
    struct err e = { 0 };

    if (run(c, &e) != OK) call_fail(c, &e, c->p.param);
    call_release(c);
}
