/* handshake.h - the proof that both ends of a connection have the same token.
 *
 * Each side sends a HELLO with a nonce, then a WELCOME with the HMAC-SHA256, keyed with the token,
 * over its own role and both HELLO payloads. The token itself is never sent. Because the MAC covers
 * the exact bytes of both HELLOs, nobody in between can change versions or limits; because it
 * covers the role, a MAC cannot be sent back to its maker. Any thread may call. */
#ifndef TERN_WORKER_HANDSHAKE_H
#define TERN_WORKER_HANDSHAKE_H

#include "base/err.h"
#include "base/str.h"
#include "worker/frame.h"

enum { HANDSHAKE_HEX = 64, HANDSHAKE_TOKEN_MIN = 16 }; /* digits of nonce and MAC; token bytes */

int handshake_nonce(char hex[HANDSHAKE_HEX + 1], struct err *e);
/* The MAC that `sender` puts into its WELCOME. */
int handshake_mac(char hex[HANDSHAKE_HEX + 1], struct str token, enum frame_role sender,
                  struct str server_hello, struct str worker_hello, struct err *e);
bool handshake_equal(const char *a, const char *b); /* in constant time; both of HANDSHAKE_HEX */
bool handshake_is_hex(const char *s);               /* HANDSHAKE_HEX digits, lower case */
#endif
