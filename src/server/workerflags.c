/* workerflags.c - see workerflags.h. */
#include "server/workerflags.h"

#include "api/api.h"
#include "engine/options.h"
#include "pool/pool.h"
#include "pool/registry.h"

#include <string.h>

/* Groups of the table that are the server's own, and what a worker needs of them. */
static const char *const own_groups[] = { "models", "listening", "keys and tenants", "cluster" };
static const char *const but[] = { "chat-template", "sandbox",         "max-body",
                                   "max-unread",    "verify-manifest", "rerank" };
/* Settings of the other groups that are not passed to a worker. */
static const char *const own[] = { "memory-limit",   "device-memory-limit",
                                   "ready",          "drain-timeout",
                                   "watchdog",       "access-log",
                                   "metrics-compat", "print-config" };

static bool is_in(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}
#define IS_IN(name, list) is_in(name, list, sizeof(list) / sizeof *(list))

static bool is_for_worker(const struct knob *k, const char *group)
{
    if (k->secret || k->kind == KNOB_LIST) return false;
    if (IS_IN(group, own_groups)) return IS_IN(k->name, but);
    return !IS_IN(k->name, own);
}

/* The word for 0 or -1, if the setting has one. */
static bool find_word(const struct knob *k, int64_t v, struct str *out)
{
    struct str words = str_c(k->words ? k->words : "");
    ptrdiff_t bar = str_find(words, STR("|"));

    if (v == 0 && words.n) *out = bar < 0 ? words : str_take(words, (size_t)bar);
    else if (v == -1 && bar >= 0) *out = str_skip(words, (size_t)bar + 1);
    else return false;
    return true;
}

static const char *format_flag(const struct settings *s, const struct knob *k, struct arena *a)
{
    const void *p = (const char *)s + k->at;
    struct str word;

    switch (k->kind) {
    case KNOB_BOOL: return arena_printf(a, "--%s=%s", k->name, *(const bool *)p ? "true" : "false");
    case KNOB_FLOAT: return arena_printf(a, "--%s=%.17g", k->name, *(const double *)p);
    case KNOB_TEXT:
    case KNOB_CHOICE:
    case KNOB_SET: return arena_printf(a, "--%s=%s", k->name, *(char *const *)p);
    default: break;
    }
    if (find_word(k, *(const int64_t *)p, &word))
        return arena_printf(a, "--%s=%.*s", k->name, STR_ARG(word));
    return arena_printf(a, "--%s=%lld%s", k->name, (long long)*(const int64_t *)p,
                        k->kind == KNOB_TIME ? "ms" : "");
}

const char **workerflags_make(const struct settings *s, struct arena *a, int *n)
{
    const char **out = arena_array(a, SETTINGS_KNOBS + 2, sizeof *out), *group = "";

    *n = 0;
    if (!out) return NULL;
    out[(*n)++] = "--config="; /* no other settings than these */
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (k->group) group = k->group;
        if (is_for_worker(k, group)) out[(*n)++] = format_flag(s, k, a);
    }
    return a->failed ? NULL : out;
}

int workerflags_of_model(const struct model_opt *o, struct arena *a, const char **out, int max)
{
    const struct {
        enum model_key key;
        const char *name;
        const int64_t *v;
        const char *text;
    } all[] = {
        { MODEL_CTX, "ctx", &o->ctx, NULL },
        { MODEL_KV_TOKENS, "kv-tokens", &o->kv_tokens, NULL },
        { MODEL_MAX_SEQS, "max-seqs", &o->max_seqs, NULL },
        { MODEL_THREADS, "threads", &o->threads, NULL },
        { MODEL_DEVICE, "device", NULL, o->device },
        { MODEL_CHAT_TEMPLATE, "chat-template", NULL, o->chat_template },
        { MODEL_RERANK, "rerank", NULL, o->rerank },
        { MODEL_VERIFY_MANIFEST, "verify-manifest", NULL, o->verify_manifest },
    };
    int n = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all && n < max; i++) {
        if (!model_has(o, all[i].key)) continue;
        out[n++] = all[i].v ? arena_printf(a, "--%s=%lld", all[i].name, (long long)*all[i].v)
                            : arena_printf(a, "--%s=%s", all[i].name, all[i].text);
    }
    return n;
}

void workerflags_engine(const struct settings *s, struct engine_opt *o)
{
    const char *leader = s->gang.shape.devices[0]; /* of a gang; empty: not named */
    const char *device = s->gpu_layers == 0 && !s->vram_only ? "cpu" : s->device;

    *o = (struct engine_opt){ .device = *leader ? leader : device,
                              .n_threads = gang_threads(&s->gang, (int)s->threads),
                              .isa = s->isa,
                              .numa = s->numa,
                              .gpu_layers = s->gpu_layers > 0 ? (int)s->gpu_layers : 0,
                              .vram_only = s->vram_only,
                              .cpu_moe = s->cpu_moe,
                              .n_cpu_moe = (int)s->n_cpu_moe,
                              .place = s->place,
                              .place_loose = s->n_models > 1 || *s->models_dir,
                              .n_ctx = (int)s->ctx,
                              .kv_tokens = (int)s->kv_tokens,
                              .max_batch = (int)s->max_batch,
                              .max_seqs = (int)s->max_seqs,
                              .max_requests = (int)s->max_requests,
                              .max_queue_tokens = (int)s->max_queue_tokens,
                              .kv_type = dtype_by_name(str_c(s->kv_type)),
                              .kv_overcommit = s->kv_overcommit,
                              .step_ms = (int)s->step_ms,
                              .stretch = s->stretch,
                              .age_ms = (int)s->age_ms,
                              .no_prefix = !s->prefix_cache,
                              .allow_nan = s->allow_nan,
                              .ranks_by_answer = strcmp(s->rerank, "generative") == 0,
                              .verify_manifest = s->verify_manifest,
                              .gang = gang_source_of(&s->gang) };
}

void workerflags_park(const struct settings *s, struct pool_park_opt *o)
{
    *o = (struct pool_park_opt){ .where = strcmp(s->park, "memory") == 0 ? POOL_PARK_MEMORY
                                          : strcmp(s->park, "file") == 0 ? POOL_PARK_FILE
                                                                         : POOL_PARK_OFF,
                                 .max_bytes = (uint64_t)s->park_limit,
                                 .dir = s->park_dir };
}

void workerflags_api(const struct settings *s, struct api_opt *o)
{
    *o = (struct api_opt){ .max_tokens_default = (int)s->max_tokens_default,
                           .max_choices = (int)s->max_choices,
                           .deadline_ms = (int)s->deadline_ms,
                           .ping_ms = (int)s->ping_ms,
                           .request_threads = (int)s->request_threads,
                           .request_queue = (int)s->request_queue,
                           .max_watchers = (int)s->max_watchers,
                           .response_bytes = (size_t)s->response_store,
                           .max_body_bytes = (size_t)s->max_body,
                           .salt_by_tenant = strcmp(s->prefix_scope, "tenant") == 0,
                           .log_prompts = s->log_prompts };
}
