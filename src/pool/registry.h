/* registry.h - which models this machine has, and the settings of each. Knows no engine.
 *
 * Models come from three sources: those named by flags, the list of the settings file, and the
 * files and folders below one folder (--models-dir); and from the Hugging Face cache, when a request
 * has pulled one while the server runs. A request names a model, and that name is only
 * ever looked up in this list: it is never joined to a path.
 *
 * Confinement: with a folder of models, every model of the folder and of the list lies inside it
 * after all symbolic links are resolved, and so does every file that belongs to the model. What
 * leaves the folder is refused: in the list with an error, in the folder with a warning. A name of
 * the Hugging Face cache (hf:ORG/NAME) in the list is no path, and stays inside the cache. The paths
 * that are opened are confined ones (confine.h): what is changed after the check cannot leave the
 * folder either.
 *
 * An entry lives as long as the registry and never changes, except for the atomic fields; so its
 * index and its pointer stay valid. A rescan appends new models, marks vanished ones as gone, and
 * counts up the version of those whose files were replaced. Any thread may read at any time without
 * a lock; registry_rescan locks against itself. */
#ifndef TERN_POOL_REGISTRY_H
#define TERN_POOL_REGISTRY_H

#include "base/err.h"
#include "base/str.h"

#include <stdatomic.h>

#define REGISTRY_MAX 4096        /* entries in the life of a registry, also those that are gone */
#define REGISTRY_FOLDER_MAX 1000 /* models that one scan of the folder lists */
#define REGISTRY_ALIASES 8       /* names of one model in the list of the settings file */

/* Settings of one model. A zeroed struct has none: then the setting of the server applies. */
enum model_key {
    MODEL_CTX,
    MODEL_KV_TOKENS,
    MODEL_KV_SHARE,
    MODEL_MAX_SEQS,
    MODEL_THREADS,
    MODEL_PRIORITY,
    MODEL_KEEP_ALIVE,
    MODEL_PRELOAD,
    MODEL_PINNED,
    MODEL_ISOLATE,
    MODEL_DEVICE,
    MODEL_CHAT_TEMPLATE,
    MODEL_RERANK,
    MODEL_VERIFY_MANIFEST,
    MODEL_KEY_FILE,
    MODEL_KEY_COMMAND,
    MODEL_TIER,
    MODEL_N_KEYS
};

#define MODEL_FOREVER (-1) /* keep_alive_ms */

struct model_opt {
    unsigned given;              /* bit k is set: this model has its own value of key k */
    int64_t ctx, kv_tokens;      /* tokens; 0: as the model and the memory allow */
    double kv_share;             /* part of the memory for KV caches, above 0 up to 1 */
    int64_t max_seqs, threads;   /* threads 0: one per core */
    int64_t priority;            /* -100 to 100: a higher one is evicted later and loaded sooner */
    int64_t keep_alive_ms;       /* idle time until it is unloaded; 0: at once; MODEL_FOREVER */
    bool preload;                /* loaded at the start */
    bool pinned;                 /* never evicted */
    bool isolate;                /* in a process of its own */
    const char *device;          /* "cpu", "cuda:1" */
    const char *chat_template;   /* path of a file, to be opened */
    const char *rerank;          /* "auto" or "generative" */
    const char *verify_manifest; /* "off", "warn" or "require" */
    const char *tier;            /* "light", "balanced" or "quality": "tier:NAME" asks for it */
    const char *key_file, *key_command; /* of an encrypted model: base/keyring.h */
};

static inline bool model_has(const struct model_opt *o, enum model_key k)
{
    return o->given >> k & 1;
}

enum registry_origin {
    REGISTRY_FLAG,   /* -m, or the model that ships with tern */
    REGISTRY_CONFIG, /* the list `models` of the settings file */
    REGISTRY_FOLDER, /* found below the folder of models */
    REGISTRY_HUB     /* pulled while the registry is open: in the Hugging Face cache */
};

