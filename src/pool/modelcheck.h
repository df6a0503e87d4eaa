/* modelcheck.h - reads a model's files whole and says whether they are sound, for `tern verify` and for a
 * server that is asked (POST /models/verify).
 *
 * Checked are the header, the shapes and types of all tensors that the architecture has, the tokenizer,
 * and every number: none may be NaN or infinite. The manifest and the keys are the caller's, except in
 * modelcheck_pool. */
#ifndef TERN_POOL_MODELCHECK_H
#define TERN_POOL_MODELCHECK_H

#include "base/err.h"
#include "format/source.h"

#include <stdatomic.h>

struct pool;

struct modelcheck {
    const char *path;
    const atomic_int *stop; /* other than 0 ends it between two tensors; NULL: nothing does */
    void (*found)(void *arg,
                  const char *text); /* numbers of a tensor are not finite; may be NULL */
    source_progress_fn *decrypting;  /* of an encrypted model; may be NULL */
    void *arg;                       /* of both */
    /* filled in, also after an error, as far as it came */
    size_t n_tensors, n_bad;
    uint64_t bytes;
};

/* E_DAMAGED and the other errors of a load say what is wrong; E_CANCELLED: stop. */
int modelcheck_run(struct modelcheck *m, struct err *e);
/* Model i of the pool, with its manifest, if it has one, and its keys. path: set here. */
int modelcheck_pool(struct modelcheck *m, struct pool *p, int i, struct err *e);
#endif
