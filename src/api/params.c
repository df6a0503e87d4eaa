/* params.c - the table of fields, and reading a body by it.
 *
 * A row names a field, the kinds of bodies that have it, its type, its range, and where the value
 * goes. Types with an inner structure have a reader of their own (params_impl.h). A field that
 * appears in several rows is read by the first that fits the kind of body.
 *
 * `given` records the rows that were present, since a value of 0 is not the same as an absent
 * field: params_sample overrides the defaults of the model with given ones only. */
#include "api/params_impl.h"

#include "engine/request.h"

#include <ctype.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>

enum kind {
    F_INT,     /* int from least to most */
    F_FLOAT,   /* float from least to most */
    F_SECONDS, /* double, above least */
    F_BOOL,
    F_TEXT,    /* struct str */
    F_FN,      /* read by `read` */
    F_NOTHING, /* accepted with any value; no effect on the answer */
    F_REFUSED  /* not supported: only a value that turns it off is accepted */
};

enum { ABOVE = 1, BELOW = 2 }; /* the range excludes least, most */

struct field {
    const char *name;
    unsigned in; /* enum body_kind: the bodies that have it */
    enum kind kind;
    size_t at; /* offset in struct params */
    double least, most;
    unsigned open; /* ABOVE, BELOW */
    params_fn *read;
};

#define AT(member) offsetof(struct params, member)
enum {
    GEN = BODY_CHAT | BODY_TEXT,                          /* bodies that generate text */
    RUN = GEN | BODY_EMBED | BODY_CLASSIFY | BODY_RERANK, /* bodies that run the model */
    ALL = RUN | BODY_TOKENIZE | BODY_DETOKENIZE
};

/* ---- readers of single fields ---- */

/* null, false, 0, "", [] and {} ask for nothing. */
static bool is_off(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return json_object_size(v) == 0;
    case JSON_ARRAY: return json_array_size(v) == 0;
    case JSON_STRING: return json_string_length(v) == 0;
    case JSON_INTEGER: return json_integer_value(v) == 0;
    case JSON_REAL: return !(json_real_value(v) < 0 || json_real_value(v) > 0);
    case JSON_TRUE: return false;
    default: return true;
    }
}

/* Both names of the field. Which one counts is decided in finish_generation. */
static int read_max_tokens(struct params *p, struct body_reader *r, const char *param,
                           const json_t *v)
{
    int64_t n;
    int rc;

    if (json_is_integer(v) && json_integer_value(v) == -1) return OK; /* llama.cpp: no limit */
    if ((rc = body_read_int(r, param, v, 1, INT_MAX, &n)) == OK)
        *(strcmp(param, "max_tokens") ? &p->max_completion_tokens : &p->max_tokens) = (int)n;
    return rc;
}

static int read_stream_options(struct params *p, struct body_reader *r, const char *param,
                               const json_t *v)
{
    const json_t *usage;

    if (!json_is_object(v))
        return body_refuse(r, param, "must be an object, but it is %s", body_type(v));
    usage = json_object_get(v, "include_usage");
    if (!usage || json_is_null(usage)) return OK;
    return body_read_bool(r, "stream_options.include_usage", usage, &p->include_usage);
}

/* Chat uses true, completions a number of alternatives; both are accepted in both. */
static int read_logprobs(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    int64_t n;
    int rc;

    if (json_is_boolean(v)) {
        p->logprobs = json_is_true(v);
        return OK;
    }
    if (!json_is_number(v))
        return body_refuse(r, param, "must be true, false or a number from 0 to %d, but it is %s",
                           TOP_MAX, body_type(v));
    if ((rc = body_read_int(r, param, v, 0, TOP_MAX, &n)) != OK) return rc;
    p->logprobs = true;
    if (!p->top_given) p->top_logprobs = (int)n;
    return OK;
}

static int read_top_logprobs(struct params *p, struct body_reader *r, const char *param,
                             const json_t *v)
{
    int64_t n;
    int rc = body_read_int(r, param, v, 0, TOP_MAX, &n);

    if (rc == OK) p->top_logprobs = (int)n, p->top_given = true;
    return rc;
}

static int read_seed(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    int rc = body_read_u64(r, param, v, &p->seed);

    p->has_seed = rc == OK;
    return rc;
}

static int read_deadline(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    int rc = body_read_int(r, param, v, INT64_MIN, INT64_MAX, &p->deadline_ms);

    p->has_deadline = rc == OK;
    return rc;
}

