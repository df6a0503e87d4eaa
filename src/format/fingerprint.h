/* fingerprint.h - tells two models apart without reading them as a whole.
 *
 * A fingerprint covers all settings, the names, types and shapes of all tensors, and samples of their bytes:
 * another model, also a fine-tuned one of the same shape, differs nearly everywhere. It is no protection
 * against someone who wants two models to look the same: manifests are (format/manifest.h). Bytes of
 * encrypted models are left out: they may not be decrypted yet. */
#ifndef TERN_FORMAT_FINGERPRINT_H
#define TERN_FORMAT_FINGERPRINT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct source;

/* Two independent chains of 64 bits. */
struct fingerprint {
    uint64_t h[2];
};
#define FINGERPRINT_START \
    {                     \
        {                 \
            1, 2          \
        }                 \
    }

void fingerprint_add_bytes(struct fingerprint *d, const void *data, size_t n);
void fingerprint_add_text(struct fingerprint *d, const char *s); /* NULL counts as "" */
void fingerprint_add_number(struct fingerprint *d, uint64_t n);
/* E_IO: config.json of a folder could not be read. */
int fingerprint_add_model(struct fingerprint *d, const struct source *s, struct err *e);
#endif
