/* params.h - the fields of all request bodies, read by one table of name, type, range and offset.
 *
 * A value of the wrong type or out of range is E_INVALID, and `param` names the field. null means
 * absent. Unknown fields are listed in `ignored` and have no effect. Fields that tern knows, cannot
 * honour, and that would change the answer are refused by name. Texts are borrowed from the parsed
 * body, which the struct owns. */
#ifndef TERN_API_PARAMS_H
#define TERN_API_PARAMS_H

#include "api/body.h"
#include "base/buf.h"
#include "grammar/grammar.h"
#include "sample/sampleopt.h"

enum body_kind { /* bits, so that a row of the table can name several */
                 BODY_CHAT = 1,
                 BODY_TEXT = 2,
                 BODY_TOKENIZE = 4,
                 BODY_DETOKENIZE = 8,
                 BODY_EMBED = 16,
                 BODY_CLASSIFY = 32,
                 BODY_RERANK = 64,
                 BODY_EXECUTE = BODY_CHAT | BODY_TEXT /* a chat if it has messages, else text */
};

#define STOPS_MAX 16
#define STOP_BYTES_MAX 256
#define BIAS_MAX 4096
#define PROMPTS_MAX 256
#define TOOLS_MAX 1024
#define INPUTS_MAX 2048 /* texts to embed or classify */

enum tool_choice { TOOL_AUTO, TOOL_NONE, TOOL_REQUIRED, TOOL_NAMED };

struct prompt {
    struct str text;   /* p NULL: given as token ids */
    struct str second; /* the second text of a pair to classify; p NULL: a single text */
    int32_t *ids;      /* [n_ids] */
    size_t n_ids;
    size_t second_at; /* of ids: tokens of the query that come before them; 0: a single text */
};

struct chat_msg;

struct infill_file {
    struct str name, text; /* name: p NULL: none */
};

struct params {
    const atomic_int *stop; /* set by the caller, or NULL: other than 0 ends the reading */
    enum body_kind kind;    /* BODY_CHAT or BODY_TEXT for BODY_EXECUTE */
    json_t *root;           /* the parsed body; NULL after params_drop_body */
    struct arena arena;     /* lists below, joined texts */
    uint64_t given[2];      /* bit i: row i of the table was given */
    char param[PARAM_MAX];  /* path of the field that was refused; "": none */
    const char *field;      /* name of the prompt's field; NULL: "prompt" or "messages" */
    struct buf ignored;     /* names of unknown fields, safe for a header */
    int n_ignored;

    struct str model;
    struct chat_msg *msgs; /* [n_msgs] role and text of each message */
    int n_msgs;
    const json_t *messages; /* the messages as given, with tool calls and results */
    const json_t *tools;    /* not empty; NULL: none, or tool_choice is none */
    enum tool_choice tool_choice;
    struct str tool_name;        /* with TOOL_NAMED */
    bool one_call;               /* parallel_tool_calls is false */
    const json_t *template_vars; /* chat_template_kwargs; NULL: none */
    const json_t *documents;     /* NULL: none */
    struct str reasoning_effort; /* p NULL: not given */
    bool has_thinking, thinking; /* enable_thinking */
    bool add_prompt;             /* add_generation_prompt; default true */
    bool continue_final;         /* continue_final_message */
    struct str suffix;           /* of a text to fill in; p NULL: none */
    struct infill_file *files;   /* [n_files] that come before it */
    int n_files;
    struct prompt *prompts; /* [n_prompts] */
    int n_prompts;
    int max_tokens; /* 0: not given */
    int max_completion_tokens, min_tokens;
    int n, best_of; /* n is at least 1 */
    bool stream, include_usage, echo, ignore_eos;
    int n_top; /* alternatives of each token; -1: no logprobs */
    struct str stops[STOPS_MAX];
    int n_stops;
    struct sample_opt sample;    /* only the fields that were given: see params_sample */
    struct grammar_spec grammar; /* constraint on the text of the answer */
    const char *grammar_field;   /* the field that gave it; NULL: none */
    bool has_seed;
    uint64_t seed; /* a negative one modulo 2^64 */
    int priority;
    bool has_priority;
    double timeout_s;    /* 0: not given */
    int64_t deadline_ms; /* relative to the arrival of the request */
    bool has_deadline;
    int64_t
        predict_ms; /* of request.predict_ns, by a reader of llama-server's bodies; 0: no limit */
    int64_t
        keep_ms; /* keep_alive or ttl: the model stays so long after this request; -1: for ever */
    bool has_keep;

    int dimensions; /* of embeddings; 0: all */
    bool base64;    /* encoding_format */

    struct prompt query;    /* of documents to rank, which are prompts: pairs with the query */
    int top_n;              /* best documents that are wanted; 0: all */
    bool return_documents;  /* with their texts */
    struct str instruction; /* of a generative reranker; p NULL: the usual one */
    bool raw_scores;        /* relevance_score is the model's number; false: its sigmoid */

    struct str text; /* to tokenize */
    bool add_special, parse_special, with_pieces;
    int32_t *tokens; /* [n_tokens] to detokenize */
    size_t n_tokens;

    bool logprobs, top_given; /* used while reading */
    int top_logprobs;
};

/* p is zeroed, except `stop`. It must be released even after a failure. E_INVALID, E_NOMEM, or
 * E_CANCELLED by `stop`. */
int params_read(struct params *p, enum body_kind kind, struct str body, struct err *e);
/* Reads a parsed body, which it takes over, also on failure. */
int params_read_tree(struct params *p, enum body_kind kind, json_t *root, struct err *e);
void params_release(struct params *p); /* a zeroed one is allowed */
/* Frees the parsed body, which can have a million values, unless something is still read from it:
 * tools by the parser of the answer, the prompt by echo. Texts of the params are empty then. */
void params_drop_body(struct params *p);
/* A field that has no effect, by a reader of another protocol: "options.num_ctx". */
void params_note_ignored(struct params *p, const char *name);
/* Overwrites the fields of io that the body gave. */
void params_sample(const struct params *p, struct sample_opt *io);

/* The value of keep_alive or ttl: seconds, or with is_text a time such as "5m". false: neither. */
bool params_parse_keep(struct str s, bool is_text, int64_t *ms);
/* "12", "interactive" or "batch"; false: none of these. */
bool params_parse_priority(struct str s, int *out);
#endif
