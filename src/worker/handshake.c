/* handshake.c - nonces and MACs from OpenSSL. */
#include "worker/handshake.h"

#include "base/buf.h"

#include <endian.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

enum { BYTES = HANDSHAKE_HEX / 2 };

static void put_hex(char *out, const unsigned char *p)
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < BYTES; i++) *out++ = digits[p[i] >> 4], *out++ = digits[p[i] & 15];
    *out = 0;
}

int handshake_nonce(char hex[HANDSHAKE_HEX + 1], struct err *e)
{
    unsigned char p[BYTES];

    if (RAND_bytes(p, BYTES) != 1) return err_set(e, E_IO, "handshake: no random bytes");
    put_hex(hex, p);
    return OK;
}

/* A length before each part: no two transcripts are the same bytes. */
static void add_part(struct buf *b, struct str s)
{
    uint32_t n = htole32((uint32_t)s.n);

    buf_add(b, &n, sizeof n);
    buf_put_str(b, s);
}

int handshake_mac(char hex[HANDSHAKE_HEX + 1], struct str token, enum frame_role sender,
                  struct str server_hello, struct str worker_hello, struct err *e)
{
    struct buf b = { 0 };
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    int rc;

    add_part(&b, STR("tern-frames"));
    add_part(&b, str_c(frame_role_name(sender)));
    add_part(&b, server_hello);
    add_part(&b, worker_hello);
    rc = buf_check(&b, e);
    if (rc == OK &&
        (!HMAC(EVP_sha256(), token.p, (int)token.n, (const unsigned char *)b.p, b.n, mac, &n) ||
         n != BYTES))
        rc = err_nomem(e, "the proof of a token");
    if (rc == OK) put_hex(hex, mac);
    buf_release(&b);
    return rc;
}

bool handshake_equal(const char *a, const char *b)
{
    return CRYPTO_memcmp(a, b, HANDSHAKE_HEX) == 0;
}

bool handshake_is_hex(const char *s)
{
    return strlen(s) == HANDSHAKE_HEX && strspn(s, "0123456789abcdef") == HANDSHAKE_HEX;
}