bool params_parse_priority(struct str s, int *out)
{
    int64_t n;

    if (str_is(s, "interactive")) n = PRIORITY_INTERACTIVE;
    else if (str_is(s, "batch")) n = PRIORITY_BATCH;
    else if (!str_to_i64(s, &n) || n < -1000 || n > 1000) return false;
    *out = (int)n;
    return true;
}

static int read_priority(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    int64_t n;
    int rc;

    if (json_is_string(v)) {
        if (!params_parse_priority(body_str(v), &p->priority))
            return body_refuse(r, param, "must be a number, \"interactive\" or \"batch\"");
    } else {
        if ((rc = body_read_int(r, param, v, -1000, 1000, &n)) != OK) return rc;
        p->priority = (int)n;
    }
    p->has_priority = true;
    return OK;
}

/* Only text is generated; clients send ["text"] by default. */
static int read_modalities(struct params *p, struct body_reader *r, const char *param,
                           const json_t *v)
{
    (void)p;
    if (!json_is_array(v))
        return body_refuse(r, param, "must be a list, but it is %s", body_type(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *m = json_array_get(v, i);
        if (!json_is_string(m) || !str_is(body_str(m), "text"))
            return body_refuse(r, param,
                               "may only contain \"text\": the model generates nothing else");
    }
    return OK;
}

static int read_encoding(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    struct str s = json_is_string(v) ? body_str(v) : STR("");

    p->base64 = str_is(s, "base64");
    if (p->base64 || str_is(s, "float")) return OK;
    return body_refuse(r, param, "must be \"float\" or \"base64\"");
}

static int read_tokens(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    return body_read_ids(r, param, v, &p->tokens, &p->n_tokens);
}

/* ---- the table ---- */

/* clang-format off */
#define REFUSED(name)    { name, GEN, F_REFUSED, 0, 0, 0, 0, NULL }
#define NOTHING(name)    { name, GEN, F_NOTHING, 0, 0, 0, 0, NULL }
#define FN(name, in, fn) { name, in, F_FN, 0, 0, 0, 0, fn }

static const struct field fields[] = {
    { "model", ALL, F_TEXT, AT(model), 0, 0, 0, NULL },
    FN("messages", BODY_CHAT, params_read_messages),
    FN("prompt", BODY_TEXT, params_read_prompt),
    FN("max_tokens", GEN, read_max_tokens),
    FN("max_completion_tokens", GEN, read_max_tokens),
    { "min_tokens", GEN, F_INT, AT(min_tokens), 0, INT_MAX, 0, NULL },
    { "n", GEN, F_INT, AT(n), 1, 1024, 0, NULL },
    { "best_of", GEN, F_INT, AT(best_of), 1, 1024, 0, NULL },
    { "stream", GEN, F_BOOL, AT(stream), 0, 0, 0, NULL },
    FN("stream_options", GEN, read_stream_options),
    FN("stop", GEN, params_read_stop),
    { "echo", BODY_TEXT, F_BOOL, AT(echo), 0, 0, 0, NULL },
    { "ignore_eos", GEN, F_BOOL, AT(ignore_eos), 0, 0, 0, NULL },
    { "logprobs", BODY_CHAT, F_BOOL, AT(logprobs), 0, 0, 0, NULL },
    FN("logprobs", BODY_TEXT, read_logprobs),
    FN("top_logprobs", BODY_CHAT, read_top_logprobs),
    FN("seed", GEN, read_seed),
    FN("priority", RUN, read_priority),
    { "timeout", RUN, F_SECONDS, AT(timeout_s), 0, 1e9, ABOVE, NULL },
    FN("deadline_ms", RUN, read_deadline),
    FN("keep_alive", RUN, params_read_keep_alive),
    FN("ttl", RUN, params_read_keep_alive),

    { "temperature", GEN, F_FLOAT, AT(sample.temp), 0, 2, 0, NULL },
    { "top_p", GEN, F_FLOAT, AT(sample.top_p), 0, 1, 0, NULL },
    { "top_k", GEN, F_INT, AT(sample.top_k), -1, INT_MAX, 0, NULL },
    { "min_p", GEN, F_FLOAT, AT(sample.min_p), 0, 1, BELOW, NULL },
    { "typical_p", GEN, F_FLOAT, AT(sample.typical), 0, 1, ABOVE, NULL },
    { "repetition_penalty", GEN, F_FLOAT, AT(sample.repeat_penalty), 0, 100, ABOVE, NULL },
    { "repeat_penalty", GEN, F_FLOAT, AT(sample.repeat_penalty), 0, 100, ABOVE, NULL },
    { "repeat_last_n", GEN, F_INT, AT(sample.repeat_last), -1, 1 << 20, 0, NULL },
    { "frequency_penalty", GEN, F_FLOAT, AT(sample.freq_penalty), -2, 2, 0, NULL },
    { "presence_penalty", GEN, F_FLOAT, AT(sample.presence_penalty), -2, 2, 0, NULL },
    FN("logit_bias", GEN, params_read_logit_bias),

    FN("input", BODY_EMBED, params_read_prompt),
    FN("input", BODY_CLASSIFY, params_read_pairs),
    { "dimensions", BODY_EMBED, F_INT, AT(dimensions), 1, INT_MAX, 0, NULL },
    FN("encoding_format", BODY_EMBED, read_encoding),
    FN("query", BODY_RERANK, params_read_query),
    FN("documents", BODY_RERANK, params_read_ranked),
    FN("instruction", BODY_RERANK, params_read_instruction),
    { "top_n", BODY_RERANK, F_INT, AT(top_n), 1, INT_MAX, 0, NULL },
    { "return_documents", BODY_RERANK, F_BOOL, AT(return_documents), 0, 0, 0, NULL },
    { "raw_scores", BODY_RERANK, F_BOOL, AT(raw_scores), 0, 0, 0, NULL },
    { "user", BODY_EMBED | BODY_CLASSIFY | BODY_RERANK, F_NOTHING, 0, 0, 0, 0, NULL },

    { "content", BODY_TOKENIZE, F_TEXT, AT(text), 0, 0, 0, NULL },
    { "text", BODY_TOKENIZE, F_TEXT, AT(text), 0, 0, 0, NULL },
    { "prompt", BODY_TOKENIZE, F_TEXT, AT(text), 0, 0, 0, NULL },
    { "add_special", BODY_TOKENIZE, F_BOOL, AT(add_special), 0, 0, 0, NULL },
    { "add_special_tokens", BODY_TOKENIZE, F_BOOL, AT(add_special), 0, 0, 0, NULL },
    { "parse_special", BODY_TOKENIZE, F_BOOL, AT(parse_special), 0, 0, 0, NULL },
    { "with_pieces", BODY_TOKENIZE, F_BOOL, AT(with_pieces), 0, 0, 0, NULL },
    FN("tokens", BODY_DETOKENIZE, read_tokens),

    FN("tools", GEN, params_read_tools),
    FN("tool_choice", GEN, params_read_tool_choice),
    FN("parallel_tool_calls", GEN, params_read_parallel),
    FN("chat_template_kwargs", BODY_CHAT, params_read_template_vars),
    FN("documents", BODY_CHAT, params_read_documents),
    FN("enable_thinking", BODY_CHAT, params_read_thinking),
    { "reasoning_effort", BODY_CHAT, F_TEXT, AT(reasoning_effort), 0, 0, 0, NULL },
    { "add_generation_prompt", BODY_CHAT, F_BOOL, AT(add_prompt), 0, 0, 0, NULL },
    { "continue_final_message", BODY_CHAT, F_BOOL, AT(continue_final), 0, 0, 0, NULL },
    FN("response_format", GEN, params_read_response_format),
    FN("modalities", GEN, read_modalities),
    FN("structured_outputs", GEN, params_read_structured),
    FN("grammar", GEN, params_read_grammar),
    FN("json_schema", GEN, params_read_grammar),
    FN("guided_json", GEN, params_read_grammar),
    FN("guided_regex", GEN, params_read_grammar),
    FN("guided_choice", GEN, params_read_grammar),
    FN("guided_grammar", GEN, params_read_grammar),
    FN("regex", GEN, params_read_grammar),
    FN("ebnf", GEN, params_read_grammar),
    REFUSED("functions"),
    REFUSED("function_call"),
    REFUSED("audio"),
    { "suffix", BODY_TEXT, F_TEXT, AT(suffix), 0, 0, 0, NULL },
    REFUSED("suffix"),
    REFUSED("web_search_options"),
    REFUSED("stop_token_ids"),
    REFUSED("bad_words"),
    REFUSED("allowed_token_ids"),
    REFUSED("prompt_logprobs"),
    REFUSED("use_beam_search"),
    REFUSED("mirostat"),
    REFUSED("dry_multiplier"),
    REFUSED("xtc_probability"),
    REFUSED("chat_template"),

    NOTHING("user"),
    NOTHING("durable"),
    NOTHING("metadata"),
    NOTHING("store"),
    NOTHING("service_tier"),
    NOTHING("prompt_cache_key"),
    NOTHING("safety_identifier"),
};
/* clang-format on */

enum { N_FIELDS = sizeof fields / sizeof *fields };
_Static_assert(N_FIELDS <= 128, "params.given has 128 bits");

/* ---- reading a body by the table ---- */

static bool is_given(const struct params *p, size_t i) { return p->given[i / 64] >> (i % 64) & 1; }

/* NaN is out of every range. */
static bool in_range(const struct field *f, double x)
{
    return x >= f->least && x <= f->most && !((f->open & ABOVE) && x <= f->least) &&
           !((f->open & BELOW) && x >= f->most);
}

static int read_float(const struct field *f, struct body_reader *r, const json_t *v, double *out)
{
    if (!json_is_number(v))
        return body_refuse(r, f->name, "must be a number, but it is %s", body_type(v));
    *out = json_number_value(v);
    if (in_range(f, *out)) return OK;
    return body_refuse(r, f->name, "must be %s %g %s %g, but it is %g",
                       f->open & ABOVE ? "above" : "from", f->least,
                       f->open & BELOW ? "to below" : "to", f->most, *out);
}

/* Reads one value by the type of its row. */
static int read_field(struct params *p, const struct field *f, struct body_reader *r,
                      const json_t *v)
{
    void *to = (char *)p + f->at;
    int64_t i;
    double x;
    int rc = OK;

    switch (f->kind) {
    case F_INT:
        rc = body_read_int(r, f->name, v, (int64_t)f->least, (int64_t)f->most, &i);
        if (rc == OK) *(int *)to = (int)i;
        break;
    case F_FLOAT:
        if ((rc = read_float(f, r, v, &x)) == OK) *(float *)to = (float)x;
        break;
    case F_SECONDS: rc = read_float(f, r, v, to); break;
    case F_BOOL: rc = body_read_bool(r, f->name, v, to); break;
    case F_TEXT:
        if (!json_is_string(v))
            return body_refuse(r, f->name, "must be a string, but it is %s", body_type(v));
        *(struct str *)to = body_str(v);
        break;
    case F_FN: rc = f->read(p, r, f->name, v); break;
    case F_REFUSED:
        if (!is_off(v))
            rc = body_refuse(r, f->name, "is not supported by this server: leave it out");
        break;
    default: break;
    }
    return rc;
}

/* Adds the name to the list for the header x-tern-ignored-fields, cut and cleaned. */
void params_note_ignored(struct params *p, const char *name)
{
    enum { NAMES = 16, NAME_BYTES = 40 };

    if (p->n_ignored++ >= NAMES) return;
    if (p->ignored.n) buf_puts(&p->ignored, ", ");
    for (int i = 0; name[i] && i < NAME_BYTES; i++) {
        unsigned char c = (unsigned char)name[i];
        buf_putc(&p->ignored, isalnum(c) || c == '_' || c == '-' || c == '.' ? (char)c : '?');
    }
    if (!name[0]) buf_putc(&p->ignored, '?');
}

/* *i: the index of the row, for `given`. */
static const struct field *find_field(const char *name, enum body_kind kind, size_t *i)
{
    for (*i = 0; *i < N_FIELDS; (*i)++)
        if ((fields[*i].in & kind) && !strcmp(fields[*i].name, name)) return &fields[*i];
    return NULL;
}

/* In the order of the body: of two errors, the first one is reported. */
static int read_fields(struct params *p, enum body_kind kind, struct body_reader *r)
{
    const char *name;
    json_t *v;
    size_t i;
    int rc;

    json_object_foreach (p->root, name, v) {
        const struct field *f = find_field(name, kind, &i);
        if (!f && strcmp(name, "tern_resume") == 0) continue; /* of gateways: call.c */
        if (!f) {
            params_note_ignored(p, name);
            continue;
        }
        if (json_is_null(v)) continue;
        if ((rc = read_field(p, f, r, v)) != OK) return rc;
        p->given[i / 64] |= UINT64_C(1) << (i % 64);
    }
    return OK;
}

/* Rules between fields, and values that follow from several. */
static int finish_generation(struct params *p, enum body_kind kind, struct body_reader *r)
{
    int rc;

    if (kind == BODY_CHAT && p->n_msgs == 0) return body_refuse(r, "messages", "is required");
    if (kind == BODY_TEXT && p->n_prompts == 0) return body_refuse(r, "prompt", "is required");
    if (kind == BODY_TEXT && p->tools && p->tool_choice != TOOL_NONE)
        return body_refuse(r, "tools",
                           "are supported in chats only: a text completion cannot use them");
    if ((rc = params_apply_tool_choice(p, r)) != OK) return rc;
    if (p->continue_final && json_is_true(json_object_get(p->root, "add_generation_prompt")))
        return body_refuse(r, "continue_final_message",
                           "and add_generation_prompt cannot both be true");
    if (p->best_of && p->best_of != p->n)
        return body_refuse(r, "best_of", "is %d, but it must be equal to n (%d)", p->best_of, p->n);
    if (p->top_given && p->top_logprobs > 0 && !p->logprobs)
        return body_refuse(r, "top_logprobs", "needs logprobs to be true");
    if (p->logprobs && p->echo)
        return body_refuse(r, "logprobs", "cannot be combined with echo: leave out one of the two");
    if (p->logprobs) p->n_top = p->top_logprobs;
    if (kind == BODY_CHAT && p->max_completion_tokens) p->max_tokens = p->max_completion_tokens;
    if (!p->max_tokens) p->max_tokens = p->max_completion_tokens;
    if (p->max_tokens && p->min_tokens > p->max_tokens)
        return body_refuse(r, "min_tokens", "is %d, but max_tokens is only %d", p->min_tokens,
                           p->max_tokens);
    return OK;
}

/* Defaults first, then the fields, then rules between them. */
static int read_tree(struct params *p, enum body_kind kind, struct str body, struct err *e)
{
    struct body_reader r = { .text = body, .arena = &p->arena, .err = e, .param = p->param };
    int rc;

    p->n = 1;
    p->n_top = -1;
    p->parse_special = true;
    p->add_prompt = true;
    p->raw_scores = true;
    if (kind == BODY_EXECUTE) kind = json_object_get(p->root, "messages") ? BODY_CHAT : BODY_TEXT;
    p->kind = kind;
    if ((rc = read_fields(p, kind, &r)) != OK) return rc;
    if ((rc = buf_check(&p->ignored, e)) != OK || (rc = arena_check(&p->arena, e)) != OK) return rc;
    if (kind & GEN) return finish_generation(p, kind, &r);
    if (kind & (BODY_EMBED | BODY_CLASSIFY) && p->n_prompts == 0)
        return body_refuse(&r, "input", "is required");
    if (kind == BODY_RERANK) return params_join_query(p, &r);
    if (kind == BODY_TOKENIZE && !p->text.p) return body_refuse(&r, "content", "is required");
    if (kind == BODY_DETOKENIZE && !p->tokens) return body_refuse(&r, "tokens", "is required");
    return OK;
}

int params_read(struct params *p, enum body_kind kind, struct str body, struct err *e)
{
    int rc = body_parse(&p->root, body, p->stop, e);

    return rc == OK ? read_tree(p, kind, body, e) : rc;
}

int params_read_tree(struct params *p, enum body_kind kind, json_t *root, struct err *e)
{
    p->root = root;
    return read_tree(p, kind, STR(""), e);
}

void params_release(struct params *p)
{
    json_decref(p->root);
    arena_release(&p->arena);
    buf_release(&p->ignored);
    *p = (struct params){ 0 };
}

void params_drop_body(struct params *p)
{
    if (p->tools || p->echo || p->return_documents) return;
    json_decref(p->root);
    p->root = NULL;
    p->model = p->tool_name = p->reasoning_effort = p->text = (struct str){ 0 };
    p->msgs = NULL;
    p->messages = p->template_vars = p->documents = NULL;
    p->prompts = NULL;
    p->n_stops = 0;
}

/* Rows of the table whose target lies inside `sample` are copied to the same offset in io. */
void params_sample(const struct params *p, struct sample_opt *io)
{
    bool repetition = false, window = false; /* repetition_penalty, repeat_last_n were given */

    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        size_t size = f->kind == F_INT ? sizeof(int) : sizeof(float);
        if (!is_given(p, i) || (f->kind != F_INT && f->kind != F_FLOAT)) continue;
        if (f->at < AT(sample) || f->at >= AT(sample) + sizeof p->sample) continue;
        memcpy((char *)io + (f->at - AT(sample)), (const char *)p + f->at, size);
        repetition |= !strcmp(f->name, "repetition_penalty");
        window |= f->at == AT(sample.repeat_last);
    }
    /* Servers with a repetition_penalty (vLLM, TGI) apply it to all of prompt and answer. */
    if (repetition && !window) io->repeat_last = -1;
    if (io->top_k < 0) io->top_k = 0;        /* some clients write -1 for "all tokens" */
    if (!(io->top_p > 0)) io->top_p = 1e-6f; /* 0 leaves the most likely token only */
    if (p->sample.n_bias) io->bias = p->sample.bias, io->n_bias = p->sample.n_bias;
}
