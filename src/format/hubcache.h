/* hubcache.h - the cache of Hugging Face's tools on this machine: where it is, what it has.
 *
 * Layout: CACHE/models--ORG--NAME/refs/REV holds the commit of a branch or tag,
 * models--ORG--NAME/snapshots/COMMIT/ the files as links into models--ORG--NAME/blobs/. Other programs
 * write it at the same time; names that begin with a dot, links to nowhere and incomplete sets of
 * parts are never listed. Functions without state: any thread. */
#ifndef TERN_FORMAT_HUBCACHE_H
#define TERN_FORMAT_HUBCACHE_H

#include "format/hubfiles.h"
#include "format/modelref.h"

/* HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub. Freed with
 * mem_free; NULL: no memory. */
char *hubcache_dir(void);
/* "CACHE/models--ORG--NAME"; NULL: no memory. */
char *hubcache_repo(const char *cache, const struct hf_ref *r);
/* The commit that the revision stands for. E_NOTFOUND: it is not in the cache. E_FORMAT: refs/REV
 * holds no commit. */
int hubcache_commit(char **out, const char *repo, struct str rev, struct err *e);
/* The files of a snapshot that can be read, down to three folders deep, sorted. */
int hubcache_files(struct hub_files *out, const char *snapshot, struct err *e);

struct hubcache_model {
    char *name; /* "ORG/NAME", "ORG/NAME:FILE", "ORG/NAME@REV:FILE": behind hf: it is this model */
    char *path; /* what the name stands for: a file or a folder */
    char *commit; /* of the snapshot */
    enum hub_kind kind;
    uint64_t bytes; /* of all its files */
    int64_t when;   /* seconds since 1970: when it came here */
};

struct hubcache_models {
    struct hubcache_model *at;
    int n, cap;
};

/* Every whole model, by name. A cache that does not exist has none. */
int hubcache_list(struct hubcache_models *out, const char *cache, struct err *e);
void hubcache_models_release(struct hubcache_models *l);
/* Calls fn with ORG and NAME of every repository until it returns false. */
void hubcache_each_repo(const char *cache, bool (*fn)(void *arg, struct str org, struct str name),
                        void *arg);

/* The lock of a repository in CACHE/.locks, held until *fd is closed: a download holds it shared, a
 * removal alone. E_CONCURRENCY: somebody else has it. */
int hubcache_lock(int *fd, const char *cache, const struct hf_ref *r, bool alone, struct err *e);

struct hubcache_removed {
    int n_files;    /* links and blobs */
    uint64_t bytes; /* of the blobs */
};

/* Removes a revision, its refs, and the blobs that no other snapshot uses; with r->file only that
 * model. E_NOTFOUND: it is not in the cache. E_CONCURRENCY: a download of this repository runs. */
int hubcache_remove(const char *cache, const struct hf_ref *r, struct hubcache_removed *out,
                    struct err *e);
#endif
