/* inputs.c - bodies with a list of texts, or pairs of texts, of which each is one engine request.
 *
 * The call has one admission and one place in the queue (struct ticket): a list is refused at once
 * or computed without waiting again. Only some of its requests are in the engine at a time, so that
 * a long list leaves places to others; each one that ends is followed by the next.
 *
 * The texts are tokenized on a request thread, and a large answer is written on one (prepare.c). */
#include "api/call.h"

#include "engine/engine.h"
#include "net/http.h"
#include "pool/pool.h"

enum { INLINE_NUMBERS = 4096 };

/* One input of the list: token ids, a text, or a pair of texts. */
static int encode_input(struct call *c, const struct inputs_kind *kind, int i, struct ids *out,
                        struct err *e)
{
    const struct prompt *p = &c->p.prompts[i];
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct str both[2] = { p->text, p->second };
    int rc;

    if (!p->text.p) {
        ids_add(out, p->ids, p->n_ids);
        return ids_check(out, e);
    }
    call_blame(c, "input");
    if (!t)
        return err_set(e, E_INVALID, "the model %s has no tokenizer: input must be token ids",
                       c->model->id);
    if ((rc = call_check_length(c, both, p->second.p ? 2 : 1, "input", e)) != OK) return rc;
    rc = p->second.p ? tokenizer_encode_pair(t, p->text, p->second, out, &c->second_at[i], e)
                     : tokenizer_encode(t, p->text, ENCODE_SPECIAL, out, e);
    if (rc != OK || (rc = ids_check(out, e)) != OK) return rc;
    if (out->n == 0)
        return err_set(e, E_INVALID, "input[%d] has no tokens: there is nothing to %s", i,
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
    c->p.field = "input";
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
