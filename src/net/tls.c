#include "net/conn.h"

#include <openssl/err.h>

static int refuse(struct err *e, const char *file, const char *what)
{
    char why[200] = "";
    unsigned long code = ERR_peek_last_error();

    if (code) ERR_error_string_n(code, why, sizeof why);
    ERR_clear_error();
    return err_set(e, E_FORMAT, "%s: %s%s%s", file, what, *why ? ": " : "", why);
}

int tls_open(SSL_CTX **out, const char *cert, const char *key, struct err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    int rc = OK;

    if (!ctx) return err_set(e, E_NOMEM, "no memory for TLS");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        rc = refuse(e, cert, "not a certificate chain in PEM form");
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        rc = refuse(e, key, "not a private key in PEM form");
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc = refuse(e, key, "the key does not belong to the certificate");
    if (rc == OK) *out = ctx;
    else SSL_CTX_free(ctx);
    return rc;
}
