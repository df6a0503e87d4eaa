#include "cluster/promptkey.h"

#include "api/params.h"
#include "base/mem.h"
#include "kv/block.h"
#include "pool/modelname.h"
#include "pool/prompter.h"
#include "token/tokenizer.h"

#include <stdio.h>

enum {
    EXACT_BYTES = 64 << 10, /* a larger body is not tokenized on the loop */
    TEXT_BYTES = AFFINITY_BLOCKS * AFFINITY_BYTES,
    GUESS_TOKENS = 128, /* of a completion without max_tokens */
    TOKEN_BYTES = 4,    /* of a token of text, on average */
    MOST_COUNT = 1000000000
};

struct known {
    char *id;
    struct tokenizer *t;
    struct prompter *p;
};

struct promptkeys {
    struct known *at; /* [n] */
    int n;
};

/* ---- tokenizers ---- */

static int open_known(struct known *k, const char *path, const char *name, struct err *e)
{
    int rc;

    k->id = name ? mem_strdup(name) : model_id_of(path);
    if (!k->id) return err_nomem(e, "the name of a model");
    if ((rc = tokenizer_open(&k->t, path, e)) != OK) return rc;
    return prompter_open(&k->p, k->t, NULL, e);
}

int promptkeys_open(struct promptkeys **out, const char *const *models, const char *const *names,
                    int n, struct err *e)
{
    struct promptkeys *k = mem_new(struct promptkeys);
    int rc = OK;

    if (!k || (n && !(k->at = mem_array((size_t)n, sizeof *k->at)))) {
        promptkeys_close(k);
        return err_nomem(e, "the tokenizers");
    }
    for (int i = 0; i < n && rc == OK; i++, k->n++)
        rc = open_known(&k->at[i], models[i], names[i], e);
    if (rc == OK) *out = k;
    else promptkeys_close(k);
    return rc;
}

void promptkeys_close(struct promptkeys *k)
{
    if (!k) return;
    for (int i = 0; i < k->n; i++) {
        prompter_close(k->at[i].p);
        tokenizer_close(k->at[i].t);
        mem_free(k->at[i].id);
    }
    mem_free(k->at);
    mem_free(k);
}

static const struct known *find_known(const struct promptkeys *k, const char *model)
{
    for (int i = 0; k && i < k->n; i++)
        if (strcmp(k->at[i].id, model) == 0) return &k->at[i];
    return k && k->n == 1 && !*model ? &k->at[0] : NULL;
}

/* ---- exact hashes ---- */

static int encode_chat(const struct known *k, const struct params *p, struct prompt_output *out)
{
    struct prompt_input in = { .msgs = p->msgs,
                               .n_msgs = (size_t)p->n_msgs,
                               .messages = p->messages,
                               .tools = p->tools,
                               .documents = p->documents,
                               .vars = p->template_vars,
                               .no_generation_prompt = !p->add_prompt,
                               .continue_final = p->continue_final };

    return prompter_make(k->p, &in, out, NULL);
}

static int encode_text(const struct known *k, const struct params *p, struct ids *out)
{
    const struct prompt *first = &p->prompts[0];

    if (p->n_prompts == 0) return E_INVALID;
    if (first->text.p) return tokenizer_encode(k->t, first->text, ENCODE_SPECIAL, out, NULL);
    ids_add(out, first->ids, first->n_ids);
    return OK;
}

/* false: the body is not understood. */
static bool make_exact(const struct known *k, struct str body, uint64_t salt, struct promptkey *out,
                       size_t *n_tokens)
{
    struct params p = { 0 };
    struct prompt_output o = { 0 };
    int rc = params_read(&p, BODY_EXECUTE, body, NULL);

    if (rc == OK) rc = p.n_msgs ? encode_chat(k, &p, &o) : encode_text(k, &p, &o.ids);
    if (rc == OK && !o.ids.failed) {
        out->n_hashes = affinity_hash_ids(salt, o.ids.p, o.ids.n, out->hashes);
        out->block_tokens = KV_BLOCK;
        out->exact = true;
        *n_tokens = o.ids.n;
    }
    prompt_output_release(&o);
    params_release(&p);
    return out->exact;
}

/* ---- hashes of text ---- */

