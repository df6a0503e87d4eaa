/* info.h - what an engine says about its model: strings and numbers.
 *
 * Strings and arrays belong to the engine and live as long as it does. */
#ifndef TERN_ENGINE_INFO_H
#define TERN_ENGINE_INFO_H

#include "base/str.h"
#include "engine/options.h"
#include "engine/yesno.h"

#include <stdint.h>

enum { ENGINE_DEVICES = 8 };

/* A device at work for the model. Of the numbers, the CPU counts n_layers and pack_ns only. */
struct engine_device {
    const char *name, *detail; /* "cuda:0", "NVIDIA H200" */
    int n_layers;
    int n_experts;         /* layers whose routed experts are here, though the layers are not */
    uint64_t plan_weights; /* bytes of weights by the load plan, mapped ones included */
    bool counts;           /* the numbers below are counted */
    uint64_t weight_bytes, kv_bytes, scratch_bytes; /* taken on the device for this model */
    uint64_t graph_bytes, library_bytes;   /* taken by recorded graphs, and by vendor libraries */
    uint64_t free_bytes, total_bytes;      /* of the whole device, when last asked */
    uint64_t init_ns;                      /* time to open the device */
    uint64_t read_ns, pack_ns, upload_ns;  /* loading weights: from the file, into the device's
                                            * order, to the device */
    uint64_t busy_ns;                      /* time it has worked */
    uint64_t n_steps, n_graphs, n_replays; /* steps, of those recorded as graphs, replayed */
};

struct engine_info {
    const char *name;    /* what the model calls itself, else the last part of its path */
    const char *arch;    /* "llama", "onnx" */
    const char *task;    /* "generate", "embed", "classify" */
    const char *dtype;   /* the type of most of the weights' bytes */
    const char *devices; /* "cpu (avx2, 8 threads)": all of them, described */
    const char *kv_type;
    const char *sizes; /* how context and KV cache were chosen */
    const char
        *chat_template; /* of a model in another process; NULL: none, or the prompter has it */
    const struct str *labels; /* [n_labels] of a model that classifies; NULL: it does not */
    int n_labels;
    struct yesno yesno; /* how it ranks documents by an answer */
    int n_vocab, n_vec; /* numbers of an embedding */
    uint64_t n_params;
    int n_blocks, block_tokens;                     /* KV blocks, and tokens of each */
    int n_restored;                                 /* of them, that were parked before */
    uint64_t weight_bytes, kv_bytes, scratch_bytes; /* of the load plan, over all devices */
    struct engine_device device[ENGINE_DEVICES];
    int n_devices;                   /* the last one makes the logits */
    const struct gang_seat *members; /* [n_members] of a model over several processes */
    int n_members;                   /* 0: it is in one */
    int tp, pp;                      /* how it is divided among them */
    const char *transport;           /* between them; "": there are none */
    double open_ms, pack_ms;         /* opening the model; of that, bringing weights into order */
    struct engine_opt opt;           /* effective: no field means a default */
};

/* The device that makes the logits; all zeros in a zeroed info. */
static inline const struct engine_device *engine_info_last(const struct engine_info *i)
{
    return &i->device[i->n_devices ? i->n_devices - 1 : 0];
}
#endif
