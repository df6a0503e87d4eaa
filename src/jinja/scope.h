/* scope.h - which variable a name means. Inside jinja/ only.
 *
 * Scopes are worked out before anything runs, as jinja2 does it: a name that a scope sets is that
 * scope's from its beginning on, and what is not set anywhere around is asked of the caller's
 * variables where the scope is entered. */
#ifndef TERN_JINJA_SCOPE_H
#define TERN_JINJA_SCOPE_H

#include "jinja/ast.h"

struct scope_names { /* asked of the caller, each once */
    struct str *v;
    size_t n, cap;
};

struct scoping {
    struct arena *arena;
    struct str source;
    const char *name;
    struct scope_names asked;
    struct err *e;
    int rc;
};

/* Fills refs and frames of the whole tree; *fn is the template's own function. */
int scope_template(struct scoping *s, struct node *root, struct frame_fn **fn);
#endif