/* From the first of the fields on that a prompt is in: what follows it comes after the prompt. */
static void make_text(struct str body, uint64_t salt, struct promptkey *out)
{
    static const char *const fields[] = { "\"messages\"", "\"prompt\"", "\"input\"" };
    ptrdiff_t at = -1;

    for (size_t i = 0; i < sizeof fields / sizeof *fields && at < 0; i++)
        at = str_find(str_take(body, TEXT_BYTES), str_c(fields[i]));
    if (at < 0) return;
    body = str_take(str_skip(body, (size_t)at), TEXT_BYTES);
    out->n_hashes = affinity_hash_text(salt, body.p, body.n, out->hashes);
    out->block_tokens = (double)AFFINITY_BYTES / TOKEN_BYTES;
}

/* ---- the members that the gateway looks at ---- */

enum { M_MODEL, M_MAX, M_MAX_COMPLETION, M_N, M_SEED, M_DURABLE, M_STREAM, M_PREVIOUS };

/* The member's number, at most MOST_COUNT; without one that is 0 or more, dflt. */
static double number_of(const struct jsonpeek_member *m, double dflt)
{
    double v;

    if (m->found != JSONPEEK_FOUND || m->is_text || !str_to_f64(m->value, &v) || !(v >= 0))
        return dflt;
    return v < MOST_COUNT ? v : MOST_COUNT;
}

static uint64_t salt_of(uint64_t salt, const char *model)
{
    for (const char *s = model; *s; s++) salt = (salt ^ (unsigned char)*s) * 0x100000001b3u;
    return salt;
}

void promptlook_begin(struct promptlook *l, struct str body)
{
    static const char *const keys[PROMPTLOOK_MEMBERS] = { [M_MODEL] = "model",
                                                          [M_MAX] = "max_tokens",
                                                          [M_MAX_COMPLETION] =
                                                              "max_completion_tokens",
                                                          [M_N] = "n",
                                                          [M_SEED] = "seed",
                                                          [M_DURABLE] = "durable",
                                                          [M_STREAM] = "stream",
                                                          [M_PREVIOUS] = "previous_response_id" };

    for (int i = 0; i < PROMPTLOOK_MEMBERS; i++) l->m[i].key = keys[i];
    jsonpeek_begin(&l->scan, body, l->m, PROMPTLOOK_MEMBERS);
}

bool promptlook_step(struct promptlook *l) { return jsonpeek_step(&l->scan, PROMPTLOOK_BYTES); }

static bool is_true(const struct jsonpeek_member *m)
{
    return m->found == JSONPEEK_FOUND && !m->is_text && str_is(m->value, "true");
}

struct str promptlook_durable(const struct promptlook *l)
{
    return is_true(&l->m[M_DURABLE]) ? l->m[M_DURABLE].value : (struct str){ 0 };
}

bool promptlook_streams(const struct promptlook *l) { return is_true(&l->m[M_STREAM]); }

struct str promptlook_previous(const struct promptlook *l)
{
    const struct jsonpeek_member *m = &l->m[M_PREVIOUS];

    return m->found == JSONPEEK_FOUND && m->is_text ? m->value : (struct str){ 0 };
}

void promptkey_make(const struct promptkeys *k, const struct promptlook *l, uint64_t salt,
                    struct promptkey *out)
{
    const struct jsonpeek_member *m = l->m;
    struct str body = l->scan.json;
    const struct known *known;
    size_t n_tokens = body.n / TOKEN_BYTES;
    double most;

    *out = (struct promptkey){ .n = 1, .block_tokens = 1 };
    if (!body.n) {
        out->cost = 1;
        return;
    }
    if (m[M_MODEL].found == JSONPEEK_FOUND && m[M_MODEL].is_text)
        snprintf(out->model, sizeof out->model, "%.*s", STR_ARG(m[M_MODEL].value));
    salt = salt_of(salt, out->model);
    known = body.n <= EXACT_BYTES ? find_known(k, out->model) : NULL;
    if (!known || !make_exact(known, body, salt, out, &n_tokens)) make_text(body, salt, out);
    most = number_of(&m[M_MAX], number_of(&m[M_MAX_COMPLETION], GUESS_TOKENS));
    out->n = (int)number_of(&m[M_N], 1);
    out->has_seed = m[M_SEED].found == JSONPEEK_FOUND;
    out->cost = (double)n_tokens + most * (out->n > 1 ? out->n : 1) + 1;
}
