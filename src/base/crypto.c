/* crypto.c - OpenSSL's EVP functions, looked up by name. See crypto.h. */
#include "base/crypto.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>

#define LIBRARY "libcrypto.so.3"

/* Functions of libcrypto, by their own names and types. */
/* clang-format off */
#define FUNCTIONS(X)                                                                            \
    X(EVP_sha256) X(EVP_MD_CTX_new) X(EVP_MD_CTX_free) X(EVP_DigestInit_ex)                     \
    X(EVP_DigestUpdate) X(EVP_DigestFinal_ex) X(HMAC) X(EVP_aes_256_gcm)                        \
    X(EVP_CIPHER_CTX_new) X(EVP_CIPHER_CTX_free) X(EVP_CipherInit_ex) X(EVP_CipherUpdate)       \
    X(EVP_CipherFinal_ex) X(EVP_CIPHER_CTX_ctrl)
/* clang-format on */

static struct {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} lib;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static char why[200]; /* libcrypto cannot be used; "": it can */

static void *find_function(void *handle, const char *name)
{
    void *f = dlsym(handle, name);

    if (!f && !why[0]) snprintf(why, sizeof why, "%s has no function %s", LIBRARY, name);
    return f;
}

/* The first sum fetches OpenSSL's algorithms and reads its settings. */
static void open_library(void)
{
    unsigned char sum[CRYPTO_SUM];
    const char *reason;
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (!handle) {
        reason = dlerror();
        snprintf(why, sizeof why, "%s", reason ? reason : LIBRARY);
        return;
    }
#define FIND(name) lib.name = (__typeof__(lib.name))(uintptr_t)find_function(handle, #name);
    FUNCTIONS(FIND)
#undef FIND
    if (!why[0] && !lib.HMAC(lib.EVP_sha256(), "", 0, (const unsigned char *)"", 0, sum, NULL))
        snprintf(why, sizeof why, "%s computes no HMAC", LIBRARY);
}

int crypto_open(struct err *e)
{
    pthread_once(&opened, open_library);
    if (!why[0]) return OK;
    return err_set(e, E_UNSUPPORTED,
                   "checksums and encrypted models need OpenSSL 3 (Debian's libssl3): %s", why);
}

int crypto_random(void *p, size_t n, struct err *e)
{
    unsigned char *at = p;

    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, E_IO, "no random bytes: %s", strerror(errno));
        at += got, n -= (size_t)got;
    }
    return OK;
}

/* ---- SHA-256 ---- */

struct crypto_sha {
    EVP_MD_CTX *ctx;
    bool failed; /* a step of OpenSSL, which has no reason to */
};

int crypto_sha_open(struct crypto_sha **out, struct err *e)
{
    struct crypto_sha *h;
    int rc = crypto_open(e);

    if (rc != OK) return rc;
    h = mem_new(struct crypto_sha);
    if (h && (h->ctx = lib.EVP_MD_CTX_new()) &&
        lib.EVP_DigestInit_ex(h->ctx, lib.EVP_sha256(), NULL)) {
        *out = h;
        return OK;
    }
    crypto_sha_close(h);
    return err_nomem(e, "a SHA-256 sum");
}

void crypto_sha_add(struct crypto_sha *h, const void *p, size_t n)
{
    if (n && !lib.EVP_DigestUpdate(h->ctx, p, n)) h->failed = true;
}

int crypto_sha_end(struct crypto_sha *h, unsigned char sum[CRYPTO_SUM], struct err *e)
{
    unsigned n = 0;

    if (!lib.EVP_DigestFinal_ex(h->ctx, sum, &n) || n != CRYPTO_SUM) h->failed = true;
    return h->failed ? err_set(e, E_INTERNAL, "OpenSSL could not compute a SHA-256 sum") : OK;
}

void crypto_sha_close(struct crypto_sha *h)
{
    if (h) lib.EVP_MD_CTX_free(h->ctx);
    mem_free(h);
}

