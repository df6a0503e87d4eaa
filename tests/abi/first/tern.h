/* tern.h - the C ABI of tern: open a model, submit a request, read its text as it is generated.
 *
 * Every function that can fail returns TERN_OK or a negative code; tern_error gives the message of
 * the last failure on the calling thread. No function ends the process, also without memory. A
 * model may be used from any number of threads, a request from one at a time; tern_cancel may be
 * called from any thread and from a signal handler. Requests go through the model's queue and run
 * batched on the model's own thread: they make progress between calls of tern_next. Text is UTF-8.
 * docs/abi.md has a complete program. */
#ifndef TERN_H
#define TERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_ABI 1

/* Everything else in the library is hidden. */
#if defined(__GNUC__) && !defined(TERN_API)
#define TERN_API __attribute__((visibility("default")))
#elif !defined(TERN_API)
#define TERN_API
#endif

enum {
    TERN_OK = 0,
    TERN_E_INVALID = -1,
    TERN_E_IO = -2,
    TERN_E_FORMAT = -3,
    TERN_E_NOMEM = -4,
    TERN_E_UNSUPPORTED = -5,
    TERN_E_NOTFOUND = -6,
    TERN_E_CONTEXT = -7,
    TERN_E_CANCELLED = -8,
    TERN_E_DEVICE = -9,
    TERN_E_QUEUE_FULL = -10,
    TERN_E_MEMORY = -11,
    TERN_E_CONCURRENCY = -12,
    TERN_E_RATE = -13,
    TERN_E_SHUTDOWN = -14,
    TERN_E_LOADING = -15,
    TERN_E_DEADLINE = -16,
    TERN_E_DENIED = -17,
    TERN_E_DAMAGED = -18,
    TERN_E_DEVICE_MEMORY = -19,
    TERN_E_INTERNAL = -99
};

typedef struct tern_model tern_model;
typedef struct tern_request tern_request;

typedef struct {
    size_t size;        /* sizeof(tern_options): set by tern_options_init */
    const char *device; /* NULL: the CPU */
    int threads;        /* 0: one for each physical core */
    int context;        /* tokens of a sequence; 0: as trained, as far as memory allows */
    int batch;          /* tokens of one step at most; 0: 512, on a GPU 2048 */
    int reference;      /* plain C kernels, F32 */
    int sequences;      /* running at once; 0: 16, on a GPU up to 256 */
    int gpu_layers;     /* a GPU: only the last so many layers lie there; 0: as many as fit */
    int vram_only;      /* a GPU: all layers, or the model does not open */
    const char *chat_template; /* file with a Jinja chat template; NULL: the model's own template */
    int allow_nan; /* weights may be NaN or infinite; otherwise such a model does not open */
    const char *
        isa; /* CPU kernels: "ref", "avx2", "avxvnni", "avx512", "amx", "neon"; NULL: the variable TERN_ISA,
                      * or the best that this CPU has. One it lacks is TERN_E_UNSUPPORTED */
    const char
        *numa; /* memory nodes of the CPU: "auto", "off", "spread", or a number; NULL: "auto" */
} tern_options;

typedef struct {
    size_t size;    /* sizeof(tern_params): set by tern_params_init */
    int max_tokens; /* 0: until an end token, or until the context is full */
    /* temp 0: greedy. Off: 1 for top_p, typical and repeat_penalty, 0 for the others */
    float temp, top_p, min_p, typical, repeat_penalty, freq_penalty, presence_penalty;
    int top_k;               /* 0: all tokens */
    int repeat_last;         /* tokens that repeat_penalty covers; -1: all */
    uint64_t seed;           /* equal seeds give equal text; tern_params_init chooses one */
    int raw;                 /* tern_submit: no chat template; BOS as the tokenizer adds it */
    int ignore_eos;          /* continue after the model's end tokens */
    const char *const *stop; /* NULL-terminated list, or NULL */
    /* A grammar that the text must match: one of the two, or neither. */
    const char *grammar;     /* GBNF */
    const char *json_schema; /* "{}": any JSON */
} tern_params;

typedef struct {
    const char *role, *content;
} tern_message;

typedef enum {
    TERN_FINISH_NONE,
    TERN_FINISH_STOP,
    TERN_FINISH_LENGTH,
    TERN_FINISH_CANCELLED
} tern_finish;

