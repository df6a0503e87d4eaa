/* tls.c - the TLS context of a server: TLS 1.2 and later, a PEM certificate chain and its key.
 *
 * No renegotiation and no compression, which only help attackers. A client that closes without
 * close_notify is treated like one that closes a TCP connection. */
#include "net/conn.h"

#include "base/file.h"

#include <openssl/err.h>

/* E_FORMAT with OpenSSL's reason appended. */
static int fail_with_reason(struct err *e, const char *file, const char *what)
{
    char why[200] = "";
    unsigned long code = ERR_peek_last_error();

    if (code) ERR_error_string_n(code, why, sizeof why);
    ERR_clear_error();
    return err_set(e, E_FORMAT, "%s: %s%s%s", file, what, *why ? ": " : "", why);
}

int tls_open(SSL_CTX **out, const char *cert, const char *key, struct err *e)
{
    SSL_CTX *ctx;
    int rc;

    if ((rc = file_check_input(cert, e)) != OK) return rc;
    if ((rc = file_check_input(key, e)) != OK) return rc;
    if (!(ctx = SSL_CTX_new(TLS_server_method()))) {
        ERR_clear_error();
        return err_nomem(e, "the TLS context");
    }
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1)
        rc = fail_with_reason(e, "TLS", "cannot require TLS 1.2");
    else if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        rc = fail_with_reason(e, cert, "no certificate chain in PEM format");
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        rc = fail_with_reason(e, key, "no private key in PEM format");
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc = fail_with_reason(e, key, "the private key does not match the certificate");
    if (rc == OK) *out = ctx;
    else SSL_CTX_free(ctx);
    return rc;
}
