/* tern.h - the C ABI of tern: open a model, submit a request, read its text as it is generated.
 *
 * Every function that can fail returns TERN_OK or a negative code; tern_error gives the message of
 * the last failure on the calling thread. Functions with a timeout (milliseconds; 0: do not wait;
 * negative: wait for ever) return TERN_AGAIN when it has passed. No function ends the process, also
 * without memory. A runtime and a model may be used from any number of threads, a request from one at
 * a time; tern_cancel may be called from any thread and from a signal handler. Requests go through the
 * model's queue and run batched on the model's own thread: they make progress between calls of
 * tern_next. Text is UTF-8. docs/abi.md describes all of it; examples/ has complete programs. */
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
    TERN_AGAIN = 1, /* no error: nothing yet, call again */
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

typedef struct tern_runtime tern_runtime;
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
        *numa;     /* memory nodes of the CPU: "auto", "off", "spread", or a number; NULL: "auto" */
    int kv_tokens; /* of the whole KV cache; 0: as memory allows */
    int queue;     /* requests that wait and run; 0: 16 for each of `sequences` */
    int pinned;    /* tern_load: never unloaded for another model, or for want of use */
    int background; /* tern_load: returns at once; tern_wait waits for the model */
    const char
        *verify_manifest; /* "warn", "require": the files are compared with the model's manifest
                                  * of checksums first; NULL, "off": not */
    /* The key of an encrypted model: a file, or a shell command that prints it; NULL: none */
    const char *model_key_file, *model_key_command;
    /* tern_open: called on the calling thread while weights are loaded, with rising numbers up to 100;
     * NULL: not. A load of a runtime is seen with tern_info. */
    void (*on_progress)(void *arg, int percent);
    void *progress_arg;
    /* A GPU: routed experts on the CPU, of layers on the GPU: of all layers, of the first so many, or by
     * the names of tensors: "PATTERN=DEVICE,..." (docs/gpu.md) */
    int cpu_moe, n_cpu_moe;
    const char *place;
} tern_options;

typedef struct {
    size_t size;           /* sizeof(tern_runtime_options): set by tern_runtime_options_init */
    uint64_t memory_limit; /* host bytes of all models; 0: what the machine has at a load */
    int models_max;        /* loaded at a time; 0: as many as fit */
    int keep_alive_ms;     /* a model without use for so long is unloaded; 0: it stays */
} tern_runtime_options;

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
    int deadline_ms;         /* from the submission: then it ends with TERN_E_DEADLINE; 0: none */
    int priority;            /* -1000 to 1000, higher first; tern_params_init: 10. Batch work: 0 */
    int logprobs;            /* events have the log probability of their token */
    int top_logprobs;        /* and of so many most likely tokens, up to 20 */
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
    int32_t id; /* -1: fewer tokens than wanted are possible */
    float logprob;
} tern_top;

typedef struct {
    const char
        *text;  /* whole characters, NUL-terminated, may be empty; valid until the next call */
    size_t n;   /* bytes of text */
    int32_t id; /* the token, or -1 in an event with text only, or the last one */
    tern_finish finish; /* not NONE: the request is over */
    /* params.logprobs: of the token before any sampling option applies, and the most likely tokens,
     * best first; valid until the next call */
    float logprob;
    int n_top;
    const tern_top *top;
} tern_event;

/* rc: TERN_OK and the event, or the error that ended the request (then ev is an empty event). */
typedef void tern_callback(void *arg, tern_request *r, int rc, const tern_event *ev);

typedef struct {
    int prompt_tokens, cached_tokens, tokens;
    double prompt_ms, decode_ms;
    double first_token_ms; /* from tern_submit to the first token */
} tern_stats;

typedef enum {
    TERN_UNLOADED, /* in a runtime: the next request loads it */
    TERN_LOADING,
    TERN_READY,
    TERN_DRAINING, /* unloaded when its last request has ended */
    TERN_FAILED
} tern_state;

typedef struct {
    const char *name, *arch, *device, *dtype; /* live as long as the model */
    uint64_t n_params;
    /* Bytes of the load plan, over all devices; 0 while the model is not loaded. */
    uint64_t weight_bytes, kv_bytes, scratch_bytes;
    int context, vocab;
    int has_chat;            /* the model has a chat template, or a known chat form */
    double load_ms, pack_ms; /* opening; of that, converting weights */
    const char *id, *path;   /* its name in the runtime, or after its file; where it was found */
    tern_state state;
    int progress;  /* of TERN_LOADING: 0 to 100 */
    int embedding; /* numbers of an embedding */
    int sequences; /* running at once */
    /* Memory that the model has now, all 0 while it is not loaded: weights that lie in the mapped file
     * (pages that the system can take back), memory of a GPU, and what is resident in the host's:
     * copied weights, scratch memory, KV blocks in use and the pages of the file. */
    uint64_t mapped_bytes, device_bytes, resident_bytes;
    uint64_t n_loads, n_evictions; /* so far; evicted: for another model, or for want of use */
} tern_model_info;

typedef struct {
    uint64_t n_submitted, n_finished, n_cancelled, n_failed; /* requests so far */
    uint64_t n_rejected;                                     /* refused by the queue */
    uint64_t prompt_tokens, cached_tokens, tokens;
    int waiting, running; /* requests now */
    int queue_peak;       /* requests that waited at most */
    int kv_blocks, kv_blocks_used, block_tokens;
} tern_counts;

