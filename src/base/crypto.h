/* crypto.h - SHA-256, HMAC-SHA-256, AES-256-GCM and random bytes.
 *
 * The arithmetic is OpenSSL's: libcrypto is opened by dlopen when it is first needed, so that
 * libtern does not depend on it, and a program that never hashes or decrypts never loads it. The
 * server has it loaded already, and a sandboxed worker then opens no file for it. Where it is
 * missing, crypto_open says so (E_UNSUPPORTED), and so does everything that needs it.
 *
 * Any thread may call these functions; one thread at a time uses a crypto_sha or crypto_gcm. */
#ifndef TERN_BASE_CRYPTO_H
#define TERN_BASE_CRYPTO_H

#include "base/err.h"
#include "base/str.h"

enum { CRYPTO_SUM = 32, CRYPTO_KEY = 32, CRYPTO_NONCE = 12, CRYPTO_TAG = 16 };
#define CRYPTO_HEX (2 * CRYPTO_SUM + 1) /* a SHA-256 as lower-case hex digits, and a NUL */

/* Opens libcrypto and makes its first use, which reads files: before a sandbox. */
int crypto_open(struct err *e);
int crypto_random(void *p, size_t n, struct err *e); /* by the kernel, not by libcrypto */

struct crypto_sha; /* SHA-256 */
int crypto_sha_open(struct crypto_sha **out, struct err *e);
void crypto_sha_add(struct crypto_sha *h, const void *p, size_t n);
/* The sum of all bytes so far. Once. */
int crypto_sha_end(struct crypto_sha *h, unsigned char sum[CRYPTO_SUM], struct err *e);
void crypto_sha_close(struct crypto_sha *h); /* NULL is allowed */

void crypto_hex(char *out, const void *p, size_t n); /* 2n digits and a NUL */
/* Reads exactly n bytes of hex digits, of either case; false: text is something else. */
bool crypto_unhex(void *out, size_t n, struct str text);

int crypto_hmac(unsigned char sum[CRYPTO_SUM], const unsigned char key[CRYPTO_KEY], struct str text,
                struct err *e);

struct crypto_gcm; /* AES-256-GCM with one key */
int crypto_gcm_open(struct crypto_gcm **out, const unsigned char key[CRYPTO_KEY], struct err *e);
void crypto_gcm_close(struct crypto_gcm *g); /* wipes the key; NULL is allowed */
/* out has n bytes and may be in. extra is authenticated and not encrypted. A nonce is used once. */
int crypto_gcm_seal(struct crypto_gcm *g, const unsigned char nonce[CRYPTO_NONCE], struct str extra,
                    const void *in, size_t n, void *out, unsigned char tag[CRYPTO_TAG],
                    struct err *e);
/* E_DAMAGED: the tag does not match; out is zeroed then. */
int crypto_gcm_unseal(struct crypto_gcm *g, const unsigned char nonce[CRYPTO_NONCE],
                      struct str extra, const void *in, size_t n, void *out,
                      const unsigned char tag[CRYPTO_TAG], struct err *e);

/* Memory for keys: locked where the system allows it, left out of core files, and wiped when it is
 * freed. NULL: no memory. */
void *crypto_secret(size_t n);
void crypto_secret_free(void *p, size_t n); /* NULL is allowed */
#endif
