/* settings.h - the settings of the server: one table of flag, environment variable, YAML key, range
 * and default.
 *
 * A value comes from the flag, else from TERN_NAME in the environment, else from the YAML file,
 * else from the default; `from` records which. A bad value is refused with its name, the value and
 * what is allowed, even where a better source overrides it. Every setting of the server is in the
 * table, and /status shows all. The struct owns its texts; settings_release frees them. */
#ifndef TERN_SERVER_SETTINGS_H
#define TERN_SERVER_SETTINGS_H

#include "base/buf.h"
#include "base/err.h"
#include "pool/registry.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SETTINGS_MODELS 128
#define SETTINGS_KNOBS 80

enum knob_kind {
    KNOB_INT,
    KNOB_SIZE,
    KNOB_FLOAT,
    KNOB_BOOL,
    KNOB_TEXT,
    KNOB_CHOICE,
    KNOB_TIME, /* stored in ms; a number without unit is seconds, or ms if the name ends in -ms */
    KNOB_SET,  /* some of `choices`, separated by commas */
    KNOB_LIST  /* models and aliases: may be given several times */
};
enum knob_from { FROM_DEFAULT, FROM_FILE, FROM_ENV, FROM_FLAG };

/* The settings of one model of the YAML list. The texts are owned. */
struct settings_model {
    struct model_opt opt;
    const char *aliases[REGISTRY_ALIASES - 1]; /* its second and later ones */
    int n_aliases;
    char *where; /* "tern.yaml:12"; NULL: a flag or a variable named the model */
};

struct settings {
    const char *models[SETTINGS_MODELS], *aliases[SETTINGS_MODELS];
    int n_models, n_aliases;
    struct settings_model more[SETTINGS_MODELS]; /* what the file says about models[i] besides */
    char *models_dir, *preload;
    int64_t keep_alive_ms;             /* of models of the folder; MODEL_FOREVER: for ever */
    int64_t models_max;                /* loaded at once; 0: as many as memory allows */
    bool isolate;                      /* every model in a process of its own */
    bool sandbox;                      /* such processes are confined */
    int64_t residence_ms, patience_ms; /* swapplan.h */
    int64_t load_timeout_ms, worker_silence_ms; /* of isolated models; load 0: no limit */

    char *config;        /* YAML file */
    char *chat_template; /* file with a template that replaces those of the models */
    char *host, *allowed_hosts, *socket, *api_key, *api_key_file, *tls_cert, *tls_key;
    int64_t port;
    bool allow_open; /* listen on other addresses than loopback without a key */

    char *device, *isa, *numa, *kv_type;
    int64_t threads, gpu_layers, ctx, kv_tokens, max_batch, max_seqs, max_requests,
        max_queue_tokens;
    double kv_overcommit, stretch;
    int64_t step_ms, age_ms;
    bool prefix_cache, warm, vram_only, allow_nan;
    char *prefix_scope;    /* "server" or "tenant" */
    char *park, *park_dir; /* "off", "memory" or "file" */
    int64_t park_limit;    /* bytes */
    bool read_ahead;
    int64_t memory_limit; /* bytes of weights, KV cache and scratch of all models; 0: none; -1: what
                           * the machine has */

    int64_t max_connections, max_body, max_header, max_unread;
    int64_t max_bodies, max_tenant_bodies;
    int64_t request_threads, request_queue, max_watchers;
    int64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms;
    int64_t max_tokens_default, max_choices, deadline_ms, ping_ms;
    int64_t rate_per_min, concurrency; /* of tenants whose key sets none; 0: no limit */
    int64_t drain_timeout_ms, watchdog_ms;
    char *ready; /* "all" or "any" */

    char *log_level, *log_format, *metrics_compat;
    bool log_prompts, access_log, cors;

    bool print_config;                  /* --print-config: print the settings and exit */
    unsigned char from[SETTINGS_KNOBS]; /* enum knob_from, in the order of the table */
};

struct knob {
    const char *name; /* "max-batch": --max-batch, TERN_MAX_BATCH, max-batch: */
    const char *alt;  /* other names: "-b|--batch-size"; NULL: none */
    enum knob_kind kind;
    size_t at;           /* offset in struct settings */
    double least, most;  /* numbers; times in ms */
    const char *choices; /* "a|b|c" */
    const char *words;   /* "none|auto": a size or a time can also be one of these: 0 and -1 */
    const char *dflt;    /* as a user would write it */
    const char *help;
    bool reload;       /* SIGHUP applies a change */
    bool secret;       /* never shown */
    const char *group; /* heading in the help before it; NULL: same group as the one before */
};

extern const struct knob settings_knobs[]; /* ends with name NULL */

/* argv[0] is the command. *helped: the help was printed on stdout. */
int settings_load(struct settings *s, int argc, char **argv, bool *helped, struct err *e);
void settings_release(struct settings *s);
enum knob_from settings_from(const struct settings *s, const struct knob *k);
/* {"max-batch":{"value":512,"from":"flag"},...}; secrets are hidden */
void settings_json(const struct settings *s, struct buf *out);
/* Reads the file and the environment again and applies the knobs marked `reload`. Writes the names
 * of changed knobs to `changed`, with a note on those that need a restart. On an error nothing
 * changes. */
int settings_reload(struct settings *s, struct buf *changed, struct err *e);
/* The models as the registry takes them, at most SETTINGS_MODELS; returns how many. Borrowed from s. */
int settings_items(const struct settings *s, struct registry_item *out);
/* The path of the model with this alias; NULL: none. */
const char *settings_find_alias(const struct settings *s, const char *alias);
/* Adds a model from the default source, for a command line that names none. */
int settings_add_model(struct settings *s, const char *path, struct err *e);
#endif
