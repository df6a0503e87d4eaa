/* promptkey.h - from the body of a request to the hashes of its prompt's blocks, and its cost.
 *
 * With the tokenizer and chat template of the model (opened without its weights) the hashes are those
 * of its token blocks, exactly as the workers cut them. Without, or for a large body, pieces of the
 * body's text from the prompt on are hashed: equal prompts have equal pieces. */
#ifndef TERN_CLUSTER_PROMPTKEY_H
#define TERN_CLUSTER_PROMPTKEY_H

#include "base/err.h"
#include "base/jsonpeek.h"
#include "base/str.h"
#include "cluster/affinity.h"

struct promptkeys;

struct promptkey {
    char model[256]; /* "": none was named */
    uint64_t hashes[AFFINITY_BLOCKS];
    int n_hashes;
    bool exact;
    double block_tokens; /* of one hash */
    double cost;         /* tokens of prompt and completion, estimated */
    int n;               /* choices */
    bool has_seed;
};

/* models: files of models [n], in the order of --model. Those that cannot be opened are an error. */
int promptkeys_open(struct promptkeys **out, const char *const *models, const char *const *names,
                    int n, struct err *e);
void promptkeys_close(struct promptkeys *k); /* NULL is allowed */

/* All members of a body that the gateway looks at, in one pass. A body may be long, and the loop has
 * other requests: it is looked at piece by piece. The body stays until promptkey_make. */
enum {
    PROMPTLOOK_MEMBERS = 8,
    PROMPTLOOK_BYTES = 256 << 10 /* of a body, at once: some tenths of a millisecond */
};
struct promptlook {
    struct jsonpeek_scan scan;
    struct jsonpeek_member m[PROMPTLOOK_MEMBERS];
};
void promptlook_begin(struct promptlook *l, struct str body);
bool promptlook_step(struct promptlook *l); /* true: that was the last piece */
/* After the last piece: the value `true` of "durable" in the body; p NULL: it has none. */
struct str promptlook_durable(const struct promptlook *l);
bool promptlook_streams(const struct promptlook *l); /* "stream": true */
/* previous_response_id; p NULL: the body has none. */
struct str promptlook_previous(const struct promptlook *l);
/* After the last piece. Never fails: a body that is not understood has no hashes, and the worker says
 * what is wrong. */
void promptkey_make(const struct promptkeys *k, const struct promptlook *l, uint64_t salt,
                    struct promptkey *out);
#endif
