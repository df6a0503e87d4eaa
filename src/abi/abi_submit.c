/* abi_submit.c - submitting requests: parameters, prompt, queue.
 *
 * Everything a caller passes is borrowed for the call: the prompt is made before it returns. The
 * deadline counts from the beginning of the call, so that it covers a model that is loaded first. */
#include "abi/abi_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "grammar/grammar.h"
#include "pool/prompter.h"
#include "token/tokenizer.h"

enum { STOPS_MAX = 64, PRIORITY_MOST = 1000 };

/* The parts of one submission. */
struct submission {
    const char *call; /* for errors */
    tern_params p;
    uint64_t deadline_ns;
    bool embed;
    struct lease lease;
    struct tern_request *r;
};

/* ---- parameters ---- */

static int check_params(const struct submission *s)
{
    const tern_params *p = &s->p;

    if (p->deadline_ms < 0) return abi_invalid(s->call, "deadline_ms must be 0 (none) or more");
    if (p->priority < -PRIORITY_MOST || p->priority > PRIORITY_MOST)
        return abi_invalid(s->call, "priority must be between -1000 and 1000");
    if (p->top_logprobs < 0 || p->top_logprobs > TOP_MAX)
        return abi_invalid(s->call, "top_logprobs must be between 0 and 20");
    if (p->grammar && p->json_schema)
        return abi_invalid(s->call, "grammar and json_schema are both given");
    return OK;
}

/* The caller's stop strings, and the one of the chat form. */
static int set_stops(struct submission *s, bool chat, struct err *e)
{
    const char *const *stop = s->p.stop;
    struct str stops[STOPS_MAX + 1];
    int n = 0;

    for (int i = 0; stop && stop[i]; i++) {
        if (n == STOPS_MAX)
            return err_set(e, E_INVALID, "%s: there are more than %d stop strings", s->call,
                           STOPS_MAX);
        stops[n++] = str_c(stop[i]);
    }
    if (chat && s->lease.prompter) stops[n++] = prompter_stop(s->lease.prompter);
    return request_set_stops(s->r->r, stops, n) ? OK : err_nomem(e, "the stop strings");
}

/* Compiled on the calling thread; cached by the engine. */
static int set_grammar(struct submission *s, struct err *e)
{
    const tern_params *p = &s->p;
    struct grammar_spec spec = { .kind = p->grammar ? GRAMMAR_GBNF : GRAMMAR_SCHEMA,
                                 .text = str_c(p->grammar ? p->grammar : p->json_schema) };

    if (!p->grammar && !p->json_schema) return OK;
    if (engine_grammar(s->lease.engine, &spec, &s->r->r->grammar, e) == OK) return OK;
    return err_wrap(e, p->grammar ? "grammar" : "json_schema");
}

/* Parameters that need no memory. */
static void fill_request(struct submission *s, bool chat)
{
    const tern_params *p = &s->p;
    struct request *q = s->r->r;

    q->max_tokens = p->max_tokens;
    q->ignore_eos = p->ignore_eos != 0;
    q->continues = !chat;
    q->deadline_ns = s->deadline_ns;
    q->priority = p->priority;
    q->n_top = p->logprobs || p->top_logprobs ? p->top_logprobs : -1;
    q->sample = (struct sample_opt){
        .temp = p->temp,
        .top_k = p->top_k,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .typical = p->typical,
        .repeat_penalty = p->repeat_penalty,
        .repeat_last = p->repeat_last,
        .freq_penalty = p->freq_penalty,
        .presence_penalty = p->presence_penalty,
        .seed = p->seed,
    };
}

/* An embedding has no completion: nothing is sampled. */
static void fill_embedding(struct submission *s)
{
    struct request *q = s->r->r;

    q->embed = true;
    q->deadline_ns = s->deadline_ns;
    q->priority = s->p.priority;
}

/* ---- the two ends of a submission ---- */

/* Reads the parameters and takes the engine. The failure is in abi_last. */
static int begin(struct submission *s, struct tern_model *m, const tern_params *p)
{
    struct err e = { 0 };
    int rc;

    tern_params_init(&s->p, m);
    if (p && (rc = abi_read_sized(s->call, &s->p, sizeof s->p, p, p->size)) != OK) return rc;
    if ((rc = check_params(s)) != OK) return rc;
    if (s->p.deadline_ms) s->deadline_ns = clock_ns() + (uint64_t)s->p.deadline_ms * 1000000u;
    if (lease_take(&s->lease, m, s->deadline_ns, &e) != OK) return abi_fail(&e);
    if (!p) tern_params_init(&s->p, m); /* of a model that was only loaded now */
    if ((s->r = abi_request_open(m, &s->lease))) return OK;
    lease_end(&s->lease);
    return err_nomem(&abi_last, "the request");
}

static int set_params(struct submission *s, bool chat, struct err *e)
{
    int rc;

    if (s->embed) {
        fill_embedding(s);
        return OK;
    }
    fill_request(s, chat);
    if ((rc = set_stops(s, chat, e)) != OK) return rc;
    return set_grammar(s, e);
}

/* Submits the request if rc is OK, with its prompt in place; otherwise closes it. */
static int end(tern_request **out, struct submission *s, int rc, struct err *e)
{
    if (rc == OK) rc = engine_submit(s->lease.engine, s->r->r, e);
    if (rc != OK) {
        tern_request_close(s->r);
        return abi_fail(e);
    }
    *out = s->r;
    return TERN_OK;
}

/* ---- prompts ---- */

