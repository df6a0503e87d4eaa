/* snap.h - what sequences carried on at some point of their text, kept for others that begin the
 * same.
 *
 * State cannot be shared like a block, but it can be copied: a snapshot is the state behind some
 * whole blocks of tokens, which are kept beside it and compared, so that nobody is ever given
 * another's. The one used longest ago makes room. All memory is taken when it opens. The engine's
 * thread owns it. */
#ifndef TERN_KV_SNAP_H
#define TERN_KV_SNAP_H

#include "kv/state.h"

struct snaps;

/* n snapshots of texts of up to max_tokens. */
int snaps_open(struct snaps **out, const struct backend_share *shares, int n_shares,
               const struct stateshape *layers, int n, int max_tokens, struct err *e);
void snaps_close(struct snaps *s); /* NULL is fine */

/* The longest snapshot that is a beginning of the n ids; how many tokens, 0: none. Nothing changes.
 */
int snaps_look(const struct snaps *s, uint64_t salt, const int32_t *ids, int n);
/* Copies the snapshot of just these n ids, which snaps_look found, into a slot. */
void snaps_take(struct snaps *s, uint64_t salt, const int32_t *ids, int n, struct state_pool *to,
                int slot);
/* Keeps a slot's state as it is behind these n ids; again is fine. */
void snaps_keep(struct snaps *s, uint64_t salt, const int32_t *ids, int n, struct state_pool *from,
                int slot);
int snaps_n(const struct snaps *s); /* kept at the moment */
#endif
