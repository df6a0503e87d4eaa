/* native.c - llama-server's POST /completion and /infill, in its own form.
 *
 * A streamed answer is events {"content":…,"stop":false}; the last one has "stop":true, why it stopped,
 * the settings and the timings. native_body.c reads the bodies. */
#include "api/native_impl.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "api/fail.h"
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "pool/pool.h"

static struct native *state_of(const struct call *c) { return c->state; }

static void write_str(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key), jsonw_str(w, s);
}

/* Tokens and log probabilities from those that were sent on. */
static void write_tokens(struct jsonw *w, struct call *c)
{
    jsonw_key(w, "tokens"), jsonw_arr(w);
    for (size_t i = c->n_ids_sent; i < c->token_ids.n; i++) jsonw_int(w, c->token_ids.p[i]);
    jsonw_end(w);
    c->n_ids_sent = c->token_ids.n;
    c->out.failed |= c->token_ids.failed;
}

static void write_probabilities(struct jsonw *w, struct choice *ch)
{
    struct str all = str_skip(buf_str(&ch->lp.list[0]), ch->lp_sent);

    if (ch->call->p.n_top < 0) return;
    if (all.n && all.p[0] == ',') all = str_skip(all, 1);
    jsonw_key(w, "completion_probabilities"), jsonw_arr(w);
    if (all.n) jsonw_raw(w, all);
    jsonw_end(w);
    ch->lp_sent = ch->lp.list[0].n;
}

static void open_object(struct jsonw *w, struct call *c, struct buf *out, struct str content,
                        bool stop)
{
    *w = (struct jsonw){ .out = out };
    jsonw_obj(w);
    jsonw_key(w, "index"), jsonw_int(w, 0);
    write_str(w, "content", content);
    if (state_of(c)->return_tokens) write_tokens(w, c);
    write_probabilities(w, c->choices[0]);
    jsonw_key(w, "stop"), jsonw_bool(w, stop);
}

static double per(double n, double ms) { return ms > 0 ? n / ms * 1e3 : 0; }

static void write_timings(struct jsonw *w, const struct usage *u)
{
    int computed = u->prompt - u->cached;

    jsonw_key(w, "timings"), jsonw_obj(w);
    jsonw_key(w, "cache_n"), jsonw_int(w, u->cached);
    jsonw_key(w, "prompt_n"), jsonw_int(w, computed);
    jsonw_key(w, "prompt_ms"), jsonw_num(w, u->prefill_ms);
    jsonw_key(w, "prompt_per_second"), jsonw_num(w, per(computed, u->prefill_ms));
    jsonw_key(w, "predicted_n"), jsonw_int(w, u->completion);
    jsonw_key(w, "predicted_ms"), jsonw_num(w, u->decode_ms);
    jsonw_key(w, "predicted_per_second"), jsonw_num(w, per(u->completion, u->decode_ms));
    jsonw_end(w);
}

static void write_num(struct jsonw *w, const char *key, double v)
{
    jsonw_key(w, key), jsonw_num(w, v);
}

/* The settings of the answer: the model's defaults under the request's. A seed that was not given is
 * llama-server's number for a random one. */
static void write_settings(struct jsonw *w, const struct call *c)
{
    const struct native *s = state_of(c);
    struct sample_opt o = c->model->sample;

    params_sample(&c->p, &o);
    jsonw_key(w, "generation_settings"), jsonw_obj(w);
    jsonw_key(w, "n_predict"), jsonw_int(w, c->p.max_tokens ? c->p.max_tokens : -1);
    jsonw_key(w, "seed"), jsonw_int(w, c->p.has_seed ? (int64_t)c->p.seed : UINT32_MAX);
    write_num(w, "temperature", (double)o.temp);
    jsonw_key(w, "top_k"), jsonw_int(w, o.top_k);
    write_num(w, "top_p", (double)o.top_p);
    write_num(w, "min_p", (double)o.min_p);
    write_num(w, "typical_p", (double)o.typical);
    jsonw_key(w, "repeat_last_n"), jsonw_int(w, o.repeat_last);
    write_num(w, "repeat_penalty", (double)o.repeat_penalty);
    write_num(w, "presence_penalty", (double)o.presence_penalty);
    write_num(w, "frequency_penalty", (double)o.freq_penalty);
    jsonw_key(w, "stop"), jsonw_arr(w);
    for (int i = 0; i < s->n_stops; i++) jsonw_str(w, s->stops[i]);
    jsonw_end(w);
    jsonw_key(w, "n_probs"), jsonw_int(w, c->p.n_top > 0 ? c->p.n_top : 0);
    jsonw_key(w, "ignore_eos"), jsonw_bool(w, c->p.ignore_eos);
    jsonw_key(w, "stream"), jsonw_bool(w, c->p.stream);
    jsonw_key(w, "t_max_predict_ms"), jsonw_int(w, c->p.predict_ms);
    jsonw_end(w);
}

