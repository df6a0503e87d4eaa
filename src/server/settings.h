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
#include "gang/launch.h"
#include "pool/membudget.h"
#include "pool/registry.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SETTINGS_MODELS 128
#define SETTINGS_KNOBS 160

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

    char *model_key_file, *model_key_command; /* of encrypted models: base/keyring.h */
    char *verify_manifest;                    /* "off", "warn" or "require" */
    char *config;                             /* YAML file */
    char *rerank;                             /* "auto", "generative" */
    char *chat_template; /* file with a template that replaces those of the models */
    char *host, *allowed_hosts, *cors_origins, *socket, *api_key, *api_key_file, *tls_cert,
        *tls_key;
    int64_t port;
    bool allow_open; /* listen on other addresses than loopback without a key */

    char *device, *isa, *numa, *kv_type;
    int64_t tp, pp, step_timeout_ms; /* members of each model's gang: gang/launch.h */
    bool ep;
    char *split, *hosts, *transport, *wire, *agent, *gang_listen, *remote_tern, *devices, *comm;
    struct gang_conf gang; /* the same; set by settings_gang */
    int64_t threads, gpu_layers, ctx, kv_tokens, max_batch, max_seqs, max_requests,
        max_queue_tokens;
    double kv_overcommit, stretch;
    int64_t step_ms, age_ms;
    bool prefix_cache, warm, vram_only, allow_nan;
    bool cpu_moe; /* experts apart from their layers: model/expertplace.h */
    int64_t n_cpu_moe;
    char *place;
    char *prefix_scope;    /* "server" or "tenant" */
    char *park, *park_dir; /* "off", "memory" or "file" */
    int64_t park_limit;    /* bytes */
    bool read_ahead;
    char *device_memory_limit; /* of GPUs: settings_device_limits */
    int64_t
        memory_limit; /* host bytes of weights, KV cache and scratch of all models; 0: none; -1: what
                           * the machine has */

    int64_t max_connections, max_body, max_header, max_unread;
    int64_t max_bodies, max_tenant_bodies;
    int64_t request_threads, request_queue, max_watchers;
    int64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms;
    int64_t max_tokens_default, max_choices, deadline_ms, ping_ms, response_store;
    int64_t rate_per_min, concurrency; /* of tenants whose key sets none; 0: no limit */
    int64_t drain_timeout_ms, watchdog_ms;
    char *data_dir; /* of files, batches and durable requests; "": by the address */
    int64_t max_file, max_batch_lines, batch_inflight, batch_inflight_busy, retention_ms;
    int64_t tenant_files, tenant_batches, tenant_jobs; /* limits of a tenant; 0: none */
    char *ready;                                       /* "all" or "any" */

    char *cluster_key, *nats, *advertise;           /* of workers and gateways */
    char *peers, *peer_ca, *policy, *policy_script; /* of tern gateway */
    int64_t beat_ms, detect_ms, stall_ms;
    int64_t replicas_min, replicas_max, replica_idle_ms;

    char *log_level, *log_format, *metrics_compat;
    bool log_prompts, access_log, cors;

    const char *isa_auto; /* the instruction set that isa: auto stands for; NULL: not known. Static,
                           * filled by the command */
    bool print_config;    /* --print-config: print the settings and exit */
    unsigned char from[SETTINGS_KNOBS]; /* enum knob_from, in the order of the table */
};

enum knob_user { USED_BY_SERVE, USED_BY_BOTH, USED_BY_GATEWAY };

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
    unsigned char used_by; /* enum knob_user; 0: tern serve alone */
    bool reload;           /* SIGHUP applies a change */
    bool secret;           /* never shown */
    const char *group;     /* heading in the help before it; NULL: same group as the one before */
};

extern const struct knob settings_knobs[]; /* ends with name NULL */
const char *settings_gateway_about(void);
bool knob_is_of_gateway(const struct knob *k); /* tern gateway has this setting */

struct engine_info;

/* Facts that effective values depend on besides the settings. Zeros: not known. */
struct settings_facts {
    int port, max_conns; /* of a running server */
    bool has_keys;
    bool gateway; /* only the settings of tern gateway are written */
    int n_cores;
    const char *numa;                /* what `auto` stands for */
    uint64_t memory;                 /* bytes that the machine or the cgroup has */
    const struct engine_info *model; /* the first that is loaded */
};

/* argv[0] is the command. *helped: the help was printed on stdout. */
int settings_load(struct settings *s, int argc, char **argv, bool *helped, struct err *e);
/* Fills s->gang; E_INVALID names the setting. */
int settings_gang(struct settings *s, struct err *e);
/* The entries of device-memory-limit: out has MEMBUDGET_LIMITS of them. E_INVALID names the wrong one. */
int settings_device_limits(const struct settings *s, struct membudget_limit *out, int *n,
                           struct err *e);
void settings_release(struct settings *s);
enum knob_from settings_from(const struct settings *s, const struct knob *k);
/* {"max-batch":{"value":0,"effective":512,"from":"default"},...}; secrets are hidden. f NULL: no
 * facts. */
void settings_json(const struct settings *s, const struct settings_facts *f, struct buf *out);
/* The defaults alone, without flags, environment and file. */
int settings_defaults(struct settings *s, struct err *e);
/* The settings as a YAML file: every one as a comment with its help, those from another source than
 * the default as keys. */
void settings_write_yaml(const struct settings *s, struct buf *out);
/* Reads the file and the environment again and applies the knobs marked `reload`. Writes the names
 * of changed knobs to `changed`, with a note on those that need a restart. On an error nothing
 * changes. */
int settings_reload(struct settings *s, struct buf *changed, struct err *e);
/* The models as the registry takes them, at most SETTINGS_MODELS; returns how many. Borrowed from s. */
int settings_items(const struct settings *s, struct registry_item *out);
/* The path of the model with this alias; NULL: none. */
const char *settings_find_alias(const struct settings *s, const char *alias);
/* $TERN_CONFIG, else tern.yaml in the XDG configuration folder. Freed with mem_free; NULL: no memory. */
char *settings_default_file(void);
/* Only the settings of a file (NULL or "": the default one), for its list of models; empty where the
 * file does not exist. The caller releases s, also after an error. */
int settings_read_aliases(struct settings *s, const char *file, struct err *e);
/* *out: the path or hf: name of the model with this alias in that file, freed with mem_free; NULL:
 * there is none. A name with a slash, or one that exists as a file, is no alias. */
int settings_alias_path(char **out, const char *file, const char *name, struct err *e);
/* Adds a model from the default source, for a command line that names none. */
int settings_add_model(struct settings *s, const char *path, struct err *e);
#endif
