/* registry_impl.h - shared by the files of the registry: paths inside the folder of models, the
 * scan of the folder, and changes by request. */
#ifndef TERN_POOL_REGISTRY_IMPL_H
#define TERN_POOL_REGISTRY_IMPL_H

#include "base/map.h"
#include "pool/registry.h"

/* ---- registry.c: parts of changes by request (registry_live.c), all under registry_lock ---- */

void registry_lock(struct registry *r);
void registry_unlock(struct registry *r);
/* A new entry for the model at path, which is taken over; its id leads to it from now on. */
int registry_put_hub(struct registry *r, const char *id, char *path, int *i, struct err *e);
/* The entry is there (again): looks whether its files were replaced. */
void registry_put_back(struct registry *r, int i);
void registry_put_away(struct registry *r, int i); /* marks it as gone */
/* Lets a name lead to entry i. copied: by registry_copy. */
int registry_put_name(struct registry *r, const char *text, int i, bool copied, struct err *e);
bool registry_is_copy(const struct registry *r, struct str text);
void registry_free_name(struct registry *r, struct str text); /* it leads nowhere then */
int registry_n_copies(const struct registry *r);
int registry_check_name(const char *text, struct err *e); /* may a model be named so? */

/* ---- registry_path.c ---- */

/* Is the resolved path root itself, or below it? */
bool place_is_inside(const char *root, const char *real);
/* *real: the path without symbolic links, freed with mem_free. E_NOTFOUND, E_IO, E_NOMEM. */
int place_resolve(char **real, const char *path, struct err *e);
/* path: confined to root. Everything that loading the model at this path is known to open is a file
 * or folder inside root: the file, the other parts of a split GGUF, the files beside an ONNX model,
 * and all files of a folder. E_INVALID: something is not, the message says what. A reader that opens
 * another file is stopped by the confined path; this finds it before a load. */
int place_check(const char *root, const char *path, struct err *e);
/* A number that changes when the model's files are replaced (device, inode, size, time of change),
 * and the modification time of the path; 0: it is not there, or no memory. */
uint64_t place_print(const char *path, int64_t *created);
/* The path of the only GGUF model in a folder that has no other weights, freed with mem_free; *out
 * is NULL where that does not apply: the path itself is the model. */
int place_pick(char **out, const char *path, struct err *e);
/* Does errno say that descriptors or memory ran out, not that something is wrong with a file? */
bool place_is_shortage(int why);
/* "a FIFO", "a socket"; of a file type that cannot be a model. */
const char *place_type_name(unsigned mode);

enum file_kind {
    FILE_OTHER,
    FILE_GGUF, /* the only or the first part of a model */
    FILE_ONNX,
    FILE_SAFETENSORS,
    FILE_CONFIG /* config.json */
};
/* By the name. Further parts of a split GGUF and multimodal projectors (mmproj) are FILE_OTHER. */
enum file_kind file_kind_of(struct str name);

/* ---- registry_scan.c ---- */

struct scan_model {
    char *id, *path, *real; /* path: confined */
    bool is_link;           /* reached through a symbolic link: another name of `real` */
};

/* Paths that this and earlier scans have warned about. */
struct scan_warned {
    struct map map; /* the keys are in paths */
    char **paths;   /* [n] */
    int n, cap;
};

/* One scan of the folder of models. */
struct scan {
    const char *root;          /* resolved */
    const char *base;          /* the same as a confined path; those of models begin with it */
    struct scan_model *models; /* [n]; those that are not links first, then by id */
    int n, cap;
    int n_looked;  /* names so far */
    int n_refused; /* with a warning */
    int shortage;  /* errno, where descriptors or memory ran out: nothing is known of the rest */
    struct scan_warned *warned;
};

/* Warnings about single files do not end it. E_NOTFOUND, E_IO (the root cannot be read), E_NOMEM. */
int scan_run(struct scan *s, struct err *e);
void scan_release(struct scan *s);
void scan_warned_release(struct scan_warned *w);
/* A warning about a file of the folder, in the log once per path. */
void scan_warn(struct scan *s, const char *path, const char *what);
#endif
