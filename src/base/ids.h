/* ids.h - a growing array of 32-bit integers, in practice token ids. A zeroed one is valid and
 * empty.
 *
 * Like a buf it remembers its first failed allocation: from then on additions do nothing and
 * ids_check returns E_NOMEM. */
#ifndef TERN_BASE_IDS_H
#define TERN_BASE_IDS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ids {
    int32_t *p;    /* owned; valid until the next addition */
    size_t n, cap; /* ids used and allocated */
    bool failed;   /* an addition found no memory; the array is incomplete */
};

bool ids_reserve(struct ids *v, size_t more); /* room for `more` ids; false: failed */
void ids_push(struct ids *v, int32_t id);
void ids_add(struct ids *v, const int32_t *ids, size_t n);
int ids_check(const struct ids *v, struct err *e); /* OK, or E_NOMEM after a failure */
void ids_release(struct ids *v);
#endif