typedef struct {
    int n_models, n_loaded;
    uint64_t bytes;        /* of all loaded models, as counted against the limit */
    uint64_t memory_limit; /* 0: the machine's memory */
} tern_usage;

TERN_API const char *tern_version(void);
TERN_API const char *tern_error(void); /* never NULL; "" before any failure */
TERN_API const char *tern_code_name(int code);
TERN_API int tern_abi(void); /* TERN_ABI of the library */

TERN_API void tern_options_init_sized(tern_options *o, size_t size);
/* path: a GGUF file, a Hugging Face folder or an ONNX model, or its name in Hugging Face's cache:
 * hf:ORG/NAME[@REV][:FILE]. Nothing is downloaded. */
TERN_API int tern_open(tern_model **out, const char *path, const tern_options *o);
TERN_API void tern_close(tern_model *m); /* NULL is allowed; open requests keep the model alive */
TERN_API int tern_info_sized(const tern_model *m, tern_model_info *out, size_t size);
TERN_API int tern_model_counts_sized(const tern_model *m, tern_counts *out, size_t size);

/* A runtime is a pool of models by name with one memory limit. A model that nobody uses is evicted
 * when another one needs its memory, and loaded again by the next request for it: tern_submit and
 * tern_tokenize wait for that. */
TERN_API void tern_runtime_options_init_sized(tern_runtime_options *o, size_t size);
TERN_API int tern_runtime_open(tern_runtime **out, const tern_runtime_options *o);
/* NULL is allowed. Models and requests that are still open keep the runtime alive. */
TERN_API void tern_runtime_close(tern_runtime *rt);
TERN_API int tern_runtime_usage_sized(tern_runtime *rt, tern_usage *out, size_t size);
/* Loads a model, or finds it if it is there with the same path and options. name NULL: after the
 * file. tern_close gives the handle back; the model stays in the runtime. */
TERN_API int tern_load(tern_model **out, tern_runtime *rt, const char *name, const char *path,
                       const tern_options *o);
TERN_API int tern_find(tern_model **out, tern_runtime *rt, const char *name);
/* *names: *n names and a NULL, freed with one tern_free. */
TERN_API int tern_list(tern_runtime *rt, char ***names, size_t *n);
/* The name is gone at once: other handles give TERN_E_NOTFOUND. Open requests go on; the memory is
 * given back when the last has ended, which the timeout is for. */
TERN_API int tern_unload(tern_runtime *rt, const char *name, int timeout_ms);
/* TERN_OK: the model is loaded now; or why it could not be loaded. */
TERN_API int tern_wait(tern_model *m, int timeout_ms);

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

/* The embedding of a text: tern_next gives one event, which is the last, and tern_vector the numbers;
 * *v lives as long as the request. Of params only deadline_ms and priority count. */
TERN_API int tern_submit_embedding(tern_request **out, tern_model *m, const char *text, size_t n,
                                   const tern_params *p);
TERN_API int tern_vector(const tern_request *r, const float **v, size_t *n);

/* Waits for the next event and fills ev. The last event has a finish, the id -1 and the text that
 * was held back for stop strings; further calls repeat it without text. */
TERN_API int tern_next_sized(tern_request *r, tern_event *ev, size_t size);
TERN_API int tern_next_wait_sized(tern_request *r, tern_event *ev, size_t size, int timeout_ms);
/* A descriptor for poll, select, epoll: readable when tern_next_wait(r, ev, 0) may have an event, and
 * from the last event on. It belongs to the request; the caller neither reads nor closes it. -1: none
 * could be opened, see tern_error. */
TERN_API int tern_fd(tern_request *r);
/* From now on fn is called for each event, on a thread that the library has for all callbacks of the
 * model, one call at a time. A slow fn stops its own request, as a slow reader does. fn may call every
 * function, also tern_request_close(r). tern_next is TERN_E_INVALID then. */
TERN_API int tern_on_event(tern_request *r, tern_callback *fn, void *arg);
TERN_API void tern_cancel(tern_request *r); /* the next event is TERN_FINISH_CANCELLED */
/* The numbers are complete after the last event. */
TERN_API int tern_request_stats_sized(const tern_request *r, tern_stats *out, size_t size);
/* Cancels if needed; waits for a callback that is running on another thread. NULL is allowed. */
TERN_API void tern_request_close(tern_request *r);

/* The structs above may grow at their end in later versions. These functions tell the library how
 * large the caller's are: a smaller one is read or filled as far as it goes, and the fields it does
 * not have take their defaults. (tern_message and tern_top do not grow: they are passed in arrays.) */
static inline void tern_options_init(tern_options *o) { tern_options_init_sized(o, sizeof *o); }
static inline void tern_runtime_options_init(tern_runtime_options *o)
{
    tern_runtime_options_init_sized(o, sizeof *o);
}
static inline int tern_runtime_usage(tern_runtime *rt, tern_usage *out)
{
    return tern_runtime_usage_sized(rt, out, sizeof *out);
}
static inline int tern_model_counts(const tern_model *m, tern_counts *out)
{
    return tern_model_counts_sized(m, out, sizeof *out);
}
static inline int tern_next_wait(tern_request *r, tern_event *ev, int timeout_ms)
{
    return tern_next_wait_sized(r, ev, sizeof *ev, timeout_ms);
}
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
