/* sealed_impl.h - shared by sealed.c (header, reading) and sealed_write.c (encrypting, other keys). */
#ifndef TERN_BASE_SEALED_IMPL_H
#define TERN_BASE_SEALED_IMPL_H

#include "base/sealed.h"

enum { SEALED_EXTRA = SEALED_FILE_ID + 8 + 8 + 8 + 4 };

struct sealed_keys { /* in crypto_secret memory */
    unsigned char data[CRYPTO_KEY];
    unsigned char chunks[CRYPTO_KEY], mac[CRYPTO_KEY]; /* derived from it */
};

int sealed_derive(struct sealed_keys *k, struct err *e);
int sealed_format_head(unsigned char out[SEALED_HEAD], const struct sealed_head *h,
                       const unsigned char mac_key[CRYPTO_KEY], struct err *e);
/* Fills the slot: the data key, encrypted by the user's key. */
int sealed_wrap(struct sealed_slot *s, const struct sealed_head *h, const unsigned char *data_key,
                const unsigned char *user_key, struct err *e);
void sealed_make_mark(unsigned char out[SEALED_HEAD], const unsigned char *file_id);

/* Both headers and the mark, as they are in the file. lock: a shared lock meanwhile. */
int sealed_read_heads(int fd, unsigned char heads[SEALED_START], bool lock, const char *path,
                      struct err *e);
int sealed_open_heads(struct sealed_head *h, struct sealed_keys *k,
                      const unsigned char heads[SEALED_START], uint64_t file_bytes,
                      const char *path, struct err *e);

size_t sealed_chunk_size(const struct sealed_head *h, uint64_t i);
/* The authenticated data of chunk i, and its nonce. */
struct str sealed_chunk_extra(char out[SEALED_EXTRA], unsigned char nonce[CRYPTO_NONCE],
                              const struct sealed_head *h, uint64_t i);
#endif
