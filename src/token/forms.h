/* forms.h - Unicode's normal forms of any text, in time linear in it. */
#ifndef TERN_TOKEN_FORMS_H
#define TERN_TOKEN_FORMS_H

#include "base/buf.h"
#include "base/err.h"

enum { FORM_COMPOSE = 1, FORM_COMPAT = 2 }; /* NFD is 0, NFKC both */

int form_put(struct str text, unsigned flags, struct buf *out, struct err *e); /* appends */
#endif
