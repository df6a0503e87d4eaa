/* keyring.h - the keys of encrypted models: where they come from, and where readers find them.
 *
 * A keyset is a few 256-bit keys in locked memory that core files leave out. It comes from a file, or
 * from the output of a command (a key manager): 32 random bytes, or lines of 64 hex digits. While a
 * set is in the ring of the process (keyset_join), base/file decrypts the files that its keys open;
 * keyset_close takes it out and wipes it. Whoever loads a model joins its keys for the time of the
 * load. A file names its keys by their ids (base/sealed.h), so sets of several models do not disturb
 * each other.
 *
 * Keys are never printed; an id is no secret. The ring has a lock: any thread may call. */
#ifndef TERN_BASE_KEYRING_H
#define TERN_BASE_KEYRING_H

#include "base/buf.h"
#include "base/crypto.h"
#include "base/err.h"

enum { KEYSET_MAX = 8, KEY_ID = 8, KEY_ID_HEX = 2 * KEY_ID + 1, KEY_COMMAND_MS = 60000 };

struct keyset;

/* From the file, else from the command; neither (NULL or ""): *out is NULL and OK is returned. The
 * command runs in /bin/sh with at most timeout_ms (0: KEY_COMMAND_MS); its process group is killed
 * then. E_INVALID: both are given. E_FORMAT: there is no key in it; the message does not quote it. */
int keyset_open(struct keyset **out, const char *file, const char *command, int timeout_ms,
                struct err *e);
/* The text of a file; where: for messages. */
int keyset_parse(struct keyset **out, struct str text, const char *where, struct err *e);
/* n keys of CRYPTO_KEY bytes each. */
int keyset_copy(struct keyset **out, const void *keys, int n, struct err *e);
void keyset_close(struct keyset *k); /* NULL is allowed */

int keyset_n(const struct keyset *k); /* NULL: 0 */
const unsigned char *keyset_key(const struct keyset *k, int i);
const unsigned char *keyset_id(const struct keyset *k, int i);

void keyset_join(struct keyset *k); /* NULL: nothing happens */

/* For readers: the key with that id; false: the ring has none. key is to be wiped. */
bool keyring_find(const unsigned char id[KEY_ID], unsigned char key[CRYPTO_KEY]);
/* "3f2a…, 9b1c…": the ids of the ring, for messages; "" if it is empty. */
void keyring_describe(struct buf *out);

/* The id of a key: the start of an HMAC with it, which says nothing about the key. */
int key_id(unsigned char id[KEY_ID], const unsigned char key[CRYPTO_KEY], struct err *e);
#endif