static void write_end(struct jsonw *w, const struct call *c, const struct usage *u)
{
    const struct choice *ch = c->choices[0];
    const struct native *s = state_of(c);
    bool cut = ch->finish == FINISH_LENGTH,
         word = !cut && ch->stop_hit >= 0 && ch->stop_hit < s->n_stops;

    write_str(w, "model", str_c(c->model_id));
    jsonw_key(w, "tokens_predicted"), jsonw_int(w, u->completion);
    jsonw_key(w, "tokens_evaluated"), jsonw_int(w, u->prompt);
    jsonw_key(w, "tokens_cached"), jsonw_int(w, u->cached);
    jsonw_key(w, "truncated"), jsonw_bool(w, false);
    write_str(w, "stop_type", cut ? STR("limit") : ch->stop_hit >= 0 ? STR("word") : STR("eos"));
    write_str(w, "stopping_word", word ? s->stops[ch->stop_hit] : STR(""));
    write_settings(w, c);
    write_timings(w, u);
    jsonw_end(w);
}

static void begin(struct choice *ch) { (void)ch; }
static void open_part(struct choice *ch, const struct part *p) { (void)ch, (void)p; }

static void add_part(struct choice *ch, const struct part *p, struct str piece)
{
    struct jsonw w;

    if (p->kind != PART_TEXT || !piece.n) return;
    respond_begin_chunk(ch->call);
    open_object(&w, ch->call, &ch->call->out, piece, false);
    jsonw_end(&w);
}

/* The member at a path: "timings/prompt_n"; NULL: there is none. *name: its last part. */
static const json_t *find_field(const json_t *v, struct str path, struct str *name)
{
    while (v && path.n) {
        ptrdiff_t slash = str_find(path, STR("/"));
        *name = slash < 0 ? path : str_take(path, (size_t)slash);
        v = json_object_getn(v, name->p, name->n);
        path = slash < 0 ? STR("") : str_skip(path, (size_t)slash + 1);
    }
    return v;
}

/* Only the members that response_fields names, each by the last part of its path. */
static void select_fields(struct call *c, struct str whole)
{
    const struct native *s = state_of(c);
    json_t *all = jsonr_load(whole, JSON_ALLOW_NUL, NULL), *some = json_object();
    bool ok = all && some;

    for (int i = 0; i < s->n_fields && ok; i++) {
        struct str name = STR("");
        const json_t *v = find_field(all, s->fields[i], &name);
        if (v && name.n) ok = json_object_setn(some, name.p, name.n, (json_t *)v) == 0;
    }
    if (ok) jsonr_dump(&c->out, some, JSON_COMPACT);
    c->out.failed |= !ok;
    json_decref(all);
    json_decref(some);
}

/* The object with "stop":true: the whole answer, or the end of a stream. */
static void write_last(struct call *c, struct str text, const struct usage *u)
{
    struct buf whole = { 0 };
    struct jsonw w;
    bool some = state_of(c)->n_fields > 0;

    open_object(&w, c, some ? &whole : &c->out, text, true);
    write_end(&w, c, u);
    if (some && !whole.failed) select_fields(c, buf_str(&whole));
    c->out.failed |= whole.failed;
    buf_release(&whole);
}

static void end(struct call *c, const struct usage *u)
{
    respond_begin_chunk(c);
    write_last(c, STR(""), u);
}

static void write_body(struct call *c, const struct usage *u)
{
    struct buf text = { 0 };

    write_last(c, answer_join(&c->choices[0]->answer, PART_TEXT, &text), u);
    c->out.failed |= text.failed;
    buf_release(&text);
}

static void write_failure(struct call *c, const struct fail *f, const char *msg, const char *param)
{
    respond_begin_chunk(c);
    fail_write_body(&c->out, FAIL_OPENAI, f, msg, param, c->who.correlation);
}

#define NATIVE_DIALECT(reader)                                                           \
    {                                                                                    \
        .id_prefix = "cmpl-", .token_ids = true, .translate = (reader), .begin = begin,  \
        .open_part = open_part, .add_part = add_part, .end = end, .fail = write_failure, \
        .write_body = write_body                                                         \
    }
static const struct dialect dialect_native = NATIVE_DIALECT(native_translate_completion),
                            dialect_infill = NATIVE_DIALECT(native_translate_infill);

static int prepare_native(struct call *c, struct err *e)
{
    int rc = call_read_body(c, BODY_TEXT, e);

    if (rc != OK) return rc;
    if (c->p.n != 1 || c->p.n_prompts > 1) {
        call_blame(c, c->p.n != 1 ? "n" : "prompt");
        return err_set(e, E_INVALID, "%s: this path answers one prompt once", c->p.param);
    }
    return c->p.suffix.p ? call_prepare_infill(c, e) : call_prepare_text(c, e);
}

void api_native_completion(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_native, call_submit };

    call_begin_as(a, q, who, "/completion", &job, &dialect_native);
}

void api_infill(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { prepare_native, call_submit };

    call_begin_as(a, q, who, "/infill", &job, &dialect_infill);
}
