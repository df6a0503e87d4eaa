/* inputs.c - bodies with a list of texts, or pairs of texts, of which each is one engine request.
 *
 * The call has one admission and one place in the queue (struct ticket): a list is refused at once
 * or computed without waiting again. Only some of its requests are in the engine at a time, so that
 * a long list leaves places to others; each one that ends is followed by the next.
 *
 * The texts are tokenized on a request thread, and a large answer is written on one (prepare.c). */
#include "api/call.h"

#include "api/dialect.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "pool/pool.h"
#include "pool/rankform.h"

enum { INLINE_NUMBERS = 4096 };

/* Token ids as they are given: who has a tokenizer of its own adds the special tokens, too. A pair is
 * the ids of the query, then those of the document. */
static int copy_input(struct call *c, int i, struct ids *out, struct err *e)
{
    const struct prompt *p = &c->p.prompts[i];
    struct engine_info info;

    engine_info(c->model->engine, &info);
    if (p->second_at && p->second_at + p->n_ids > (size_t)info.opt.n_ctx) {
        call_blame(c, "documents[%d]", i);
        return err_set(e, E_CONTEXT, "query and document are %zu tokens, but the context has %d",
                       p->second_at + p->n_ids, info.opt.n_ctx);
    }
    if (p->second_at) ids_add(out, c->p.query.ids, p->second_at);
    ids_add(out, p->ids, p->n_ids);
    if (c->second_at) c->second_at[i] = (int)p->second_at;
    return ids_check(out, e);
}

/* The question that a generative reranker is asked about a document. */
static int encode_question(struct call *c, int i, struct ids *out, struct err *e)
{
    struct rank_question q = { .query = c->p.prompts[i].text,
                               .document = c->p.prompts[i].second,
                               .instruction = c->p.instruction };
    struct engine_info info;
    int rc = rankform_write(c->model->prompter, engine_tokenizer(c->model->engine), &q, out, e);

    engine_info(c->model->engine, &info);
    if (rc == OK && out->n < (size_t)info.opt.n_ctx) return OK;
    call_blame(c, "documents[%d]", i);
    if (rc == E_INVALID && str_starts(str_c(e->msg), STR("instruction:")))
        call_blame(c, "instruction");
    if (rc != OK) return rc;
    return err_set(e, E_CONTEXT,
                   "query and document are %zu tokens with their prompt, which leaves no room in a "
                   "context of %d",
                   out->n, info.opt.n_ctx);
}

/* One input of the list: token ids, a text, or a pair of texts. */
static int encode_input(struct call *c, const struct inputs_kind *kind, int i, struct ids *out,
                        struct err *e)
{
    const struct prompt *p = &c->p.prompts[i];
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct str both[2] = { p->text, p->second };
    int rc;

    if (!p->text.p) return copy_input(c, i, out, e);
    call_blame(c, "%s", kind->field);
    if (!t)
        return err_set(e, E_INVALID, "the model %s has no tokenizer: %s must be token ids",
                       c->model->id, kind->field);
    if ((rc = call_check_length(c, both, p->second.p ? 2 : 1, kind->field, e)) != OK) return rc;
    if (c->yesno.n) return encode_question(c, i, out, e);
    rc = p->second.p ? tokenizer_encode_pair(t, p->text, p->second, out, &c->second_at[i], e)
                     : tokenizer_encode(t, p->text, ENCODE_SPECIAL, out, e);
    if (rc != OK || (rc = ids_check(out, e)) != OK) return rc;
    if (out->n == 0)
        return err_set(e, E_INVALID, "%s[%d] has no tokens: there is nothing to %s", kind->field, i,
                       kind->verb);
    call_blame(c, "%s", "");
    return OK;
}

int inputs_prepare(struct call *c, const struct inputs_kind *kind, struct err *e)
{
    size_t n;
    int rc = call_read_body(c, kind->kind, e);

    if (rc != OK || (rc = kind->check(c, e)) != OK) return rc;
    n = (size_t)c->p.n_prompts;
    c->wants_vector = true;
    c->p.field = kind->field;
    c->inputs = arena_array(&c->arena, n, sizeof *c->inputs);
    if (kind->pairs) c->second_at = arena_array(&c->arena, n, sizeof *c->second_at);
    if ((rc = arena_check(&c->arena, e)) != OK) return rc;
    for (int i = 0; i < c->p.n_prompts && rc == OK; i++)
        if ((rc = call_check_stop(c, e)) == OK) rc = encode_input(c, kind, i, &c->inputs[i], e);
    return rc == OK ? call_check_inputs(c, c->p.n_prompts, e) : rc;
}

/* ---- the answer ---- */

static int write_answer(struct call *c, struct err *e)
{
    buf_clear(&c->out);
    if (c->dialect->write_vectors) {
        c->dialect->write_vectors(c);
        return buf_check(&c->out, e);
    }
    if (c->p.kind == BODY_RERANK) return rerank_write(c, e);
    return c->second_at ? classify_write(c, e) : embeddings_write(c, e);
}

static int send_answer(struct call *c, struct err *e)
{
    (void)e;
    call_send_body(c, 200);
    return OK;
}

/* A few thousand numbers are written faster than another thread is woken. */
void inputs_send(struct call *c)
{
    static const struct call_job job = { write_answer, send_answer };
    size_t numbers = (size_t)c->n_choices * (size_t)c->n_vec;
    struct err e = { 0 };

    if (numbers > INLINE_NUMBERS && call_hand_over(c, &job, numbers * 10, false, &e) == OK) return;
    if (write_answer(c, &e) == OK) call_send_body(c, 200);
    else call_fail(c, &e, NULL);
}
