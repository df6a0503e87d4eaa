/* scope.h - which variable a name means. Inside jinja/ only.
 *
 * Scopes are resolved once, before anything is rendered, by the rules of jinja2's idtracking.py: a
 * name that a scope sets belongs to that scope from its beginning, and a name that no enclosing
 * scope sets is looked up in the caller's variables when the scope is entered. At run time a
 * variable is then a slot of an activation, found without a search. */
#ifndef TERN_JINJA_SCOPE_H
#define TERN_JINJA_SCOPE_H

#include "jinja/ast.h"

struct scope_names { /* each name once; in the arena */
    struct str *v;
    size_t n, cap;
};

struct scoping {
    struct arena *arena; /* of the template */
    struct str source;
    const char *name;              /* of the template, in error messages */
    struct scope_names free_names; /* looked up in the caller's variables */
    struct budget *budget;         /* of reading the template */
    struct err *e;
    int rc; /* the first failure */
};

/* Fills refs and frames of the whole tree; *fn describes the template's top level. */
int scope_template(struct scoping *s, struct node *root, struct frame_fn **fn);
#endif