struct registry_model {
    const char *id;
    const char *path;    /* a file or a folder, as it is shown */
    const char *to_open; /* the same, confined to the folder of models if it has to be inside */
    const char *real;    /* the same place without symbolic links */
    enum registry_origin origin;
    /* Named by the operator: by a flag, or in a list without a folder of models. If its settings do
     * not say otherwise, such a model is loaded at the start and stays loaded; others are loaded on
     * demand and unloaded after --keep-alive. */
    bool named;
    bool preload;         /* to be loaded at the start; all sources considered */
    struct model_opt opt; /* texts belong to the entry */
    /* change during the entry's life */
    _Atomic int64_t created; /* seconds since 1970: modification time of the file or folder */
    atomic_uint version;     /* counts replacements of the files; starts at 1 */
    atomic_bool gone;        /* no longer there: its file vanished from the folder of models, or it
                              * was removed from the cache. It may come back. */
};

/* A model that is named by a flag or listed in the settings file. */
struct registry_item {
    const char
        *path; /* or another name (modelref.h); of the list: relative to the folder of models,
                       * if there is one */
    const char *aliases[REGISTRY_ALIASES]; /* the first is the id; none or "": from the path */
    int n_aliases;
    struct model_opt opt;
    enum registry_origin origin; /* REGISTRY_FLAG or REGISTRY_CONFIG */
    const char *where;           /* "tern.yaml:12", for errors; NULL: a flag */
};

struct registry_opt {
    const struct registry_item *items; /* [n] */
    int n;
    const char *models_dir; /* NULL or "": none */
    const char *preload;    /* ids or aliases, separated by commas; NULL or "": none */
};

struct registry;

/* Items first, in their order, then the models of the folder by id. E_INVALID: two models of one
 * name, a path that leaves the folder, an unknown name in `preload`. E_NOTFOUND: a file or the
 * folder is missing. A registry without models is valid if it has a folder. Copies all texts. */
int registry_open(struct registry **out, const struct registry_opt *opt, struct err *e);
void registry_close(struct registry *r); /* NULL is allowed; nobody reads any more */

int registry_n(const struct registry *r); /* entries so far; grows */
const struct registry_model *registry_at(const struct registry *r, int i);
/* The index of the model with this id or alias, if it is not gone; -1: none. */
int registry_find(const struct registry *r, struct str name);
int registry_find_any(const struct registry *r, struct str name); /* also one that is gone */
/* The k-th name of model i besides its id; NULL: it has fewer. */
const char *registry_alias(const struct registry *r, int i, int k);
const char *registry_dir(const struct registry *r); /* resolved; NULL: no folder of models */

/* What a rescan has found. */
struct registry_news {
    int added, gone, back, replaced; /* models; back: were gone before */
    int refused;                     /* files and folders that are left out, with a warning */
};
/* Looks at the folder and at the files of all models again. On an error the entries that were added
 * stay, and nothing is marked as gone. news may be NULL. */
int registry_rescan(struct registry *r, struct registry_news *news, struct err *e);

/* Is model i still there, and all of it inside the folder? The first step of a load. */
int registry_verify(const struct registry *r, int i, struct err *e);

/* ---- changes by request; any thread, each locks against rescans ---- */

#define REGISTRY_COPIES 1024 /* names that registry_copy has given at a time */

/* *out: "hf.co/ORG/NAME[@REV][:FILE]", the id that a pulled model gets, from a name of the hub in any
 * of its forms (modelref.h); freed with mem_free. E_INVALID: it is no name of the hub. */
int registry_hub_id(char **out, struct str name, struct err *e);
bool registry_is_hub(struct str name); /* is it of one of these forms, right or wrong? */
/* The model of the cache with this id, as a new entry or one that is there already; *i: its index.
 * E_NOTFOUND: it is not in the cache. E_INVALID: another model has this name. */
int registry_add_hub(struct registry *r, const char *id, int *i, struct err *e);
/* Removes the files of model i from the cache, as `tern rm` does, and marks it as gone. E_INVALID: it
 * is not in the cache. E_CONCURRENCY: a download of its repository runs. */
int registry_remove_hub(struct registry *r, int i, struct err *e);
int registry_check_hub(const struct registry *r, int i, struct err *e); /* E_INVALID: as above */
/* Gives model i one more name, until the registry closes. E_INVALID: the name is not allowed, or
 * another model has it. */
int registry_copy(struct registry *r, int i, struct str name, struct err *e);
/* Takes away a name that registry_copy gave; false: it gave no such name. */
bool registry_drop_copy(struct registry *r, struct str name);
#endif
