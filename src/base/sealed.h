/* sealed.h - encrypted files: the format, reading chunk by chunk, writing, and other keys.
 *
 *   0      header                    4096 bytes
 *   4096   the same header again     4096
 *   8192   rekey mark                4096: zeros, but while the keys are being changed
 *   12288  chunk 0, its tag (16 bytes), chunk 1, its tag, ...
 *
 *   header:  "TERNSEAL"  version u32  chunk bytes u32  plain bytes u64  file id [16]
 *            generation u64  name length u16, name [256]  slots u16
 *            8 slots: key id [8]  nonce [12]  data key, encrypted [32]  tag [16]
 *            zeros, then HMAC-SHA-256 of the header [32], at its end
 *
 * Every file has a random data key. Chunks are AES-256-GCM under a key derived from it; the nonce is
 * the number of the chunk, and the file's id, the number, the count of chunks and the sizes are
 * authenticated with it: a chunk that is changed, moved, repeated, left out or from another file does
 * not decrypt. The header is authenticated by an HMAC under another derived key. The data key itself
 * is in the header, encrypted by each of up to 8 user's keys, so that changing keys rewrites the header
 * only. A file of an encrypted folder has its name in the header and opens under no other name.
 *
 * Changing keys (sealed_rekey) writes the mark, the first header, the second, and removes the mark,
 * with fsync in between. After a crash the mark is there, and a header that is whole is used: with the
 * new keys or the old ones. Without the mark the two headers are equal, or the file is damaged.
 *
 * The first bytes of a file tell that it is encrypted, not its name. Keys come from base/keyring.h. A
 * struct sealed belongs to one thread at a time. */
#ifndef TERN_BASE_SEALED_H
#define TERN_BASE_SEALED_H

#include "base/err.h"
#include "base/keyring.h"

#include <stdio.h>

enum {
    SEALED_HEAD = 4096,
    SEALED_START = 3 * SEALED_HEAD,
    SEALED_SLOTS = 8,
    SEALED_FILE_ID = 16,
    SEALED_NAME = 256,
    SEALED_CHUNK = 1 << 20, /* default */
    SEALED_CHUNK_MIN = 4096,
    SEALED_CHUNK_MAX = 16 << 20
};

struct sealed_slot {
    unsigned char id[KEY_ID], nonce[CRYPTO_NONCE], key[CRYPTO_KEY], tag[CRYPTO_TAG];
};

struct sealed_head {
    uint32_t chunk_bytes;
    uint64_t plain_bytes, generation;
    unsigned char file_id[SEALED_FILE_ID];
    char name[SEALED_NAME]; /* relative to the folder it was encrypted in; "": any */
    int n_slots;
    struct sealed_slot slots[SEALED_SLOTS];
};

bool sealed_looks(const void *p, size_t n); /* do the first bytes have the magic number? */

/* Checks everything that can be checked without a key; path: for messages. file_bytes: of the file. */
int sealed_parse(struct sealed_head *h, const unsigned char head[SEALED_HEAD], uint64_t file_bytes,
                 const char *path, struct err *e);

/* ---- reading ---- */

struct sealed;

/* fd is borrowed and outlives it. E_IO: the ring has no key for the file. E_DAMAGED: the header
 * was changed. E_FORMAT: it is none. */
int sealed_open(struct sealed **out, int fd, uint64_t file_bytes, const char *path, struct err *e);
void sealed_close(struct sealed *s);           /* wipes the keys; NULL is allowed */
uint64_t sealed_bytes(const struct sealed *s); /* decrypted */
const struct sealed_head *sealed_head(const struct sealed *s);
uint64_t sealed_n_chunks(const struct sealed *s);
/* Decrypts chunk i to `to`, which has room for chunk_bytes; *n: how many bytes it has. E_DAMAGED: it
 * does not match its tag; `to` is zeroed then. */
int sealed_read(struct sealed *s, uint64_t i, void *to, size_t *n, struct err *e);

/* ---- writing ---- */

struct sealed_opt {
    const struct keyset *keys; /* each of them opens the file */
    const char *name;          /* see struct sealed_head; NULL: any */
    uint32_t chunk_bytes;      /* 0: SEALED_CHUNK */
    /* May be NULL. */
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
};

/* Encrypts the bytes of the file `from` into the new file `to`, which appears when it is complete. */
int sealed_encrypt(const char *from, const char *to, const struct sealed_opt *opt, struct err *e);
/* Decrypts with the ring's keys; name: as in sealed_opt. */
int sealed_decrypt(const char *from, const char *to, const struct sealed_opt *opt, struct err *e);
/* Gives the file other keys. The ring has an old one. add: keys that open it from now on; those that
 * did so are removed unless keep is set. */
int sealed_rekey(const char *path, const struct keyset *add, bool keep, struct err *e);
/* Removes the slot of the key with this id; not the last one. E_NOTFOUND. */
int sealed_drop_key(const char *path, const unsigned char id[KEY_ID], struct err *e);

/* Reads the header of a file without a key. E_FORMAT: it is not encrypted. */
int sealed_peek(struct sealed_head *h, const char *path, struct err *e);
#endif
