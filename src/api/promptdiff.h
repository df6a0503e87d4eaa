/* promptdiff.h - at log level debug: where a prompt first differs from the one before it.
 *
 * The prefix cache serves a prompt as far as it is equal to an earlier one. Agents send a growing
 * conversation, and a line that changes at its beginning costs the whole prompt: this tells which. The
 * last prompt of each tenant and model is kept, of PROMPTDIFF_CLIENTS of them. For the loop's thread. */
#ifndef TERN_API_PROMPTDIFF_H
#define TERN_API_PROMPTDIFF_H

#include "base/ids.h"
#include "base/str.h"

struct tokenizer;

enum { PROMPTDIFF_CLIENTS = 16 };

struct promptdiff {
    struct promptdiff_client {
        uint64_t key; /* of tenant and model; 0: unused */
        uint64_t used;
        struct ids ids;
    } clients[PROMPTDIFF_CLIENTS];
    uint64_t n_used;
};

/* Compares with the last prompt of this key and keeps this one. label: of the request, for the log. t may
 * be NULL. */
void promptdiff_note(struct promptdiff *d, uint64_t key, const struct ids *prompt,
                     const struct tokenizer *t, const char *label);
void promptdiff_release(struct promptdiff *d);
#endif
