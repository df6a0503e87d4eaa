/* settings.h - one table of knobs: flag, environment, YAML key, range, effective value.
 *
 * A value is taken from the flag, else from TERN_NAME in the environment, else from the YAML file,
 * else the default; the table remembers which. A bad value is refused with the key, the value and
 * what is allowed. Every knob of the server is here and nowhere else; each has an effect, and
 * /status shows all. Texts are owned by the struct; settings_release ends them. */
#ifndef TERN_SERVER_SETTINGS_H
#define TERN_SERVER_SETTINGS_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SETTINGS_MODELS 16
#define SETTINGS_KNOBS 80

enum knob_kind {
    KNOB_INT,
    KNOB_SIZE,
    KNOB_FLOAT,
    KNOB_BOOL,
    KNOB_TEXT,
    KNOB_CHOICE,
    KNOB_TIME, /* stored in ms; bare: seconds, or ms where the name ends so */
    KNOB_SET,  /* some of `choices`, with commas between */
    KNOB_LIST  /* models, aliases: may be given several times */
};
enum knob_from { FROM_DEFAULT, FROM_FILE, FROM_ENV, FROM_FLAG };

struct settings {
    const char *models[SETTINGS_MODELS], *aliases[SETTINGS_MODELS];
    int n_models, n_aliases;

    char *config;        /* YAML file */
    char *chat_template; /* a file in place of the models' own */
    char *host, *socket, *api_key, *api_key_file, *tls_cert, *tls_key;
    int64_t port;
    bool allow_open; /* bind elsewhere than loopback without a key */

    char *device, *kv_type;
    int64_t threads, gpu_layers, ctx, kv_tokens, max_batch, max_seqs, max_requests,
        max_queue_tokens;
    double kv_overcommit, stretch;
    int64_t step_ms, age_ms;
    bool prefix_cache, warm, vram_only;
    char *prefix_scope;   /* "server" or "tenant" */
    int64_t memory_limit; /* bytes: weights, KV and scratch of all models; 0: none */

    int64_t max_connections, max_body, max_header, max_unread;
    int64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms;
    int64_t max_tokens_default, max_choices, deadline_ms, ping_ms;
    int64_t rate_per_min, concurrency; /* of a tenant whose key says nothing else; 0: none */
    int64_t drain_timeout_ms, watchdog_ms;

    char *log_level, *log_format, *metrics_compat;
    bool log_prompts, access_log, cors;

    bool print_config;                  /* --print-config: show what is effective, do nothing */
    unsigned char from[SETTINGS_KNOBS]; /* enum knob_from, as the table is ordered */
};

struct knob {
    const char *name; /* "max-batch": --max-batch, TERN_MAX_BATCH, max-batch: */
    const char *alt;  /* "-b|--batch-size": other names; NULL: none */
    enum knob_kind kind;
    size_t at;           /* offset in struct settings */
    double least, most;  /* numbers; times in ms */
    const char *choices; /* "a|b|c" */
    const char *dflt;    /* as one would write it */
    const char *help;
    bool reload;       /* SIGHUP takes it up */
    bool secret;       /* never shown */
    const char *group; /* heading before it; NULL: goes on with the last */
};

extern const struct knob settings_knobs[]; /* ends with name NULL */

/* argv[0] is the verb. *helped: help was printed on stdout. */
int settings_load(struct settings *s, int argc, char **argv, bool *helped, struct err *e);
void settings_release(struct settings *s);
enum knob_from settings_from(const struct settings *s, const struct knob *k);
/* {"max-batch":{"value":512,"from":"flag"},...}; keys hidden */
void settings_json(const struct settings *s, struct buf *out);
/* From the file and the environment again: knobs marked reload; the others stay. Names of changed
 * ones go to `changed`, and of those that wait for a restart. */
int settings_reload(struct settings *s, struct buf *changed, struct err *e);
/* A model more, behind those there are; the default when nobody named one. */
int settings_add_model(struct settings *s, const char *path, struct err *e);
#endif
