/* web.h - the files of web/, built into the program. They are constant and live as long as it. */
#ifndef TERN_SERVER_WEB_H
#define TERN_SERVER_WEB_H

#include "base/str.h"

struct web_file {
    const char *path; /* "/app.js" */
    const char *type; /* for Content-Type */
    const unsigned char *data;
    size_t n;
    const char *etag; /* of its content, quoted as the header wants it */
};

/* For Content-Security-Policy of every page: nothing from elsewhere, no inline code, no frame
 * around it. */
#define WEB_POLICY                                                                          \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " \
    "'self'; "                                                                              \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                         \
    "require-trusted-types-for 'script'; trusted-types 'none'"

const struct web_file *web_find(struct str path); /* "/" is the page; NULL: there is none */

/* Is this text the answer, and not the page? Clients of Ollama look for a server at "/" and wait for it;
 * browsers say in Accept that they take HTML. */
#define WEB_GREETING "Ollama is running"
bool web_is_greeting(struct str path, struct str accept);
#endif