typedef struct {
    const char
        *text;  /* whole characters, NUL-terminated, may be empty; valid until the next call */
    size_t n;   /* bytes of text */
    int32_t id; /* the token, or -1 in an event with text only, or the last one */
    tern_finish finish; /* not NONE: the request is over */
} tern_event;

typedef struct {
    int prompt_tokens, cached_tokens, tokens;
    double prompt_ms, decode_ms;
    double first_token_ms; /* from tern_submit to the first token */
} tern_stats;

typedef struct {
    const char *name, *arch, *device, *dtype; /* live as long as the model */
    uint64_t n_params;
    uint64_t weight_bytes, kv_bytes, scratch_bytes; /* of the load plan, over all devices */
    int context, vocab;
    int has_chat;            /* the model has a chat template, or a known chat form */
    double load_ms, pack_ms; /* opening; of that, converting weights */
} tern_model_info;

TERN_API const char *tern_version(void);
TERN_API const char *tern_error(void); /* never NULL; "" before any failure */
TERN_API const char *tern_code_name(int code);

TERN_API void tern_options_init_sized(tern_options *o, size_t size);
TERN_API int tern_open(tern_model **out, const char *path, const tern_options *o);
TERN_API void tern_close(tern_model *m); /* NULL is allowed; open requests keep the model alive */
TERN_API int tern_info_sized(const tern_model *m, tern_model_info *out, size_t size);

/* Fills in defaults, or the settings that the model's files recommend; m may be NULL. */
TERN_API void tern_params_init_sized(tern_params *p, size_t size, const tern_model *m);

/* *out is freed with tern_free. special: BOS and EOS are added as the tokenizer does, and names of
 * special tokens in the text are matched; 0: everything is plain text. TERN_E_UNSUPPORTED: the
 * model has no tokenizer. */
TERN_API int tern_tokenize(tern_model *m, const char *text, size_t n, int special, int32_t **out,
                           size_t *n_out);
TERN_API int tern_detokenize(tern_model *m, const int32_t *ids, size_t n, char **out,
                             size_t *n_out);
TERN_API void tern_free(void *p);

/* Submits a prompt (as a user message, unless params.raw), a conversation, or token ids. Full
 * blocks of 16 tokens at the beginning that are still in the KV cache are not computed again. */
TERN_API int tern_submit(tern_request **out, tern_model *m, const char *prompt, size_t n,
                         const tern_params *p);
TERN_API int tern_submit_chat(tern_request **out, tern_model *m, const tern_message *msgs, size_t n,
                              const tern_params *p);
TERN_API int tern_submit_ids(tern_request **out, tern_model *m, const int32_t *ids, size_t n,
                             const tern_params *p);

/* Waits for the next event and fills ev. The last event has a finish, the id -1 and the text that
 * was held back for stop strings; further calls repeat it without text. */
TERN_API int tern_next_sized(tern_request *r, tern_event *ev, size_t size);
TERN_API void tern_cancel(tern_request *r); /* the next event is TERN_FINISH_CANCELLED */
/* The numbers are complete after the last event. */
TERN_API int tern_request_stats_sized(const tern_request *r, tern_stats *out, size_t size);
TERN_API void tern_request_close(tern_request *r); /* cancels if needed; NULL is allowed */

/* The structs above may grow at their end in later versions. These functions tell the library how
 * large the caller's are: a smaller one is read or filled as far as it goes, and the fields it does
 * not have take their defaults. (tern_message does not grow: it is passed in arrays.) */
static inline void tern_options_init(tern_options *o) { tern_options_init_sized(o, sizeof *o); }
static inline void tern_params_init(tern_params *p, const tern_model *m)
{
    tern_params_init_sized(p, sizeof *p, m);
}
static inline int tern_info(const tern_model *m, tern_model_info *out)
{
    return tern_info_sized(m, out, sizeof *out);
}
static inline int tern_next(tern_request *r, tern_event *ev)
{
    return tern_next_sized(r, ev, sizeof *ev);
}
static inline int tern_request_stats(const tern_request *r, tern_stats *out)
{
    return tern_request_stats_sized(r, out, sizeof *out);
}

#ifdef __cplusplus
}
#endif
#endif
