/* params.h - the fields of all request bodies: one table of name, kind, range and where it goes.
 *
 * A wrong type or range is E_INVALID, and `param` names the field. null means absent. Fields that
 * nobody knows are listed and ignored; known ones that tern cannot follow and that would change the
 * answer are refused by name. Text is borrowed from the parsed body, which lives here. */
#ifndef TERN_API_PARAMS_H
#define TERN_API_PARAMS_H

#include "api/body.h"
#include "base/buf.h"
#include "engine/chatform.h"
#include "grammar/grammar.h"
#include "sample/sampler.h"

enum body_kind {
    BODY_CHAT = 1,
    BODY_TEXT = 2,
    BODY_TOKENIZE = 4,
    BODY_DETOKENIZE = 8,
    BODY_EMBED = 16,
    BODY_CLASSIFY = 32
};

#define STOPS_MAX 16
#define STOP_BYTES_MAX 256
#define BIAS_MAX 4096
#define PROMPTS_MAX 256
#define INPUTS_MAX 2048 /* texts to embed */

enum tool_choice { TOOL_AUTO, TOOL_NONE, TOOL_REQUIRED, TOOL_NAMED };

struct prompt {
    struct str text;   /* p NULL: it came as ids */
    struct str second; /* to classify with it: p NULL: there is one text */
    int32_t *ids;
    size_t n_ids;
};

struct params {
    json_t *root;
    struct arena arena;
    uint64_t given[2];     /* a bit for each row of the table */
    char param[PARAM_MAX]; /* the field at fault, "" if it is none */
    const char *field;     /* what the prompt is called; NULL: "prompt" or "messages" */
    struct buf ignored;    /* names of unknown fields, fit for a header */
    int n_ignored;

    struct str model;
    struct chat_msg *msgs; /* [n_msgs] */
    int n_msgs;
    const json_t *messages; /* the same as they came: calls, results and all */
    const json_t *tools;    /* not empty; NULL: none given, or none to be used */
    enum tool_choice tool_choice;
    struct str tool_name;        /* with TOOL_NAMED */
    bool one_call;               /* parallel_tool_calls: false */
    const json_t *template_vars; /* chat_template_kwargs; NULL: none */
    const json_t *documents;
    struct str reasoning_effort; /* p NULL: not given */
    bool has_thinking, thinking; /* enable_thinking */
    bool add_prompt,
        go_on; /* add_generation_prompt (true unless said otherwise), continue_final_message */
    struct prompt *prompts; /* [n_prompts] */
    int n_prompts;
    int max_tokens; /* 0: not given */
    int max_completion_tokens, min_tokens;
    int n, best_of; /* n at least 1 */
    bool stream, include_usage, echo, ignore_eos;
    int n_top; /* -1: no logprobs */
    struct str stops[STOPS_MAX];
    int n_stops;
    struct sample_opt sample;    /* only what was given: see params_sample */
    struct grammar_spec grammar; /* what the answer must look like */
    const char *grammar_field;   /* which field says so; NULL: none */
    bool has_seed;
    int64_t seed;
    int priority;
    bool has_priority;
    double timeout_s;    /* 0: not given */
    int64_t deadline_ms; /* from now */
    bool has_deadline;

    int dimensions;      /* of embeddings; 0: all */
    struct str encoding; /* "float", "base64"; empty: not given */

    struct str text; /* to tokenize */
    bool add_special, parse_special, with_pieces;
    int32_t *tokens; /* to detokenize */
    size_t n_tokens;

    bool logprobs, top_given; /* while reading */
    int top_logprobs;
};

/* p is zeroed before. Also after a failure it must be released. */
int params_read(struct params *p, enum body_kind kind, struct str body, struct err *e);
void params_release(struct params *p); /* a zeroed one is fine */
/* Puts what was given over what io holds. */
void params_sample(const struct params *p, struct sample_opt *io);

/* "12" or "interactive" or "batch"; false: neither. */
bool params_priority(struct str s, int *out);

/* The fields with an inside, for the table. */
int read_messages(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_pairs(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_prompt(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_tools(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_tool_choice(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_template_vars(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_documents(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_thinking(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_parallel(struct params *p, struct reader *r, const char *param, const json_t *v);
/* tool_calls of a message: names and arguments. */
int read_past_calls(struct reader *r, size_t i, const json_t *calls);
/* What tools, tool_choice and messages say of each other. */
int check_tools(struct params *p, struct reader *r);
int read_stop(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_response_format(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_structured(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_grammar(struct params *p, struct reader *r, const char *param, const json_t *v);
int read_logit_bias(struct params *p, struct reader *r, const char *param, const json_t *v);
#endif
