/* store.h - a repository in the cache, while files come into it.
 *
 * Several processes may write the same repository, also Hugging Face's own tools: a blob is written
 * under the lock .locks/models--ORG--NAME/SUM.lock, which these use as well. Everything appears by
 * rename: blobs when they are complete, a new snapshot as a whole, links and refs one at a time, those
 * that make a model visible last. One thread. */
#ifndef TERN_PULL_STORE_H
#define TERN_PULL_STORE_H

#include "format/hubcache.h"

struct store {
    const char *cache;
    struct hf_ref ref;
    char *repo;
    int lock; /* of the repository, shared */
};

/* Makes the folders and takes the shared lock. */
int store_open(struct store *s, const char *cache, const struct hf_ref *ref, struct err *e);
void store_release(struct store *s);

char *store_blob(const struct store *s, const char *sum); /* its path; NULL: no memory */
/* Is the blob there, with that size? */
bool store_has_blob(const struct store *s, const struct hub_file *f);
/* *fd is -1 where another process holds the lock of the blob. */
int store_lock_blob(const struct store *s, const char *sum, int *fd, struct err *e);
/* The path of the part of a blob, and how much of the disk it takes. */
char *store_part(const struct store *s, const char *sum);
uint64_t store_part_bytes(const struct store *s, const char *sum);
/* Fails where the disk has not so many bytes free. */
int store_check_space(const struct store *s, uint64_t bytes, struct err *e);
/* Links the chosen files, whose blobs are all there, into the snapshot, and points the revision to it.
 * The snapshot gets a manifest (format/manifest.h) with it. */
int store_publish(const struct store *s, const struct hub_files *files,
                  const struct hub_choice *choice, const char *commit, struct err *e);
#endif