/* The prompt of a conversation, in the request. */
static int set_chat_prompt(struct submission *s, const struct chat_msg *msgs, size_t n,
                           struct err *e)
{
    struct prompt_input in = { .msgs = msgs,
                               .n_msgs = n,
                               .find_borders = engine_keeps_state(s->lease.engine) };
    struct prompt_output out = { 0 };
    int rc = prompter_make(s->lease.prompter, &in, &out, e);

    if (rc == OK) {
        s->r->r->prompt = out.ids;
        request_set_borders(s->r->r, out.borders, out.n_borders);
        out.ids = (struct ids){ 0 };
    }
    prompt_output_release(&out);
    return rc;
}

/* The prompt as it is. An empty one becomes the token that texts begin with. */
static int set_raw_prompt(struct submission *s, const struct tokenizer *t, struct str text,
                          struct err *e)
{
    struct ids *ids = &s->r->r->prompt;
    int rc = tokenizer_encode(t, text, ENCODE_SPECIAL, ids, e);

    if (rc == OK && ids->n == 0) {
        int32_t first = tokenizer_bos(t) >= 0 ? tokenizer_bos(t) : tokenizer_eos(t);
        if (first >= 0) ids_push(ids, first);
    }
    return rc == OK ? ids_check(ids, e) : rc;
}

static int set_text(struct submission *s, struct tern_model *m, struct str text, struct err *e)
{
    const struct tokenizer *t = lease_tokenizer(&s->lease, m, e);
    struct chat_msg msg = { STR("user"), text };
    bool chat;
    int rc;

    if (!t) return e->code;
    chat = !s->embed && !s->p.raw && s->lease.prompter && prompter_knows_chat(s->lease.prompter);
    if ((rc = set_params(s, chat, e)) != OK) return rc;
    return chat ? set_chat_prompt(s, &msg, 1, e) : set_raw_prompt(s, t, text, e);
}

int tern_submit(tern_request **out, tern_model *m, const char *prompt, size_t n,
                const tern_params *p)
{
    struct submission s = { .call = "tern_submit" };
    struct err e = { 0 };
    int rc;

    if (!out || !m || (!prompt && n))
        return abi_invalid(s.call, "out, the model and the prompt must not be NULL");
    *out = NULL;
    if ((rc = begin(&s, m, p)) != OK) return rc;
    rc = set_text(&s, m, str_of(prompt, n), &e);
    return end(out, &s, rc, &e);
}

int tern_submit_embedding(tern_request **out, tern_model *m, const char *text, size_t n,
                          const tern_params *p)
{
    struct submission s = { .call = "tern_submit_embedding", .embed = true };
    struct err e = { 0 };
    int rc;

    if (!out || !m || (!text && n))
        return abi_invalid(s.call, "out, the model and the text must not be NULL");
    *out = NULL;
    if ((rc = begin(&s, m, p)) != OK) return rc;
    rc = set_text(&s, m, str_of(text, n), &e);
    return end(out, &s, rc, &e);
}

static int set_messages(struct submission *s, struct tern_model *m, const tern_message *msgs,
                        size_t n, struct err *e)
{
    struct chat_msg *copy;
    int rc;

    if (!lease_tokenizer(&s->lease, m, e)) return e->code;
    if (!(copy = mem_array(n, sizeof *copy))) return err_nomem(e, "the messages");
    for (size_t i = 0; i < n; i++)
        copy[i] = (struct chat_msg){ str_c(msgs[i].role), str_c(msgs[i].content) };
    if ((rc = set_params(s, true, e)) == OK) rc = set_chat_prompt(s, copy, n, e);
    mem_free(copy);
    return rc;
}

int tern_submit_chat(tern_request **out, tern_model *m, const tern_message *msgs, size_t n,
                     const tern_params *p)
{
    struct submission s = { .call = "tern_submit_chat" };
    struct err e = { 0 };
    int rc;

    if (!out || !m || !msgs || n == 0)
        return abi_invalid(s.call, "out, the model and messages must not be NULL");
    *out = NULL;
    for (size_t i = 0; i < n; i++)
        if (!msgs[i].role || !msgs[i].content)
            return abi_invalid(s.call, "role and content of a message must not be NULL");
    if ((rc = begin(&s, m, p)) != OK) return rc;
    rc = set_messages(&s, m, msgs, n, &e);
    return end(out, &s, rc, &e);
}

/* The engine checks the ids. */
static int set_ids(struct submission *s, struct tern_model *m, const int32_t *ids, size_t n,
                   struct err *e)
{
    int n_ctx = m->facts.info.opt.n_ctx, rc;

    if (n >= (size_t)n_ctx) /* before anything of that size is copied */
        return err_set(e, E_CONTEXT,
                       "the prompt has %zu tokens, which leaves no room in a context of %d", n,
                       n_ctx);
    if ((rc = set_params(s, false, e)) != OK) return rc;
    ids_add(&s->r->r->prompt, ids, n);
    return ids_check(&s->r->r->prompt, e);
}

int tern_submit_ids(tern_request **out, tern_model *m, const int32_t *ids, size_t n,
                    const tern_params *p)
{
    struct submission s = { .call = "tern_submit_ids" };
    struct err e = { 0 };
    int rc;

    if (!out || !m || (!ids && n))
        return abi_invalid(s.call, "out, the model and ids must not be NULL");
    *out = NULL;
    if ((rc = begin(&s, m, p)) != OK) return rc;
    rc = set_ids(&s, m, ids, n, &e);
    return end(out, &s, rc, &e);
}