void crypto_hex(char *out, const void *p, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++) {
        *out++ = digits[b[i] >> 4];
        *out++ = digits[b[i] & 15];
    }
    *out = 0;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool crypto_unhex(void *out, size_t n, struct str text)
{
    unsigned char *b = out;

    if (text.n != 2 * n) return false;
    for (size_t i = 0; i < n; i++) {
        int high = digit_of(text.p[2 * i]), low = digit_of(text.p[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        b[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

int crypto_hmac(unsigned char sum[CRYPTO_SUM], const unsigned char key[CRYPTO_KEY], struct str text,
                struct err *e)
{
    unsigned n = 0;
    int rc = crypto_open(e);

    if (rc != OK) return rc;
    if (lib.HMAC(lib.EVP_sha256(), key, CRYPTO_KEY, (const unsigned char *)text.p, text.n, sum,
                 &n) &&
        n == CRYPTO_SUM)
        return OK;
    return err_set(e, E_INTERNAL, "OpenSSL could not compute an HMAC");
}

/* ---- AES-256-GCM ---- */

struct crypto_gcm {
    EVP_CIPHER_CTX *seal, *unseal; /* each with its key schedule */
};

/* The context of one direction; NULL: no memory. */
static EVP_CIPHER_CTX *open_direction(const unsigned char *key, int seals)
{
    EVP_CIPHER_CTX *c = lib.EVP_CIPHER_CTX_new();

    if (c && lib.EVP_CipherInit_ex(c, lib.EVP_aes_256_gcm(), NULL, key, NULL, seals)) return c;
    lib.EVP_CIPHER_CTX_free(c);
    return NULL;
}

int crypto_gcm_open(struct crypto_gcm **out, const unsigned char key[CRYPTO_KEY], struct err *e)
{
    struct crypto_gcm *g;
    int rc = crypto_open(e);

    if (rc != OK) return rc;
    g = mem_new(struct crypto_gcm);
    if (g && (g->seal = open_direction(key, 1)) && (g->unseal = open_direction(key, 0))) {
        *out = g;
        return OK;
    }
    crypto_gcm_close(g);
    return err_nomem(e, "a cipher");
}

/* EVP_CIPHER_CTX_free wipes the key schedule. */
void crypto_gcm_close(struct crypto_gcm *g)
{
    if (!g) return;
    lib.EVP_CIPHER_CTX_free(g->seal);
    lib.EVP_CIPHER_CTX_free(g->unseal);
    mem_free(g);
}

/* Nonce, extra and text into the cipher, up to the tag. */
static bool run_cipher(EVP_CIPHER_CTX *c, const unsigned char *nonce, struct str extra,
                       const void *in, size_t n, void *out)
{
    int got = 0;

    if (n > INT_MAX || extra.n > INT_MAX) return false;
    if (!lib.EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, -1)) return false;
    if (extra.n &&
        !lib.EVP_CipherUpdate(c, NULL, &got, (const unsigned char *)extra.p, (int)extra.n))
        return false;
    return !n || (lib.EVP_CipherUpdate(c, out, &got, in, (int)n) && got == (int)n);
}

int crypto_gcm_seal(struct crypto_gcm *g, const unsigned char nonce[CRYPTO_NONCE], struct str extra,
                    const void *in, size_t n, void *out, unsigned char tag[CRYPTO_TAG],
                    struct err *e)
{
    unsigned char end[CRYPTO_TAG];
    int got = 0;

    if (run_cipher(g->seal, nonce, extra, in, n, out) &&
        lib.EVP_CipherFinal_ex(g->seal, end, &got) &&
        lib.EVP_CIPHER_CTX_ctrl(g->seal, EVP_CTRL_AEAD_GET_TAG, CRYPTO_TAG, tag))
        return OK;
    return err_set(e, E_INTERNAL, "OpenSSL could not encrypt");
}

int crypto_gcm_unseal(struct crypto_gcm *g, const unsigned char nonce[CRYPTO_NONCE],
                      struct str extra, const void *in, size_t n, void *out,
                      const unsigned char tag[CRYPTO_TAG], struct err *e)
{
    unsigned char want[CRYPTO_TAG], end[CRYPTO_TAG];
    int got = 0;

    memcpy(want, tag, sizeof want);
    if (run_cipher(g->unseal, nonce, extra, in, n, out) &&
        lib.EVP_CIPHER_CTX_ctrl(g->unseal, EVP_CTRL_AEAD_SET_TAG, CRYPTO_TAG, want) &&
        lib.EVP_CipherFinal_ex(g->unseal, end, &got) > 0)
        return OK;
    if (n) memset(out, 0, n);
    return err_set(e, E_DAMAGED, "the authentication tag does not match");
}

/* ---- secrets ---- */

/* Whole pages of their own: mlock and madvise work on pages. A refused mlock (RLIMIT_MEMLOCK) leaves
 * memory that may be swapped. */
void *crypto_secret(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) return NULL;
    mlock(p, n);
    madvise(p, n, MADV_DONTDUMP);
    return p;
}

void crypto_secret_free(void *p, size_t n)
{
    if (!p) return;
    explicit_bzero(p, n);
    munmap(p, n);
}
