/* options.h - how an engine runs a model. A zero (kv_type: DT_NONE) means the default. */
#ifndef TERN_ENGINE_OPTIONS_H
#define TERN_ENGINE_OPTIONS_H

#include "base/dtype.h"
#include "comm/gang.h"
#include "model/loadprogress.h"
#include "model/sizes.h"

#include <stdbool.h>

struct engine_stats;
struct park;

struct engine_opt {
    /* the device */
    const char *device; /* "cpu" (default), "cuda", "cuda:1"; borrowed until the engine is open */
    int n_threads;      /* of the CPU; default: physical cores */
    bool reference;     /* plain C kernels, F32 throughout: the definition */
    const char
        *isa; /* of the CPU: kernels of this instruction set; default: TERN_ISA or the best */
    const char
        *numa; /* of the CPU: "auto" (default), "off", "spread", or the number of a memory node */
    bool profile;   /* a GPU: print the time of each operation when the engine closes */
    int gpu_layers; /* a GPU: only the last so many layers lie there; default: as many as fit */
    bool vram_only; /* a GPU: all layers, or the model does not open */
    /* a GPU: routed experts on the CPU: see model/expertplace.h; place is borrowed as device is */
    bool cpu_moe;
    int n_cpu_moe;
    const char *place;
    bool place_loose;        /* models that these do not fit are no error */
    struct gang_source gang; /* other processes that have parts of the model; tp 0: none */
    /* the model's memory: see load_opt in model/loadplan.h, and model/sizes.h for the defaults */
    struct sizes_room room; /* memory for the defaults */
    int n_ctx;              /* tokens of a sequence */
    int kv_tokens;          /* of the whole KV cache; at least one context */
    int max_batch;          /* tokens of a step; default: 512, on a GPU 2048 */
    int max_seqs;           /* sequences running at once */
    enum dtype kv_type;     /* of keys and values; default: F16; F32 of an encoder
                             * that classifies, and with the reference kernels */
    bool no_prefix;         /* prefixes are not shared */
    bool allow_nan; /* weights may be NaN or infinite; otherwise such a model is E_DAMAGED */
    const char *verify_manifest; /* "warn", "require": the files are compared with the model's
                                  * manifest; "off" (default). Borrowed until the engine is open */
    bool ranks_by_answer; /* a model that generates text ranks documents by its answer, yes or no,
                           * also if its files do not say so: yesno.h */
    /* the queue */
    int max_requests;     /* waiting and running; default: 16 times max_seqs */
    int max_queue_tokens; /* prompt tokens waiting; default: 64 contexts of up to 4096 tokens */
    double kv_overcommit; /* see admit_limits; default: 8 */
    int step_ms;          /* estimated time of a step with prefill at most; default: 100 */
    double stretch;       /* see sched_opt; default: 2.5 */
    int age_ms;           /* see sched_opt; default: 1000 */
    bool manual;          /* no thread: the caller calls engine_step (tests, simulation) */
    /* the owner */
    struct loadprogress progress; /* of loading the weights */
    struct park *park; /* KV blocks that were parked for the model are restored; NULL: none */
    struct engine_stats *stats; /* where to count, initialized; NULL: the engine's own */
    /* Called once, on the engine's thread, when the engine has failed (engine_error); NULL: not. */
    void (*failed)(void *arg);
    void *failed_arg;
    bool tells_callers; /* a failed step is not logged: each of its requests says why */
};
#endif
